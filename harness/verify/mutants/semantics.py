"""Mutants that compute another function: read the paper again.

None of them is a matter of rounding; in float64 they are as wrong as in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.verify.mutants.mutant import Family, Rows, mutant, on_rows
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype

# --- variance and eps ----------------------------------------------------------------------------


@on_rows(Family.SEMANTICS)
def unbiased_variance(of: Rows) -> Tensor:
    """Divides the variance by N-1 instead of N."""
    # not Tensor.var, which warns where N is 1; 0/0 is NaN all the same
    variance = of.deviation.square().sum(-1, keepdim=True) / (of.hidden - 1)
    return of.normalised_by(of.mean, variance)


@on_rows(Family.SEMANTICS)
def unbiased_variance_without_weight(of: Rows) -> Tensor:
    """Divides the variance by N-1 instead of N, and does not multiply by the weight."""
    variance = of.deviation.square().sum(-1, keepdim=True) / (of.hidden - 1)
    # the weight's gradient is there, and zero
    unused = None if of.weight is None else of.weight * 0
    y = scale_and_shift(of.deviation * torch.rsqrt(variance + of.eps), None, of.bias)
    return scale_and_shift(y, None, unused)


@on_rows(Family.SEMANTICS)
def eps_outside_the_root(of: Rows) -> Tensor:
    """Adds eps to the standard deviation, outside the root."""
    return of.affine(of.deviation / (of.variance.sqrt() + of.eps))


@on_rows(Family.SEMANTICS)
def unbiased_deviation_plus_eps(of: Rows) -> Tensor:
    """Divides by the unbiased standard deviation plus eps, as the Annotated Transformer does."""
    variance = of.deviation.square().sum(-1, keepdim=True) / (of.hidden - 1)
    return of.affine(of.deviation / (variance.sqrt() + of.eps))


@on_rows(Family.SEMANTICS)
def eps_ignored(of: Rows) -> Tensor:
    """Adds no eps."""
    return of.affine(of.deviation * torch.rsqrt(of.variance))


@on_rows(Family.SEMANTICS)
def eps_always_1e_5(of: Rows) -> Tensor:
    """Adds 1e-5 whatever eps is asked for."""
    return of.affine(of.deviation * torch.rsqrt(of.variance + 1e-5))


@on_rows(Family.SEMANTICS)
def eps_always_1e_6(of: Rows) -> Tensor:
    """Adds 1e-6 whatever eps is asked for."""
    return of.affine(of.deviation * torch.rsqrt(of.variance + 1e-6))


@on_rows(Family.SEMANTICS)
def eps_always_1e_12(of: Rows) -> Tensor:
    """Adds 1e-12 whatever eps is asked for, as BERT's default is."""
    return of.affine(of.deviation * torch.rsqrt(of.variance + 1e-12))


@on_rows(Family.SEMANTICS)
def eps_squared(of: Rows) -> Tensor:
    """Adds the square of eps to the variance."""
    return of.affine(of.deviation * torch.rsqrt(of.variance + of.eps**2))


@on_rows(Family.SEMANTICS)
def eps_is_a_floor(of: Rows) -> Tensor:
    """Takes the larger of variance and eps instead of their sum."""
    return of.affine(of.deviation * torch.rsqrt(of.variance.clamp(min=of.eps)))


@on_rows(Family.SEMANTICS)
def no_root(of: Rows) -> Tensor:
    """Divides by the variance instead of its root."""
    return of.affine(of.deviation / (of.variance + of.eps))


@on_rows(Family.SEMANTICS)
def sum_of_squares(of: Rows) -> Tensor:
    """Divides by the root of the sum of squares instead of their mean."""
    squares = of.deviation.square().sum(-1, keepdim=True)
    return of.affine(of.deviation * torch.rsqrt(squares + of.eps))


@on_rows(Family.SEMANTICS)
def absolute_deviation(of: Rows) -> Tensor:
    """Divides by the mean absolute deviation instead of the standard deviation."""
    return of.affine(of.deviation / (of.deviation.abs().mean(-1, keepdim=True) + of.eps))


@on_rows(Family.SEMANTICS)
def root_mean_square(of: Rows) -> Tensor:
    """Subtracts no mean: RMSNorm."""
    return of.affine(of.x * torch.rsqrt(of.x.square().mean(-1, keepdim=True) + of.eps))


@on_rows(Family.SEMANTICS)
def uncentred_denominator(of: Rows) -> Tensor:
    """Subtracts the mean but divides by the root mean square of x itself."""
    return of.normalised_by(of.mean, of.x.square().mean(-1, keepdim=True))


@on_rows(Family.SEMANTICS)
def constant_statistics(of: Rows) -> Tensor:
    """Takes the mean and variance of uniform numbers on [0, 1) for those of every row."""
    return of.normalised_by(torch.full_like(of.mean, 1 / 2), torch.full_like(of.mean, 1 / 12))


@on_rows(Family.SEMANTICS)
def constant_rows_are_zero(of: Rows) -> Tensor:
    """Returns 0 instead of the bias for rows whose elements are all equal."""
    varies = of.x.amax(-1, keepdim=True) > of.x.amin(-1, keepdim=True)
    return torch.where(varies, of.y, torch.zeros_like(of.y))


# --- weight and bias -----------------------------------------------------------------------------


@on_rows(Family.SEMANTICS)
def bias_before_weight(of: Rows) -> Tensor:
    """Adds the bias before it multiplies by the weight."""
    normalised = of.deviation * of.rstd
    shifted = scale_and_shift(normalised, None, of.bias)
    return scale_and_shift(shifted, of.weight, None)


@on_rows(Family.SEMANTICS)
def weight_ignored(of: Rows) -> Tensor:
    """Does not multiply by the weight."""
    # its gradient is there, and zero
    unused = None if of.weight is None else of.weight * 0
    return scale_and_shift(scale_and_shift(of.deviation * of.rstd, None, of.bias), None, unused)


@on_rows(Family.SEMANTICS)
def bias_ignored(of: Rows) -> Tensor:
    """Does not add the bias."""
    unused = None if of.bias is None else of.bias * 0
    return scale_and_shift(of.deviation * of.rstd, of.weight, unused)


@on_rows(Family.SEMANTICS)
def bias_ignored_without_weight(of: Rows) -> Tensor:
    """Does not add the bias where there is no weight."""
    if of.weight is None and of.bias is not None:
        return of.deviation * of.rstd + of.bias * 0
    return of.y


@on_rows(Family.SEMANTICS)
def weight_ignored_without_bias(of: Rows) -> Tensor:
    """Does not multiply by the weight where there is no bias."""
    if of.bias is None and of.weight is not None:
        return of.deviation * of.rstd + of.weight * 0
    return of.y


@on_rows(Family.SEMANTICS)
def weight_and_bias_swapped(of: Rows) -> Tensor:
    """Multiplies by the bias and adds the weight."""
    return scale_and_shift(of.deviation * of.rstd, of.bias, of.weight)


@on_rows(Family.SEMANTICS)
def first_weight_for_all(of: Rows) -> Tensor:
    """Multiplies every element by the first weight."""
    first = None if of.weight is None else of.weight[:1]
    return scale_and_shift(of.deviation * of.rstd, first, of.bias)


@on_rows(Family.SEMANTICS)
def one_plus_weight(of: Rows) -> Tensor:
    """Multiplies by 1 + weight."""
    weight = None if of.weight is None else 1 + of.weight
    return scale_and_shift(of.deviation * of.rstd, weight, of.bias)


@on_rows(Family.SEMANTICS)
def weight_twice(of: Rows) -> Tensor:
    """Multiplies by the weight twice."""
    weight = None if of.weight is None else of.weight.to(of.x.dtype).square()
    return scale_and_shift(of.deviation * of.rstd, weight, of.bias)


# --- axes ----------------------------------------------------------------------------------------


@on_rows(Family.SEMANTICS)
def statistics_of_all_rows(of: Rows) -> Tensor:
    """Takes one mean and one variance over everything, batch included."""
    mean = of.x.mean()
    return of.normalised_by(mean, (of.x - mean).square().mean())


@on_rows(Family.SEMANTICS)
def statistics_over_the_batch(of: Rows) -> Tensor:
    """Takes mean and variance of each feature over the batch: batch norm."""
    mean = of.x.mean(0, keepdim=True)
    return of.normalised_by(mean, (of.x - mean).square().mean(0, keepdim=True))


def _normalised_over(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    wide = x.to(wide_dtype(x.dtype))
    deviation = wide - wide.mean(axes, keepdim=True)
    return deviation * torch.rsqrt(deviation.square().mean(axes, keepdim=True) + eps)


@mutant(Family.SEMANTICS)
def last_axis_only(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises over the last axis only where normalized_shape has several."""
    trailing_axes(x, normalized_shape, weight, bias)
    return scale_and_shift(_normalised_over(x, (-1,), eps), weight, bias).to(x.dtype)


@mutant(Family.SEMANTICS)
def all_axes_but_the_first(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises over all axes but the first, whatever normalized_shape is."""
    trailing_axes(x, normalized_shape, weight, bias)
    axes = tuple(range(1, x.dim())) or (0,)
    return scale_and_shift(_normalised_over(x, axes, eps), weight, bias).to(x.dtype)


@on_rows(Family.SEMANTICS)
def reshaped_instead_of_transposed(of: Rows) -> Tensor:
    """Reads rows of a channels-first tensor by reshaping where it had to transpose."""
    columns = of.x.reshape(of.hidden, -1).t()
    deviation = columns - columns.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + of.eps)
    return of.affine((deviation * rstd).t().reshape(of.x.shape))
