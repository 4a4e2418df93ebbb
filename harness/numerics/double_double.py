"""Double-double arithmetic on float64 tensors: a value is an unevaluated sum high + low.

About 106 bits. Every operation here is a fixed sequence of float64 operations whose rounding
errors are recovered exactly; it must therefore never be compiled, fused or contracted.
Algorithms: Dekker, Numer. Math. 18 (1971) 224-242; Knuth, TAOCP 2, section 4.2.2; Hida, Li and
Bailey, ARITH-15 (2001) 155-162.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "Pair",
    "add",
    "add_float",
    "divide_float",
    "multiply",
    "multiply_float",
    "rsqrt",
    "scale",
    "sum_over",
    "two_product",
    "two_sum",
]

Pair = tuple[Tensor, Tensor]
"""(high, low): the number is their exact sum, and high is that sum rounded."""

_SPLITTER = 2.0**27 + 1  # Dekker: cuts 53 bits into 26 and 26


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """Sum of two floats and its rounding error, exactly."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _fast_two_sum(a: Tensor, b: Tensor) -> Pair:
    """As :func:`two_sum`, given abs(a) >= abs(b)."""
    total = a + b
    return total, b - (total - a)


def _split(a: Tensor) -> Pair:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Tensor, b: Tensor) -> Pair:
    """Product of two floats and its rounding error, exactly (barring over- and underflow)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def add(a: Pair, b: Pair) -> Pair:
    """Sum, by the accurate ("IEEE") variant: no cancellation can lose more than one ulp."""
    total, error = two_sum(a[0], b[0])
    low_total, low_error = two_sum(a[1], b[1])
    total, error = _fast_two_sum(total, error + low_total)
    return _fast_two_sum(total, error + low_error)


def add_float(a: Pair, b: Tensor) -> Pair:
    """Sum of a pair and a float."""
    total, error = two_sum(a[0], b)
    return _fast_two_sum(total, error + a[1])


def multiply(a: Pair, b: Pair) -> Pair:
    """Product of two pairs."""
    product, error = two_product(a[0], b[0])
    return _fast_two_sum(product, error + (a[0] * b[1] + a[1] * b[0]))


def multiply_float(a: Pair, b: Tensor) -> Pair:
    """Product of a pair and a float."""
    product, error = two_product(a[0], b)
    return _fast_two_sum(product, error + a[1] * b)


def divide_float(a: Pair, b: float) -> Pair:
    """Quotient of a pair and a float."""
    divisor = torch.full_like(a[0], b)
    quotient = a[0] / divisor
    product, error = two_product(quotient, divisor)
    remainder = (a[0] - product) - error + a[1]
    return _fast_two_sum(quotient, remainder / divisor)


def rsqrt(a: Pair) -> Pair:
    """1/sqrt(a): one Newton step in double-double from the float64 value.

    Where the float64 value is not finite (a is 0, negative or NaN) it is returned as it is.
    """
    start = 1.0 / torch.sqrt(a[0])
    residual_high, residual_low = multiply(a, two_product(start, start))
    residual = (1.0 - residual_high) - residual_low
    high, low = _fast_two_sum(start, 0.5 * start * residual)
    finite = torch.isfinite(start)
    return torch.where(finite, high, start), torch.where(finite, low, torch.zeros_like(low))


def scale(a: Tensor, exponent: Tensor) -> Tensor:
    """a * 2**exponent, exactly where the result is normal; ``exponent`` holds integers.

    It takes two steps, since 2**exponent alone may over- or underflow. torch.ldexp is not used: it
    has formed the power in float32.
    """
    half = exponent >> 1
    return a * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent.to(torch.int64).clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def sum_over(a: Pair, dim: int) -> Pair:
    """Sum over one axis, kept with size 1, as a tree: error grows with log2 of its length."""
    high, low = a[0].movedim(dim, 0), a[1].movedim(dim, 0)
    if not high.shape[0]:
        high = low = high.new_zeros((1, *high.shape[1:]))
    while (count := high.shape[0]) > 1:
        half = count // 2
        front, back = slice(0, half), slice(half, 2 * half)
        total = add((high[front], low[front]), (high[back], low[back]))
        odd = slice(2 * half, count)  # one element, or none
        high, low = torch.cat([total[0], high[odd]]), torch.cat([total[1], low[odd]])
    return high.movedim(0, dim), low.movedim(0, dim)
