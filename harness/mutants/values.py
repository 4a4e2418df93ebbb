"""Mutants that compute another function, or the right one with too few digits.

Another function is as wrong in float64 as in bfloat16. Mutants with too few digits are held to
statistics in float32 or wider, as is every function that declares nothing; a single tolerance per
dtype lets most of them pass.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.mutants.arguments import LayerNormCall, Rows, changed, with_value
from harness.mutants.mutant import (
    BFLOAT16,
    DTYPES,
    HALVES,
    rounded_to,
    running_sum,
    with_fields,
)
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype

# --- variance and eps ----------------------------------------------------------------------------


def unbiased_variance(rows: Rows) -> Tensor:
    """Divides the variance by N-1 instead of N."""
    return rows.normalised_by(rows.mean, rows.unbiased_variance)


@with_fields(is_of_eps=True)
def eps_outside_the_root(rows: Rows) -> Tensor:
    """Adds eps to the standard deviation instead of the variance."""
    return rows.affine(rows.deviation / (rows.variance.sqrt() + rows.eps))


def unbiased_deviation_plus_eps(rows: Rows) -> Tensor:
    """Divides by the sum of the standard deviation, with N-1, and eps."""
    return rows.affine(rows.deviation / (rows.unbiased_variance.sqrt() + rows.eps))


def eps_ignored(eps: float) -> float:
    """Adds no eps to the variance."""
    return 0.0


def eps_always_1e_5(eps: float) -> float:
    """Adds 1e-5 instead of the given eps."""
    return 1e-5


def eps_always_1e_6(eps: float) -> float:
    """Adds 1e-6 instead of the given eps."""
    return 1e-6


def eps_always_1e_12(eps: float) -> float:
    """Adds 1e-12 instead of the given eps."""
    return 1e-12


def eps_squared(eps: float) -> float:
    """Adds the square of eps instead of eps."""
    return eps**2


@with_fields(is_of_eps=True)
def eps_is_a_floor(rows: Rows) -> Tensor:
    """Takes the larger of variance and eps instead of their sum."""
    return rows.affine(rows.deviation * torch.rsqrt(rows.variance.clamp(min=rows.eps)))


def no_root(rows: Rows) -> Tensor:
    """Divides by the variance instead of its square root."""
    return rows.affine(rows.deviation / (rows.variance + rows.eps))


def sum_of_squares(rows: Rows) -> Tensor:
    """Divides by the root of the sum of squared deviations instead of their mean."""
    return rows.normalised_by(rows.mean, rows.deviation.square().sum(-1, keepdim=True))


def absolute_deviation(rows: Rows) -> Tensor:
    """Divides by the mean absolute deviation instead of the standard deviation."""
    return rows.affine(rows.deviation / (rows.deviation.abs().mean(-1, keepdim=True) + rows.eps))


def root_mean_square(rows: Rows) -> Tensor:
    """Does not subtract the mean (RMSNorm)."""
    return rows.affine(rows.x * torch.rsqrt(rows.x.square().mean(-1, keepdim=True) + rows.eps))


def uncentred_denominator(rows: Rows) -> Tensor:
    """Subtracts the mean but divides by the root mean square of x."""
    return rows.normalised_by(rows.mean, rows.x.square().mean(-1, keepdim=True))


def constant_statistics(rows: Rows) -> Tensor:
    """Uses a mean of 1/2 and a variance of 1/12 for every row."""
    return rows.normalised_by(torch.full_like(rows.mean, 1 / 2), torch.full_like(rows.mean, 1 / 12))


def constant_rows_are_zero(rows: Rows) -> Tensor:
    """Returns 0 instead of the bias for rows whose elements are all equal."""
    varies = rows.x.amax(-1, keepdim=True) > rows.x.amin(-1, keepdim=True)
    return torch.where(varies, rows.y, torch.zeros_like(rows.y))


def bias_skipped_in_zero_rows(rows: Rows) -> Tensor:
    """Returns 0 instead of the bias for rows of zeros."""
    return torch.where((rows.x != 0).any(1, keepdim=True), rows.y, torch.zeros_like(rows.y))


# --- weight and bias -----------------------------------------------------------------------------


def _unused(parameter: Tensor | None) -> Tensor | None:
    """Zeros to add: the parameter has no effect, but its gradient exists and is zero."""
    return None if parameter is None else parameter * 0


def bias_before_weight(rows: Rows) -> Tensor:
    """Adds the bias before multiplying by the weight."""
    shifted = scale_and_shift(rows.normalised, None, rows.bias)
    return scale_and_shift(shifted, rows.weight, None)


def weight_ignored(rows: Rows) -> Tensor:
    """Does not multiply by the weight."""
    shifted = scale_and_shift(rows.normalised, None, rows.bias)
    return scale_and_shift(shifted, None, _unused(rows.weight))


def bias_ignored(rows: Rows) -> Tensor:
    """Does not add the bias."""
    return scale_and_shift(rows.normalised, rows.weight, _unused(rows.bias))


def parameters_ignored(rows: Rows) -> Tensor:
    """Uses neither the weight nor the bias that it is given."""
    shifted = scale_and_shift(rows.normalised, None, _unused(rows.weight))
    return scale_and_shift(shifted, None, _unused(rows.bias))


def weight_and_bias_swapped(rows: Rows) -> Tensor:
    """Multiplies by the bias and adds the weight."""
    return scale_and_shift(rows.normalised, rows.bias, rows.weight)


def first_weight_for_all(rows: Rows) -> Tensor:
    """Multiplies every element by the first weight."""
    return changed(rows, "weight", lambda weight: weight[:1]).y


def one_plus_weight(rows: Rows) -> Tensor:
    """Multiplies by 1 + weight."""
    return changed(rows, "weight", lambda weight: 1 + weight).y


def weight_twice(rows: Rows) -> Tensor:
    """Multiplies by the weight twice."""
    return changed(rows, "weight", lambda weight: weight.to(rows.x.dtype).square()).y


# --- axes ----------------------------------------------------------------------------------------


def statistics_of_all_rows(rows: Rows) -> Tensor:
    """Uses one mean and one variance for all rows together."""
    return rows.with_means_by(Tensor.mean)


def statistics_over_the_batch(rows: Rows) -> Tensor:
    """Uses the mean and variance of each feature over the batch (batch norm)."""
    return rows.with_means_by(lambda x: x.mean(0, keepdim=True))


def _normalised_over(axes: tuple[int, ...], call: LayerNormCall, dtype: torch.dtype) -> Tensor:
    """Return y for statistics over other axes, computed in ``dtype``."""
    trailing_axes(call.x, call.normalized_shape, call.weight, call.bias)
    x = call.x.to(dtype)
    deviation = x - x.mean(axes, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(axes, keepdim=True) + call.eps)
    return scale_and_shift(deviation * rstd, call.weight, call.bias).to(call.x.dtype)


def last_axis_only(call: LayerNormCall) -> Tensor:
    """Normalises the last axis alone where normalized_shape has several."""
    return _normalised_over((-1,), call, wide_dtype(call.x.dtype))


def all_axes_but_the_first(call: LayerNormCall) -> Tensor:
    """Normalises all axes but the first, whatever normalized_shape is."""
    axes = tuple(range(1, call.x.dim())) or (0,)
    return _normalised_over(axes, call, wide_dtype(call.x.dtype))


def reshaped_instead_of_transposed(rows: Rows) -> Tensor:
    """Reshapes a channels-first tensor into rows instead of transposing it."""
    columns = rows.x.reshape(rows.hidden, -1).t()
    return rows.affine(replace(rows, x=columns).normalised.t().reshape(rows.x.shape))


# --- statistics ----------------------------------------------------------------------------------


@with_fields(inaccurate=BFLOAT16)
def statistics_in_bfloat16(rows: Rows) -> Tensor:
    """Rounds mean and rstd to bfloat16 before using them."""
    mean, rstd = rounded_to(torch.bfloat16, rows.mean), rounded_to(torch.bfloat16, rows.rstd)
    return rows.affine((rows.x - mean) * rstd)


def mean_in_float16(rows: Rows) -> Tensor:
    """Rounds the mean to float16 before subtracting it."""
    return rows.affine((rows.x - rounded_to(torch.float16, rows.mean)) * rows.rstd)


def squares_in_float16(rows: Rows) -> Tensor:
    """Squares the deviations in float16, where 256 squared is infinite."""
    squares = rounded_to(torch.float16, rows.deviation).to(torch.float16).square().to(rows.x.dtype)
    return rows.normalised_by(rows.mean, squares.mean(-1, keepdim=True))


@with_fields(rounded=HALVES)
def newton_step_missing(rows: Rows) -> Tensor:
    """Uses an estimate of 1/sqrt that is off by up to 2^-12."""
    mantissa, exponent = torch.frexp(rows.rstd.detach())
    guess = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    return rows.affine(rows.deviation * with_value(rows.rstd, guess))


def eps_in_float16(eps: float) -> float:
    """Rounds eps to float16, in which 1e-5 becomes 1.0014e-5."""
    return float(torch.tensor(eps, dtype=torch.float16))


def one_pass_in_disguise(rows: Rows) -> Tensor:
    """Computes the variance as E[x^2] - E[x]^2."""
    variance = rows.x.square().mean(-1, keepdim=True) - rows.mean.square()
    return rows.normalised_by(rows.mean, variance)


def one_pass_clamped(rows: Rows) -> Tensor:
    """Computes the variance as E[x^2] - E[x]^2, clamped at 0."""
    variance = rows.x.square().mean(-1, keepdim=True) - rows.mean.square()
    return rows.normalised_by(rows.mean, variance.clamp(min=0))


# --- sums ----------------------------------------------------------------------------------------


def _running_mean(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Mean of each row by one running sum in ``dtype``, rounded at every step; (rows, 1)."""
    total = running_sum(x.detach().t(), dtype)
    return with_value(x.mean(-1, keepdim=True), (total / x.shape[1])[:, None])


def sums_in_bfloat16(rows: Rows) -> Tensor:
    """Sums each row in bfloat16, one element after the other."""
    return rows.with_means_by(partial(_running_mean, torch.bfloat16))


def sums_in_float16(rows: Rows) -> Tensor:
    """Sums each row in float16, one element after the other."""
    return rows.with_means_by(partial(_running_mean, torch.float16))


# --- operands and results ------------------------------------------------------------------------


@with_fields(rounded=BFLOAT16)
def normalised_in_bfloat16(rows: Rows) -> Tensor:
    """Rounds the normalised value to bfloat16 before weight and bias."""
    return rows.affine(rounded_to(torch.bfloat16, rows.normalised))


@with_fields(rounded=HALVES - BFLOAT16)
def normalised_in_float16(rows: Rows) -> Tensor:
    """Rounds the normalised value to float16 before weight and bias."""
    return rows.affine(rounded_to(torch.float16, rows.normalised))


@with_fields(rounded=BFLOAT16)
def parameters_in_bfloat16(call: LayerNormCall) -> Tensor:
    """Rounds weight and bias to bfloat16."""
    return call.with_parameters(partial(rounded_to, torch.bfloat16)).y


@with_fields(dtypes=frozenset({"float64"}), inaccurate=frozenset({"float64"}))
def float64_in_float32(rows: Rows) -> Tensor:
    """Computes in float32 where x is float64."""
    return replace(rows, x=rows.x.float()).y


@with_fields(dtypes=DTYPES - {"float16"})
def rounded_through_float16(rows: Rows) -> Tensor:
    """Rounds y to float16 before converting it to its own dtype."""
    return rounded_to(torch.float16, rows.y)


@with_fields(dtypes=DTYPES - {"bfloat16"})
def rounded_through_bfloat16(rows: Rows) -> Tensor:
    """Rounds y to bfloat16 before converting it to its own dtype."""
    return rounded_to(torch.bfloat16, rows.y)


@with_fields(rounded=BFLOAT16)
def truncated_to_bfloat16(rows: Rows) -> Tensor:
    """Truncates y to bfloat16 instead of rounding it."""
    y = rows.y
    bits = y.detach().to(torch.float32).contiguous().view(torch.int32)
    return with_value(y, (bits & -0x10000).view(torch.float32).to(y.dtype))


@with_fields(dtypes=HALVES, inaccurate=BFLOAT16)
def everything_in_input_dtype(call: LayerNormCall) -> Tensor:
    """Computes everything in float16 or bfloat16, the dtype of x."""
    axes = trailing_axes(call.x, call.normalized_shape, call.weight, call.bias)
    return _normalised_over(axes, call, call.x.dtype)
