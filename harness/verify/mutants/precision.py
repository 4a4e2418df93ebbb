"""Mutants that compute the right function with too few digits.

They are held to statistics in float32 or wider, as is every function that declares nothing. A
single tolerance per dtype lets most of them pass.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.mutant import DTYPES, HALVES, on_call, on_rows, rounded_to, with_value
from implementations.contract import scale_and_shift, trailing_axes

_NOT_BFLOAT16 = DTYPES - {"bfloat16"}
_NOT_FLOAT16 = DTYPES - {"float16"}
_LONG = 4096  # elements that kernels keep in registers; longer rows have a path of their own


# --- statistics ----------------------------------------------------------------------------------


@on_rows()
def statistics_in_bfloat16(rows: Rows) -> Tensor:
    """Rounds mean and rstd to bfloat16 before using them."""
    mean, rstd = rounded_to(torch.bfloat16, rows.mean), rounded_to(torch.bfloat16, rows.rstd)
    return rows.affine((rows.x - mean) * rstd)


@on_rows()
def mean_in_float16(rows: Rows) -> Tensor:
    """Rounds the mean to float16 before subtracting it."""
    return rows.affine((rows.x - rounded_to(torch.float16, rows.mean)) * rows.rstd)


@on_rows()
def squares_in_float16(rows: Rows) -> Tensor:
    """Squares the deviations in float16, where 256 squared is infinite."""
    squares = rounded_to(torch.float16, rows.deviation).to(torch.float16).square().to(rows.x.dtype)
    return rows.normalised_by(rows.mean, squares.mean(-1, keepdim=True))


@on_rows()
def newton_step_missing(rows: Rows) -> Tensor:
    """Uses a hardware estimate of 1/sqrt, off by 2^-12, without a Newton step."""
    mantissa, exponent = torch.frexp(rows.rstd.detach())
    guess = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    return rows.affine(rows.deviation * with_value(rows.rstd, guess))


@on_rows()
def eps_in_float16(rows: Rows) -> Tensor:
    """Rounds eps to float16, where 1e-5 is subnormal and becomes 1.0014e-5."""
    return replace(rows, eps=float(torch.tensor(rows.eps, dtype=torch.float16))).y


@on_rows()
def one_pass_in_disguise(rows: Rows) -> Tensor:
    """Computes the variance as E[x^2] - E[x]^2 although it declares two passes."""
    variance = rows.x.square().mean(-1, keepdim=True) - rows.mean.square()
    return rows.normalised_by(rows.mean, variance)


@on_rows()
def one_pass_clamped(rows: Rows) -> Tensor:
    """Computes the variance as E[x^2] - E[x]^2 clamped at 0, which hides NaN."""
    variance = rows.x.square().mean(-1, keepdim=True) - rows.mean.square()
    return rows.normalised_by(rows.mean, variance.clamp(min=0))


@on_rows()
def one_pass_in_long_rows(rows: Rows) -> Tensor:
    """Computes the variance of rows over 4096 as E[x^2] - E[x]^2, clamped at 0."""
    if rows.hidden <= _LONG:
        return rows.y
    variance = rows.x.square().mean(-1, keepdim=True) - rows.mean.square()
    return rows.normalised_by(rows.mean, variance.clamp(min=0))


# --- sums ----------------------------------------------------------------------------------------


def _running_mean(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean of each row by one running sum in ``dtype``, rounded at every step; (rows, 1)."""
    total = x.new_zeros(x.shape[0], dtype=dtype)
    for element in x.detach().to(dtype).unbind(1):
        total = total + element
    return with_value(x.mean(-1, keepdim=True), (total.to(x.dtype) / x.shape[1])[:, None])


def _with_running_sums(rows: Rows, dtype: torch.dtype) -> Tensor:
    mean = _running_mean(rows.x, dtype)
    variance = _running_mean((rows.x - mean).square(), dtype)
    return rows.normalised_by(mean, variance)


@on_rows()
def sums_in_bfloat16(rows: Rows) -> Tensor:
    """Sums each row in bfloat16, one element after the other."""
    return _with_running_sums(rows, torch.bfloat16)


@on_rows()
def sums_in_float16(rows: Rows) -> Tensor:
    """Sums each row in float16, one element after the other."""
    return _with_running_sums(rows, torch.float16)


# --- operands and results ------------------------------------------------------------------------


@on_rows()
def normalised_in_bfloat16(rows: Rows) -> Tensor:
    """Rounds the normalised value to bfloat16 before weight and bias."""
    return rows.affine(rounded_to(torch.bfloat16, rows.normalised))


@on_rows()
def normalised_in_float16(rows: Rows) -> Tensor:
    """Rounds the normalised value to float16 before weight and bias."""
    return rows.affine(rounded_to(torch.float16, rows.normalised))


@on_rows()
def parameters_in_bfloat16(rows: Rows) -> Tensor:
    """Rounds weight and bias to bfloat16."""
    weight, bias = (
        None if each is None else rounded_to(torch.bfloat16, each)
        for each in (rows.weight, rows.bias)
    )
    return replace(rows, weight=weight, bias=bias).y


@on_rows(dtypes=frozenset({"float64"}))
def float64_in_float32(rows: Rows) -> Tensor:
    """Computes in float32 where x is float64."""
    return replace(rows, x=rows.x.float()).y


@on_rows(dtypes=_NOT_FLOAT16)
def rounded_through_float16(rows: Rows) -> Tensor:
    """Rounds y to float16 before converting it to its own dtype."""
    return rounded_to(torch.float16, rows.y)


@on_rows(dtypes=_NOT_BFLOAT16)
def rounded_through_bfloat16(rows: Rows) -> Tensor:
    """Rounds y to bfloat16 before converting it to its own dtype."""
    return rounded_to(torch.bfloat16, rows.y)


@on_rows()
def truncated_to_bfloat16(rows: Rows) -> Tensor:
    """Truncates y to bfloat16 instead of rounding it."""
    y = rows.y
    bits = y.detach().to(torch.float32).contiguous().view(torch.int32)
    return with_value(y, (bits & -0x10000).view(torch.float32).to(y.dtype))


@on_call(dtypes=HALVES)
def everything_in_input_dtype(call: LayerNormCall) -> Tensor:
    """Computes everything in float16 or bfloat16, the dtype of x."""
    x = call.x
    axes = trailing_axes(x, call.normalized_shape, call.weight, call.bias)
    deviation = x - x.mean(axes, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(axes, keepdim=True) + call.eps)
    return scale_and_shift(deviation * rstd, call.weight, call.bias).to(x.dtype)
