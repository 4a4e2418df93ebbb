"""Interval arithmetic: numbers that are known up to a bound, their sums and products.

The centre of an interval is a double-double, so that its own rounding needs no allowance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.numerics import double_double as dd
from harness.numerics.double_double import Pair

__all__ = ["Enclosed", "exactly", "statistic"]

# the exact reference is within 13 units of 2^-53; a cube triples that, and 6 operations follow
_ORACLE = (3 * 13 + 6) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Enclosed:
    """Exact values within ``bound`` of ``value``; shapes broadcast."""

    value: Pair
    bound: Tensor
    """float64; infinite where the value is unknown."""

    @property
    def size(self) -> Tensor:
        """abs(value); 0 where it is not finite, since ``value`` itself carries that."""
        return self.value[0].nan_to_num(0.0, 0.0, 0.0).abs()

    def __add__(self, other: Enclosed) -> Enclosed:
        return Enclosed(dd.add(self.value, other.value), self.bound + other.bound)

    def __sub__(self, other: Enclosed) -> Enclosed:
        high, low = other.value
        return self + Enclosed((-high, -low), other.bound)

    def __mul__(self, other: Enclosed) -> Enclosed:
        bound = self.size * other.bound + other.size * self.bound + self.bound * other.bound
        return Enclosed(dd.multiply(self.value, other.value), bound)

    def row_sums(self) -> Enclosed:
        """Sum over the last axis, kept with size 1."""
        return Enclosed(dd.sum_over(self.value, -1), self.bound.sum(-1, keepdim=True))

    def columns(self, order: Tensor) -> Enclosed:
        """Return the columns at these indices."""
        high, low = self.value
        return Enclosed((high[:, order], low[:, order]), self.bound[:, order])

    def may_be_zero(self) -> bool | None:
        """Whether all can be 0; None if some are unknown and the others can."""
        possible = self.value[0].abs() <= self.bound  # False for NaN
        unknown = ~torch.isfinite(self.bound)
        if not bool((possible | unknown).all()):
            return False
        return None if bool(unknown.any()) else True


def exactly(value: Tensor | float) -> Enclosed:
    """Return float64 numbers that are known exactly."""
    known = torch.as_tensor(value, dtype=torch.float64)
    return Enclosed((known, torch.zeros_like(known)), torch.zeros_like(known))


def statistic(value: Tensor) -> Enclosed:
    """Return a value computed in a few operations from at most the cube of an exact statistic."""
    return Enclosed((value, torch.zeros_like(value)), _ORACLE * value.abs())
