"""Numbers known up to a bound, and what they add and multiply to: arithmetic of intervals.

The middle of an interval is a double-double, and so exact enough that nothing has to be added to
the half-width, the bound, for the arithmetic itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.numerics import double_double as dd
from harness.numerics.double_double import Pair

__all__ = ["Enclosed", "exactly", "statistic"]

# a cube of what is within 13 units of 2^-53, as all of the exact reference is, and 6 operations
_ORACLE = (3 * 13 + 6) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Enclosed:
    """Exact values somewhere within ``bound`` of ``value``; shapes broadcast."""

    value: Pair
    bound: Tensor
    """float64; infinite where nothing is known."""

    @property
    def size(self) -> Tensor:
        """abs(value), but 0 for what is not finite: it is the value that has to tell of that."""
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
        """The columns of these indices."""
        high, low = self.value
        return Enclosed((high[:, order], low[:, order]), self.bound[:, order])

    def may_be_zero(self) -> bool | None:
        """Whether all can be 0; None if that is open for some and possible for the others."""
        possible = self.value[0].abs() <= self.bound  # False for NaN
        open_ = ~torch.isfinite(self.bound)
        if not bool((possible | open_).all()):
            return False
        return None if bool(open_.any()) else True


def exactly(value: Tensor | float) -> Enclosed:
    """Float64 numbers that are known exactly."""
    known = torch.as_tensor(value, dtype=torch.float64)
    return Enclosed((known, torch.zeros_like(known)), torch.zeros_like(known))


def statistic(value: Tensor) -> Enclosed:
    """What comes of a statistic of the exact reference in a few operations, at most its cube."""
    return Enclosed((value, torch.zeros_like(value)), _ORACLE * value.abs())
