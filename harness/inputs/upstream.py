"""Named gradients of y that a backward pass starts from, each saying what it breaks.

An upstream takes x (rows, hidden) and weight (hidden,), both float64 with the values as stored,
and a generator, and returns a float64 tensor (rows, hidden).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from harness.inputs.distributions import standard_normal

__all__ = ["UPSTREAMS", "Upstream"]

Upstream = Callable[[Tensor, Tensor, Generator], Tensor]


def shifted_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal + 0.1: sums over many rows grow, and show a narrow accumulator."""
    return standard_normal(len(x), x.shape[1], generator) + 0.1


def centred_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal: what most tests use, and what hides most."""
    return standard_normal(len(x), x.shape[1], generator)


def ones(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """All 1: dbias is the number of rows, exactly."""
    return torch.ones(x.shape, dtype=torch.float64)


def one_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal in the last row, 0 in all others: a row left out of the sums is missed."""
    rows, hidden = x.shape
    dy = torch.zeros(rows, hidden, dtype=torch.float64)
    dy[-1:] = standard_normal(min(rows, 1), hidden, generator)
    return dy


def one_column(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal in the last column, 0 in all others: dx spreads it over the row by two means."""
    rows, hidden = x.shape
    dy = torch.zeros(rows, hidden, dtype=torch.float64)
    dy[:, -1:] = standard_normal(rows, min(hidden, 1), generator)
    return dy


def tiny(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal times 1e-6: gradients as small as late in training."""
    return standard_normal(len(x), x.shape[1], generator) * 1e-6


def huge(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal times 100: gradients as large as a scaled loss makes them."""
    return standard_normal(len(x), x.shape[1], generator) * 100


def inverse_weight(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """1/weight: dy weight is 1 everywhere, so that dx is 0 and only what cancels is left."""
    return (1 / torch.where(weight == 0, torch.ones_like(weight), weight)).expand(x.shape)


def normalised(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """xhat/weight: dy weight is xhat, which dx has taken out; without eps it is 0."""
    deviation = x - x.mean(-1, keepdim=True)
    xhat = deviation / deviation.square().mean(-1, keepdim=True).sqrt()
    # rows without spread, or whose squares leave the range, have none
    return xhat.nan_to_num(0.0, 0.0, 0.0) * inverse_weight(x, weight, generator)


UPSTREAMS: dict[str, Upstream] = {
    each.__name__: each
    for each in (
        shifted_normal,
        centred_normal,
        ones,
        one_row,
        one_column,
        tiny,
        huge,
        inverse_weight,
        normalised,
    )
}
