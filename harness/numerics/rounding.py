"""How far apart the numbers of a dtype are, and what rounding to it costs."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["grain", "rounding", "spacing", "unit_roundoff"]

_SLACK = 1 + 2.0**-10  # the spacing is that of the exact value; the rounded value differs slightly
_EXPONENT_BITS = 0x7FF << 52
_DTYPES = {  # significand bits, smallest normal exponent
    torch.float16: (11, -14),
    torch.bfloat16: (8, -126),
    torch.float32: (24, -126),
    torch.float64: (53, -1022),
}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the spacing of ``dtype`` just above 1."""
    return 2.0 ** -_DTYPES[dtype][0]


def spacing(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Spacing of ``dtype`` at abs(value), a float64 tensor (one ulp); the least one at 0.

    The exponent bits of a float64 alone are the power of two at or below its size. For infinity
    and NaN the result is finite, so that an error there is infinitely many of it.
    """
    bits, smallest = _DTYPES[dtype]
    power = (value.contiguous().view(torch.int64) & _EXPONENT_BITS).view(torch.float64)
    return power.clamp_(2.0**smallest, 2.0**1023).mul_(2.0 ** (1 - bits))


def rounding(dtype: torch.dtype, exact: Tensor) -> Tensor:
    """Half an ulp: the result is rounded once, whatever else is right."""
    half = 0.5 * spacing(dtype, exact) * _SLACK
    # half of the smallest float64 is 0, and no error is within a bound of 0
    return half.clamp_(min=5e-324) if dtype is torch.float64 else half


def grain(value: Tensor) -> Tensor:
    """Return the largest power of two of which each float64 is a multiple; infinite for 0."""
    value = value.resolve_neg().contiguous()
    digits = (value.view(torch.int64) & ((1 << 52) - 1)) | (1 << 52)
    last = (digits & -digits).double().mul_(spacing(torch.float64, value))
    return last.masked_fill_(value == 0, float("inf"))
