"""The exact result of a case, forward and backward, in blocks of rows.

Two references, both from the tensors as stored and with eps taken as the Python double it is:

* ``float64_twice_centred``: two-pass in float64 with the mean of the deviations removed as well.
  ``x - mean`` is exact where the condition number is large (Sterbenz), so the error of the mean
  becomes the deviations' own mean, and is removed with it. The result is within 13 units of 2^-53
  of the exact normalised value up to a condition number of 1e12: some 2e-8 ulp of a float32 result.
* ``double_double``: the same in 106 bits, with rows scaled by a power of two so that no square
  over- or underflows. It is used for float64, whose rounding errors the first would share.

Nothing here is ever compiled, and subnormal numbers are never flushed to zero: both would break
the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from harness.cases import Inputs
from harness.numerics import double_double as dd
from harness.numerics.double_double import Pair
from harness.records import Case

__all__ = ["DOUBLE_DOUBLE", "TWICE_CENTRED", "ExactRows", "Reference", "oracle_name"]

TWICE_CENTRED = "float64_twice_centred"
DOUBLE_DOUBLE = "double_double"

_BLOCK_ELEMENTS = 1 << 16  # a block's temporaries, some 20 of 512 KiB, stay near the cache
_KEPT_ELEMENTS = 1 << 22  # blocks of cases up to here are kept: 9 float64 tensors of 32 MiB
_SMALLEST_EXPONENT = -400  # below it a row's squares vanish beside any normal eps > 0


@dataclass(frozen=True, slots=True, eq=False)
class ExactRows:
    """The exact result for rows ``start`` to ``stop``; pairs are (high, low), unrounded."""

    start: int
    stop: int
    mean: Tensor
    """(rows, 1)"""
    variance: Tensor
    """(rows, 1), biased"""
    rstd: Tensor
    """(rows, 1), 1/sqrt(variance + eps)"""
    normalised: Pair
    """(rows, hidden), before weight and bias"""
    y: Pair
    """(rows, hidden)"""
    dx: Pair | None
    """(rows, hidden)"""
    dweight: Pair | None
    """(1, hidden): these rows' share of the sum over all rows"""
    dbias: Pair | None
    """(1, hidden), likewise"""


def oracle_name(dtype: str) -> str:
    """Return which reference serves a case of this dtype."""
    return DOUBLE_DOUBLE if dtype == "float64" else TWICE_CENTRED


class Reference:
    """The exact result of a case as an iterable of blocks; small ones are kept for the next use.

    ``spent_s`` counts the seconds spent in the reference itself.
    """

    def __init__(self, inputs: Inputs, case: Case) -> None:
        self.name = oracle_name(case.dtype)
        self.spent_s = 0.0
        self._inputs = inputs
        self._case = case
        self._kept: list[ExactRows] | None = None

    def __iter__(self) -> Iterator[ExactRows]:
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        keep = self._case.rows * self._case.hidden <= _KEPT_ELEMENTS
        step = rows_per_block(self._case.hidden)
        for start in range(0, self._case.rows, step):
            began = perf_counter()
            block = self._exact(start, start + step)
            self.spent_s += perf_counter() - began
            if keep:
                kept.append(block)
            yield block
        if keep:
            self._kept = kept

    def _exact(self, start: int, stop: int) -> ExactRows:
        case, inputs = self._case, self._inputs
        x = wide_rows(inputs.x, case, start, stop)
        dy = None if inputs.dy is None else wide_rows(inputs.dy, case, start, stop)
        weight = wide_parameter(inputs.weight, 1.0, case)
        bias = wide_parameter(inputs.bias, 0.0, case)
        exact = double_double if self.name == DOUBLE_DOUBLE else twice_centred
        return exact(x, weight, bias, case.eps, dy, start)


def rows_per_block(hidden: int) -> int:
    """Return the number of rows per block."""
    return max(1, _BLOCK_ELEMENTS // max(hidden, 1))


def wide_rows(tensor: Tensor, case: Case, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` of a tensor of x's shape as float64 (rows, hidden), exactly."""
    rows = tensor.detach().reshape(case.rows, case.hidden)
    return rows[start:stop].to(device="cpu", dtype=torch.float64)


def wide_parameter(parameter: Tensor | None, neutral: float, case: Case) -> Tensor:
    """Weight or bias as float64 (hidden,); a missing one has its neutral value."""
    if parameter is None:
        return torch.full((case.hidden,), neutral, dtype=torch.float64)
    return parameter.detach().reshape(case.hidden).to(device="cpu", dtype=torch.float64)


def twice_centred(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dy: Tensor | None, start: int = 0
) -> ExactRows:
    """Forward, and backward given ``dy``, of float64 rows (rows, hidden) in float64."""
    nothing = torch.zeros((), dtype=torch.float64)  # the low parts
    mean = x.mean(-1, keepdim=True)
    deviation = x - mean
    residual = deviation.mean(-1, keepdim=True)
    deviation = deviation - residual
    variance = deviation.square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    normalised = deviation * rstd
    dx = dweight = dbias = None
    if dy is not None:
        scaled = dy * weight
        across = (scaled * normalised).mean(-1, keepdim=True)
        dx = (rstd * (scaled - scaled.mean(-1, keepdim=True) - normalised * across), nothing)
        dweight = ((dy * normalised).sum(0, keepdim=True), nothing)
        dbias = (dy.sum(0, keepdim=True), nothing)
    return ExactRows(
        start=start,
        stop=start + x.shape[0],
        mean=mean + residual,
        variance=variance,
        rstd=rstd,
        normalised=(normalised, nothing),
        y=(normalised * weight + bias, nothing),
        dx=dx,
        dweight=dweight,
        dbias=dbias,
    )


def double_double(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dy: Tensor | None, start: int = 0
) -> ExactRows:
    """Forward, and backward given ``dy``, of float64 rows (rows, hidden) in double-double."""
    rows, hidden = x.shape
    zeros = torch.zeros_like(x)
    # sums are formed at the scale of x, squares at that of the deviations. Both scales are powers
    # of two, so that scaling is exact; a constant row is not scaled, and neither is its eps
    linear = _exponents(x)
    scaled_x = dd.scale(x, -linear)
    mean = dd.divide_float(dd.sum_over((scaled_x, zeros), -1), hidden)
    high, low = dd.add_float((-mean[0].expand_as(x), -mean[1].expand_as(x)), scaled_x)
    exponent = _exponents(high) + linear
    exponent = torch.where(high.any(-1, keepdim=True), exponent, torch.zeros_like(exponent))
    if eps > 0:
        exponent = exponent.clamp(min=_SMALLEST_EXPONENT)
    deviation = dd.scale(high, linear - exponent), dd.scale(low, linear - exponent)
    variance = dd.divide_float(dd.sum_over(dd.multiply(deviation, deviation), -1), hidden)
    scaled_eps = dd.scale(x.new_full((rows, 1), eps), -2 * exponent)
    rstd = dd.rsqrt(dd.add_float(variance, scaled_eps))
    normalised = dd.multiply(deviation, _expand(rstd, x))
    y = dd.add_float(dd.multiply_float(normalised, weight.expand_as(x)), bias.expand_as(x))
    dx = dweight = dbias = None
    if dy is not None:
        scaled = dd.two_product(dy, weight.expand_as(dy))
        plain = dd.divide_float(dd.sum_over(scaled, -1), hidden)
        across = dd.divide_float(dd.sum_over(dd.multiply(scaled, normalised), -1), hidden)
        inner = dd.add(scaled, _negate(_expand(plain, x)))
        inner = dd.add(inner, _negate(dd.multiply(normalised, _expand(across, x))))
        high, low = dd.multiply(inner, _expand(rstd, x))
        dx = (dd.scale(high, -exponent), dd.scale(low, -exponent))
        dweight = dd.sum_over(dd.multiply_float(normalised, dy), 0)
        dbias = dd.sum_over((dy, zeros), 0)
    return ExactRows(
        start=start,
        stop=start + rows,
        mean=dd.scale(mean[0], linear),
        variance=dd.scale(variance[0], 2 * exponent),
        rstd=dd.scale(rstd[0], -exponent),
        normalised=normalised,
        y=y,
        dx=dx,
        dweight=dweight,
        dbias=dbias,
    )


def _exponents(x: Tensor) -> Tensor:
    """Exponent of the largest element of each row, (rows, 1) integers; 0 for rows of zeros."""
    if not x.shape[1]:
        return torch.zeros((x.shape[0], 1), dtype=torch.int64)
    return torch.frexp(x.abs().amax(-1, keepdim=True))[1].to(torch.int64)


def _expand(pair: Pair, like: Tensor) -> Pair:
    return pair[0].expand_as(like), pair[1].expand_as(like)


def _negate(pair: Pair) -> Pair:
    return -pair[0], -pair[1]
