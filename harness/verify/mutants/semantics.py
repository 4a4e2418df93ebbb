"""Mutants that compute another function.

None of these mistakes is a matter of rounding: in float64 they are as wrong as in bfloat16.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.mutant import on_call, on_rows
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype

# --- variance and eps ----------------------------------------------------------------------------


@on_rows()
def unbiased_variance(rows: Rows) -> Tensor:
    """Divides the variance by N-1 instead of N."""
    return rows.normalised_by(rows.mean, rows.unbiased_variance)


@on_rows()
def unbiased_variance_without_weight(rows: Rows) -> Tensor:
    """Divides the variance by N-1 instead of N, and does not multiply by the weight."""
    unweighted = replace(rows, weight=None)
    y = unweighted.normalised_by(rows.mean, rows.unbiased_variance)
    return scale_and_shift(y, None, _unused(rows.weight))


@on_rows()
def eps_outside_the_root(rows: Rows) -> Tensor:
    """Adds eps to the standard deviation instead of the variance."""
    return rows.affine(rows.deviation / (rows.variance.sqrt() + rows.eps))


@on_rows()
def unbiased_deviation_plus_eps(rows: Rows) -> Tensor:
    """Divides by the unbiased standard deviation plus eps, as the Annotated Transformer does."""
    return rows.affine(rows.deviation / (rows.unbiased_variance.sqrt() + rows.eps))


@on_rows()
def eps_ignored(rows: Rows) -> Tensor:
    """Adds no eps."""
    return replace(rows, eps=0.0).y


@on_rows()
def eps_always_1e_5(rows: Rows) -> Tensor:
    """Adds 1e-5 instead of the given eps."""
    return replace(rows, eps=1e-5).y


@on_rows()
def eps_always_1e_6(rows: Rows) -> Tensor:
    """Adds 1e-6 instead of the given eps."""
    return replace(rows, eps=1e-6).y


@on_rows()
def eps_always_1e_12(rows: Rows) -> Tensor:
    """Adds 1e-12, BERT's default, instead of the given eps."""
    return replace(rows, eps=1e-12).y


@on_rows()
def eps_squared(rows: Rows) -> Tensor:
    """Adds the square of eps instead of eps."""
    return replace(rows, eps=rows.eps**2).y


@on_rows()
def eps_is_a_floor(rows: Rows) -> Tensor:
    """Takes the larger of variance and eps instead of their sum."""
    return rows.affine(rows.deviation * torch.rsqrt(rows.variance.clamp(min=rows.eps)))


@on_rows()
def no_root(rows: Rows) -> Tensor:
    """Divides by the variance instead of its square root."""
    return rows.affine(rows.deviation / (rows.variance + rows.eps))


@on_rows()
def sum_of_squares(rows: Rows) -> Tensor:
    """Divides by the root of the sum of squared deviations instead of their mean."""
    return rows.normalised_by(rows.mean, rows.deviation.square().sum(-1, keepdim=True))


@on_rows()
def absolute_deviation(rows: Rows) -> Tensor:
    """Divides by the mean absolute deviation instead of the standard deviation."""
    return rows.affine(rows.deviation / (rows.deviation.abs().mean(-1, keepdim=True) + rows.eps))


@on_rows()
def root_mean_square(rows: Rows) -> Tensor:
    """Does not subtract the mean (RMSNorm)."""
    return rows.affine(rows.x * torch.rsqrt(rows.x.square().mean(-1, keepdim=True) + rows.eps))


@on_rows()
def uncentred_denominator(rows: Rows) -> Tensor:
    """Subtracts the mean but divides by the root mean square of x."""
    return rows.normalised_by(rows.mean, rows.x.square().mean(-1, keepdim=True))


@on_rows()
def constant_statistics(rows: Rows) -> Tensor:
    """Uses the mean and variance of uniform numbers on [0, 1) for every row."""
    return rows.normalised_by(torch.full_like(rows.mean, 1 / 2), torch.full_like(rows.mean, 1 / 12))


@on_rows()
def constant_rows_are_zero(rows: Rows) -> Tensor:
    """Returns 0 instead of the bias for rows whose elements are all equal."""
    varies = rows.x.amax(-1, keepdim=True) > rows.x.amin(-1, keepdim=True)
    return torch.where(varies, rows.y, torch.zeros_like(rows.y))


# --- weight and bias -----------------------------------------------------------------------------


def _unused(parameter: Tensor | None) -> Tensor | None:
    """Zeros to add: the parameter has no effect, but its gradient exists and is zero."""
    return None if parameter is None else parameter * 0


@on_rows()
def bias_before_weight(rows: Rows) -> Tensor:
    """Adds the bias before multiplying by the weight."""
    shifted = scale_and_shift(rows.normalised, None, rows.bias)
    return scale_and_shift(shifted, rows.weight, None)


@on_rows()
def weight_ignored(rows: Rows) -> Tensor:
    """Does not multiply by the weight."""
    shifted = scale_and_shift(rows.normalised, None, rows.bias)
    return scale_and_shift(shifted, None, _unused(rows.weight))


@on_rows()
def bias_ignored(rows: Rows) -> Tensor:
    """Does not add the bias."""
    return scale_and_shift(rows.normalised, rows.weight, _unused(rows.bias))


@on_rows()
def bias_ignored_without_weight(rows: Rows) -> Tensor:
    """Does not add the bias where there is no weight."""
    if rows.weight is None:
        return scale_and_shift(rows.normalised, None, _unused(rows.bias))
    return rows.y


@on_rows()
def weight_ignored_without_bias(rows: Rows) -> Tensor:
    """Does not multiply by the weight where there is no bias."""
    if rows.bias is None:
        return scale_and_shift(rows.normalised, None, _unused(rows.weight))
    return rows.y


@on_rows()
def weight_and_bias_swapped(rows: Rows) -> Tensor:
    """Multiplies by the bias and adds the weight."""
    return scale_and_shift(rows.normalised, rows.bias, rows.weight)


@on_rows()
def first_weight_for_all(rows: Rows) -> Tensor:
    """Multiplies every element by the first weight."""
    return replace(rows, weight=None if rows.weight is None else rows.weight[:1]).y


@on_rows()
def one_plus_weight(rows: Rows) -> Tensor:
    """Multiplies by 1 + weight."""
    return replace(rows, weight=None if rows.weight is None else 1 + rows.weight).y


@on_rows()
def weight_twice(rows: Rows) -> Tensor:
    """Multiplies by the weight twice."""
    weight = None if rows.weight is None else rows.weight.to(rows.x.dtype).square()
    return replace(rows, weight=weight).y


# --- axes ----------------------------------------------------------------------------------------


@on_rows()
def statistics_of_all_rows(rows: Rows) -> Tensor:
    """Uses one mean and one variance of all elements, batch included."""
    mean = rows.x.mean()
    return rows.normalised_by(mean, (rows.x - mean).square().mean())


@on_rows()
def statistics_over_the_batch(rows: Rows) -> Tensor:
    """Uses the mean and variance of each feature over the batch (batch norm)."""
    mean = rows.x.mean(0, keepdim=True)
    return rows.normalised_by(mean, (rows.x - mean).square().mean(0, keepdim=True))


def _normalised_over(axes: tuple[int, ...], call: LayerNormCall) -> Tensor:
    trailing_axes(call.x, call.normalized_shape, call.weight, call.bias)
    wide = call.x.to(wide_dtype(call.x.dtype))
    deviation = wide - wide.mean(axes, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(axes, keepdim=True) + call.eps)
    return scale_and_shift(deviation * rstd, call.weight, call.bias).to(call.x.dtype)


@on_call()
def last_axis_only(call: LayerNormCall) -> Tensor:
    """Normalises over the last axis only where normalized_shape has several."""
    return _normalised_over((-1,), call)


@on_call()
def all_axes_but_the_first(call: LayerNormCall) -> Tensor:
    """Normalises over all axes but the first, whatever normalized_shape is."""
    return _normalised_over(tuple(range(1, call.x.dim())) or (0,), call)


@on_rows()
def reshaped_instead_of_transposed(rows: Rows) -> Tensor:
    """Reshapes a channels-first tensor into rows instead of transposing it."""
    columns = rows.x.reshape(rows.hidden, -1).t()
    deviation = columns - columns.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + rows.eps)
    return rows.affine((deviation * rstd).t().reshape(rows.x.shape))
