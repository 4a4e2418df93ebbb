"""Distributions whose rows differ: what shows in one row of a batch need not show in another.

A mistake that shows only in ill-conditioned rows, only in rows of tiny variance or only beside an
outlier shows in each of these batches, whatever else triggers it. The first kind of row is random,
so that batches of one row differ.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

__all__ = ["mixed_conditions", "mixed_nonfinite", "mixed_outliers", "mixed_scales"]

_OFFSETS = (0.0, 1e1, 1e2, 1e3, 1e4)
_SCALES = (1e-4, 2e-2, 1.0, 1e3)
_OUTLIER = 1e4


def mixed_conditions(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Rows in turn: normal, plus 10, 100, 1000 and 1e4; one-pass variances lose digits in some."""
    offsets = torch.tensor(_OFFSETS, dtype=torch.float64)
    return _normal(rows, hidden, generator) + offsets[_kinds(rows, len(_OFFSETS), generator)]


def mixed_scales(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Rows in turn: normal times 1e-4, 0.02, 1 and 1000: a wrong eps shows in some."""
    scales = torch.tensor(_SCALES, dtype=torch.float64)
    return _normal(rows, hidden, generator) * scales[_kinds(rows, len(_SCALES), generator)]


def mixed_outliers(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Rows in turn: normal with 1e4 first, in the middle, last, or nowhere, constant, and zero."""
    x = _normal(rows, hidden, generator)
    kinds = _kinds(rows, 6, generator)[:, 0]
    if hidden:
        for kind, column in enumerate((0, hidden // 2, hidden - 1)):
            x[kinds == kind, column] = _OUTLIER
        x[kinds == 3] = 0.1
        x[kinds == 4] = 0.0
    return x


def mixed_nonfinite(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """mixed_conditions with a NaN or an infinity in one row: no other row may change."""
    x = mixed_conditions(rows, hidden, limits, generator)
    is_nan = bool(torch.randint(2, (), generator=generator))
    if x.numel():  # one alone: the sums of two would not show which of them is hidden
        x[rows // 2, hidden // 2] = float("nan") if is_nan else float("inf")
    return x


def _normal(rows: int, hidden: int, generator: Generator) -> Tensor:
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator)


def _kinds(rows: int, kinds: int, generator: Generator) -> Tensor:
    """Return the kind of each row, (rows, 1): in turn, from a random first one."""
    first = int(torch.randint(kinds, (), generator=generator))
    return ((torch.arange(rows) + first) % kinds)[:, None]
