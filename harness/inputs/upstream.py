"""Named gradients of y that a backward pass starts from, each saying what it breaks.

An upstream takes (rows, hidden, generator) and returns a float64 tensor (rows, hidden).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from harness.inputs.distributions import standard_normal

__all__ = ["UPSTREAMS", "Upstream"]

Upstream = Callable[[int, int, Generator], Tensor]


def shifted_normal(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Normal + 0.1: sums over many rows grow, and show a narrow accumulator."""
    return standard_normal(rows, hidden, generator) + 0.1


def centred_normal(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Normal: what most tests use, and what hides most."""
    return standard_normal(rows, hidden, generator)


def ones(rows: int, hidden: int, generator: Generator) -> Tensor:
    """All 1: dbias is the number of rows, exactly."""
    return torch.ones(rows, hidden, dtype=torch.float64)


def one_row(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Normal in the last row, 0 in all others: a row left out of the sums is missed."""
    dy = torch.zeros(rows, hidden, dtype=torch.float64)
    dy[-1:] = standard_normal(min(rows, 1), hidden, generator)
    return dy


def one_column(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Normal in the last column, 0 in all others: dx spreads it over the row by two means."""
    dy = torch.zeros(rows, hidden, dtype=torch.float64)
    dy[:, -1:] = standard_normal(rows, min(hidden, 1), generator)
    return dy


def tiny(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Normal times 1e-6: gradients as small as late in training."""
    return standard_normal(rows, hidden, generator) * 1e-6


UPSTREAMS: dict[str, Upstream] = {
    each.__name__: each
    for each in (shifted_normal, centred_normal, ones, one_row, one_column, tiny)
}
