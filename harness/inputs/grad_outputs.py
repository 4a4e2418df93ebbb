"""Named gradients of y that a backward pass starts from, each saying what it breaks.

An grad_output takes x (rows, hidden) and weight (hidden,), both float64 with the values as stored,
and a generator, and returns a float64 tensor (rows, hidden).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from harness.inputs.distributions import standard_normal

__all__ = ["GRAD_OUTPUTS", "Output"]

Output = Callable[[Tensor, Tensor, Generator], Tensor]


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


def few_rows(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """1 in one row of five, 1/300 in four, 0 in all others: added in bfloat16 it remains 1.

    Half the spacing of bfloat16 at 1 is 1/256. The rows are the first one and the last of each
    quarter, so that no two are in one portion; the 1 is in the first or in the last of them, column
    by column, since portions are added from either end. What a sum over as many rows may lose is
    little beside them, where dy is 0 in all others.
    """
    rows = len(x)
    dy = torch.zeros(x.shape, dtype=torch.float64)
    for count in (min(rows, 1), *(rows * quarter // 4 for quarter in range(1, 5))):
        dy[max(count - 1, 0) : count] = 1 / 300
    dy[:1, ::2] = 1
    dy[-1:, 1::2] = 1
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


def nan_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal with one NaN: dx of its row is NaN and its column's sums are, and nothing else is."""
    return _poisoned(x, generator, float("nan"))


def infinity_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal with one infinity, as where a scaled loss overflows: it must be seen, as NaN must."""
    return _poisoned(x, generator, float("inf"))


def _poisoned(x: Tensor, generator: Generator, value: float) -> Tensor:
    rows, hidden = x.shape
    dy = standard_normal(rows, hidden, generator)
    if dy.numel():
        dy[rows // 2, hidden // 2] = value
    return dy


GRAD_OUTPUTS: dict[str, Output] = {
    each.__name__: each
    for each in (
        shifted_normal,
        centred_normal,
        ones,
        one_row,
        few_rows,
        one_column,
        tiny,
        huge,
        inverse_weight,
        normalised,
        nan_row,
        infinity_row,
    )
}
