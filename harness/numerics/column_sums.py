"""What the bounds of sums over rows need, collected block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ColumnSums"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSums:
    """What the bounds of dweight and dbias need of a block of rows; each (1, hidden) float64."""

    addends: Tensor
    """Rows whose dy is not 0."""
    size: Tensor
    """Sum of abs(dy)."""
    grain: Tensor
    """The largest power of two of which every dy is a multiple; infinite without addends."""
    per_rounding: Tensor
    """Error of dweight for each rounding that every addend meets."""
    inherited: Tensor
    """Error of dweight from the addends themselves; infinite without a guarantee."""

    @classmethod
    def without_rows(cls, hidden: int) -> ColumnSums:
        """Return the sums over no rows."""
        nothing = torch.zeros((1, hidden), dtype=torch.float64)
        return cls(
            addends=nothing,
            size=nothing,
            grain=torch.full_like(nothing, float("inf")),
            per_rounding=nothing,
            inherited=nothing,
        )

    def __add__(self, other: ColumnSums) -> ColumnSums:
        return ColumnSums(
            addends=self.addends + other.addends,
            size=self.size + other.size,
            grain=torch.minimum(self.grain, other.grain),
            per_rounding=self.per_rounding + other.per_rounding,
            inherited=self.inherited + other.inherited,
        )
