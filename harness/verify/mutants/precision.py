"""Mutants that compute the right function with too few digits.

They are held to statistics in float32 or wider, as every function is that declares nothing. A
tolerance of one number per dtype lets most of them pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.verify.mutants.mutant import DTYPES, HALVES, Family, Rows, mutant, on_rows, with_value
from implementations.contract import scale_and_shift, trailing_axes

_NOT_BFLOAT16 = DTYPES - {"bfloat16"}
_NOT_FLOAT16 = DTYPES - {"float16"}


def _through(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Round ``value`` to ``dtype`` and keep it in its own."""
    return value.to(dtype).to(value.dtype)


# --- statistics ----------------------------------------------------------------------------------


@on_rows(Family.PRECISION)
def statistics_in_bfloat16(of: Rows) -> Tensor:
    """Rounds mean and rstd to bfloat16 before using them."""
    mean, rstd = _through(torch.bfloat16, of.mean), _through(torch.bfloat16, of.rstd)
    return of.affine((of.x - mean) * rstd)


@on_rows(Family.PRECISION)
def mean_in_float16(of: Rows) -> Tensor:
    """Rounds the mean to float16 before subtracting it."""
    return of.affine((of.x - _through(torch.float16, of.mean)) * of.rstd)


@on_rows(Family.PRECISION)
def squares_in_float16(of: Rows) -> Tensor:
    """Squares the deviations in float16, where 256 squared is infinite."""
    squares = _through(torch.float16, of.deviation).to(torch.float16).square().to(of.x.dtype)
    return of.normalised_by(of.mean, squares.mean(-1, keepdim=True))


@on_rows(Family.PRECISION)
def newton_step_missing(of: Rows) -> Tensor:
    """Takes a hardware's first guess of 1/sqrt, off by 2^-12, without the step that mends it."""
    mantissa, exponent = torch.frexp(of.rstd.detach())
    guess = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    return of.affine(of.deviation * with_value(of.rstd, guess))


@on_rows(Family.PRECISION)
def eps_in_float16(of: Rows) -> Tensor:
    """Rounds eps to float16, where 1e-5 is subnormal and becomes 1.0014e-5."""
    eps = float(torch.tensor(of.eps, dtype=torch.float16))
    return of.affine(of.deviation * torch.rsqrt(of.variance + eps))


@on_rows(Family.PRECISION)
def one_pass_in_disguise(of: Rows) -> Tensor:
    """Forms the variance as E[x^2] - E[x]^2 where it says two passes."""
    variance = of.x.square().mean(-1, keepdim=True) - of.mean.square()
    return of.normalised_by(of.mean, variance)


@on_rows(Family.PRECISION)
def one_pass_clamped(of: Rows) -> Tensor:
    """Forms the variance as E[x^2] - E[x]^2 and clamps it at 0, which turns NaN to garbage."""
    variance = of.x.square().mean(-1, keepdim=True) - of.mean.square()
    return of.normalised_by(of.mean, variance.clamp(min=0))


# --- sums ----------------------------------------------------------------------------------------


def _running_mean(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean over a row by one running sum in ``dtype``, rounded at every step; (rows, 1)."""
    total = x.new_zeros(x.shape[0], dtype=dtype)
    for element in x.detach().to(dtype).unbind(1):
        total = total + element
    return with_value(x.mean(-1, keepdim=True), (total.to(x.dtype) / x.shape[1])[:, None])


def _with_running_sums(of: Rows, dtype: torch.dtype) -> Tensor:
    mean = _running_mean(of.x, dtype)
    variance = _running_mean((of.x - mean).square(), dtype)
    return of.normalised_by(mean, variance)


@on_rows(Family.PRECISION)
def sums_in_bfloat16(of: Rows) -> Tensor:
    """Adds up each row in bfloat16, one element after the other."""
    return _with_running_sums(of, torch.bfloat16)


@on_rows(Family.PRECISION)
def sums_in_float16(of: Rows) -> Tensor:
    """Adds up each row in float16, one element after the other."""
    return _with_running_sums(of, torch.float16)


# --- operands and results ------------------------------------------------------------------------


@on_rows(Family.PRECISION)
def normalised_in_bfloat16(of: Rows) -> Tensor:
    """Rounds the normalised value to bfloat16 before weight and bias."""
    return of.affine(_through(torch.bfloat16, of.deviation * of.rstd))


@on_rows(Family.PRECISION)
def normalised_in_float16(of: Rows) -> Tensor:
    """Rounds the normalised value to float16 before weight and bias."""
    return of.affine(_through(torch.float16, of.deviation * of.rstd))


@on_rows(Family.PRECISION)
def parameters_in_bfloat16(of: Rows) -> Tensor:
    """Rounds weight and bias to bfloat16."""
    weight, bias = (
        None if each is None else _through(torch.bfloat16, each) for each in (of.weight, of.bias)
    )
    return scale_and_shift(of.deviation * of.rstd, weight, bias)


@on_rows(Family.PRECISION, dtypes=frozenset({"float64"}))
def float64_in_float32(of: Rows) -> Tensor:
    """Computes float64 in float32."""
    return Rows(of.x.float(), of.weight, of.bias, of.eps).y


@on_rows(Family.PRECISION, dtypes=_NOT_FLOAT16)
def rounded_through_float16(of: Rows) -> Tensor:
    """Rounds y to float16 on its way to its own dtype."""
    return _through(torch.float16, of.y)


@on_rows(Family.PRECISION, dtypes=_NOT_BFLOAT16)
def rounded_through_bfloat16(of: Rows) -> Tensor:
    """Rounds y to bfloat16 on its way to its own dtype."""
    return _through(torch.bfloat16, of.y)


@on_rows(Family.PRECISION)
def truncated_to_bfloat16(of: Rows) -> Tensor:
    """Cuts y to bfloat16 by dropping bits instead of rounding."""
    y = of.y
    bits = y.detach().to(torch.float32).contiguous().view(torch.int32)
    return with_value(y, (bits & -0x10000).view(torch.float32).to(y.dtype))


@mutant(Family.PRECISION, dtypes=HALVES)
def everything_in_input_dtype(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Computes in x's own float16 or bfloat16 throughout."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    deviation = x - x.mean(axes, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(axes, keepdim=True) + eps)
    return scale_and_shift(deviation * rstd, weight, bias).to(x.dtype)
