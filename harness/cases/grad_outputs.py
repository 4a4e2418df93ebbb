"""Named gradients of y that a backward starts from. Each docstring says what the gradient breaks.

A function takes x (rows, hidden) and weight (hidden,), both float64 with the values as stored, and
a generator, and returns a float64 tensor (rows, hidden).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from harness.cases.distributions import cancelling, scaled_to, standard_normal, with_one
from harness.cases.layouts import (
    Registry,
    any_view,
    by_name,
    every_second,
    expanded_second,
    negated,
    padded_rows,
    storage_offset,
    transposed,
)

GradOutput = Callable[[Tensor, Tensor, Generator], Tensor]

_NUMBER = -0.75  # neither 1 nor a power of two; its sums are exact in any order


def shifted_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1: sums over many rows grow, which shows a narrow accumulator."""
    return standard_normal(len(x), x.shape[1], generator) + 0.1


def centred_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal: what most tests use; sums over rows stay small, which hides a narrow accumulator."""
    return standard_normal(len(x), x.shape[1], generator)


def ones(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """All 1: dbias is exactly the number of rows."""
    return torch.ones(x.shape, dtype=torch.float64)


def one_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal in the last row, 0 in all others: shows a last row left out of the sums."""
    dy = torch.zeros_like(x)
    dy[-1:] = standard_normal(min(len(x), 1), x.shape[1], generator)
    return dy


def scaled_rows(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal, rows in turn times 1, 1e-3, 1e-6 and 1e-9: shows one scale for all rows."""
    scales = 10.0 ** (-3.0 * (torch.arange(len(x), dtype=torch.float64) % 4))
    return standard_normal(len(x), x.shape[1], generator) * scales[:, None]


def few_rows(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """1 in one row, 1/300 in four, 0 in all others: their sum in bfloat16 stays 1.

    Half the spacing of bfloat16 at 1 is 1/256. The rows are the first one and the last of each
    quarter, so that portions of rows hold one of them each. The 1 is in the first or in the last of
    these rows, by column, since portions are added from either end. The bound of the sum stays
    small because dy is 0 in all other rows.
    """
    rows = len(x)
    dy = torch.zeros(x.shape, dtype=torch.float64)
    for count in (min(rows, 1), *(rows * quarter // 4 for quarter in range(1, 5))):
        dy[max(count - 1, 0) : count] = 1 / 300
    dy[:1, ::2] = 1
    dy[-1:, 1::2] = 1
    return dy


def zero(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Zero everywhere, as where a loss is masked: shows a division by the largest |dy|."""
    return torch.zeros_like(x)


def one_column(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal in the last column, 0 in all others: dx elsewhere comes from the two means alone."""
    dy = torch.zeros_like(x)
    dy[:, -1:] = standard_normal(len(x), min(x.shape[1], 1), generator)
    return dy


def tiny(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal times 1e-6: gradients as small as those late in training."""
    return standard_normal(len(x), x.shape[1], generator) * 1e-6


def huge(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal times 100: gradients as large as those of a scaled loss."""
    return standard_normal(len(x), x.shape[1], generator) * 100


def _largest(value: float) -> GradOutput:
    """Normal times a factor, so that the largest |dy| is a number: shows a limit on values."""

    def grad_output(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
        return scaled_to(standard_normal(len(x), x.shape[1], generator), value)

    return grad_output


def mirrored(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Rows whose sum is exactly 0, as of a margin loss: shows rows taken for masked ones."""
    return cancelling(len(x), x.shape[1], generator)


def inverse_weight(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """1/weight: dy * weight is 1 everywhere, so the exact dx is 0 and its terms cancel."""
    return (1 / torch.where(weight == 0, torch.ones_like(weight), weight)).expand(x.shape)


def normalised(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """xhat/weight: dy * weight is xhat, whose part in dx cancels; without eps dx is 0."""
    deviation = x - x.mean(-1, keepdim=True)
    xhat = deviation / deviation.square().mean(-1, keepdim=True).sqrt()
    # constant rows, and rows whose squares overflow, have no xhat
    return xhat.nan_to_num(0.0, 0.0, 0.0) * inverse_weight(x, weight, generator)


def expanded_ones(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """One 1 for all elements, with strides of 0, as y.sum().backward() gives: strides ignored."""
    return ones(x, weight, generator)


def expanded_number(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """One number for all elements, with strides of 0, as (-0.75 * y).sum() gives: taken for 1."""
    return torch.full(x.shape, _NUMBER, dtype=torch.float64)


def expanded_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal, the first axis with a stride of 0, as pooling over a batch gives."""
    return standard_normal(len(x), x.shape[1], generator)


def expanded_columns(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """One number for each row, with a last stride of 0, as y.sum(-1) gives: taken for one."""
    return (standard_normal(len(x), 1, generator) + 0.1).expand(x.shape)


def expanded_middle(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1, the second axis with a stride of 0, as pooling over a sequence gives.

    In an x of two axes it has no such stride.
    """
    return shifted_normal(x, weight, generator)


def transposed_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1, last axis with the largest stride: shows strides of dy that are ignored."""
    return shifted_normal(x, weight, generator)


def strided_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1 in every second element of a buffer, NaN in between."""
    return shifted_normal(x, weight, generator)


def padded_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1 with unused NaN after each row, as where y went into torch.cat."""
    return shifted_normal(x, weight, generator)


def any_view_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1, another view of a larger tensor for each shape, not that of x."""
    return shifted_normal(x, weight, generator)


def offset_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1, one element into its storage, as a slice is: shows an offset ignored."""
    return shifted_normal(x, weight, generator)


def negated_normal(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal plus 0.1, stored as -dy with the negative bit set: shows a bit that is ignored."""
    return shifted_normal(x, weight, generator)


def nan_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal with one NaN: only dx of its row and the sums of its column must be NaN."""
    return with_one(standard_normal(len(x), x.shape[1], generator), float("nan"))


def infinity_row(x: Tensor, weight: Tensor, generator: Generator) -> Tensor:
    """Normal with one infinity, as from a scaled loss that overflows: it must not be hidden."""
    return with_one(standard_normal(len(x), x.shape[1], generator), float("inf"))


GRAD_OUTPUTS: Registry[GradOutput] = by_name(
    shifted_normal, centred_normal, ones, one_row, scaled_rows, few_rows, zero, one_column, tiny,
    huge, mirrored, inverse_weight, normalised, expanded_ones, expanded_number, expanded_row,
    expanded_columns, expanded_middle, transposed_normal, strided_normal, padded_normal,
    any_view_normal, offset_normal, negated_normal, nan_row, infinity_row,
    largest=_largest,
)  # fmt: skip


def _expanded_from_one_element(dy: Tensor) -> Tensor:
    return dy.flatten()[0].clone().expand(dy.shape) if dy.numel() else dy


def _expanded_along_the_first_axis(dy: Tensor) -> Tensor:
    return dy[:1].clone().expand(dy.shape)


def _expanded_along_the_last_axis(dy: Tensor) -> Tensor:
    return dy[..., :1].clone().expand(dy.shape)


def _any_view(dy: Tensor) -> Tensor:
    return any_view(dy, drawn_from="dy")


LAYOUT_OF: dict[str, Callable[[Tensor], Tensor]] = {
    expanded_ones.__name__: _expanded_from_one_element,
    expanded_number.__name__: _expanded_from_one_element,
    expanded_row.__name__: _expanded_along_the_first_axis,
    expanded_columns.__name__: _expanded_along_the_last_axis,
    expanded_middle.__name__: expanded_second,
    transposed_normal.__name__: transposed,
    strided_normal.__name__: every_second,
    padded_normal.__name__: padded_rows,
    any_view_normal.__name__: _any_view,
    offset_normal.__name__: storage_offset,
    negated_normal.__name__: negated,
}
"""The layouts in memory of gradients that have one of their own."""
