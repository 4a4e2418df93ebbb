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
    product_size: Tensor
    """Sum of abs(dy xhat), as large as it can be computed."""
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
            product_size=nothing,
            inherited=nothing,
        )

    def __add__(self, other: ColumnSums) -> ColumnSums:
        return ColumnSums(
            addends=self.addends + other.addends,
            size=self.size + other.size,
            grain=torch.minimum(self.grain, other.grain),
            product_size=self.product_size + other.product_size,
            inherited=self.inherited + other.inherited,
        )

    def additions(self, chain: float, size: Tensor, total: Tensor, u: float) -> Tensor:
        """Return how much the additions of a sum over the rows can round, (1, hidden), over u.

        Args:
            chain: the most roundings that an addend can meet.
            size: sum of the absolute values of the addends.
            total: absolute value of their sum.
            u: unit roundoff of the additions.
        """
        # k - 1 additions, and one more for a mean that is multiplied by the number of rows
        count = self.addends.clamp(min=1)
        # no partial sum exceeds that of the positive addends, or that of the negative ones
        largest = (size + total) / 2 * (1 + count * u)
        return torch.minimum(count.clamp(max=chain) * size, count * largest)
