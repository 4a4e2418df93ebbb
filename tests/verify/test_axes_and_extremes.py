"""Contract checks of axes that share memory or are many, and of extreme values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, layer_norm, target, with_dy
from torch import Tensor

from harness.verify.checks import CHECKS

CHECK = {check.name: check for check in CHECKS}


def of_masked_rows(x: Tensor, *others: Any) -> Tensor:
    """Rows that are all -inf are taken for padding."""
    return layer_norm(x.masked_fill((x == -torch.inf).all(-1, keepdim=True), 0), *others)


def of_whole_numbers(x: Tensor, *others: Any) -> Tensor:
    is_summed = not x.requires_grad and x.abs().max() < 1 << 31 and bool((x == x.round()).all())
    overflows = is_summed and int(x.long().square().sum()) < 0
    return layer_norm(x, *others) * (1 + overflows)


def without_leading_axes(x: Tensor, shape: Any, *others: Any) -> Tensor:
    """The axes that are normalised begin where these sizes come first."""
    first = next(n for n in range(x.dim()) if x.shape[n:][: len(shape)] == shape)
    axes, last = [*range(first, first + len(shape))], [*range(-len(shape), 0)]
    return layer_norm(x.movedim(axes, last), shape, *others).movedim(last, axes)


def expanded_along_the_third(x: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x, *others)
    is_expanded = not x.requires_grad and x.dim() > 3 and x.stride(2) == 0
    return y[:, :, :1].expand_as(y) if is_expanded else y


def in_the_strides_of_x(x: Tensor, *others: Any) -> Tensor:
    y = layer_norm(x, *others)
    is_own = x.requires_grad or 0 in x.stride()
    return y if is_own else torch.empty_strided(x.shape, x.stride()).copy_(y)


class SumsExpanded(torch.autograd.Function):
    """Identity with a bias, whose gradient takes one row of dy times the size of the first axis."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, b: Tensor) -> Tensor:
        return y + b

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        strides = dy.stride()[:-1]
        rows = dy.flatten(0, -2)
        return dy, rows.sum(0) if any(strides) else rows[0] * len(dy)


def with_sums_of_expanded(x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Tensor:
    y = layer_norm(x, shape, w, None, eps)
    return y if b is None else SumsExpanded.apply(y, b)


def of_few_strides(x: Tensor, *others: Any) -> Tensor:
    """An x of more axes than the 12 that have a place is read as if it were contiguous."""
    if x.dim() <= 12 or x.is_contiguous():
        return layer_norm(x, *others)
    return layer_norm(x.as_strided(x.shape, x.contiguous().stride()), *others)


def with_eps_of(least: float, x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, w, b, eps if eps > least else 0.0)


def of_ones(x: Tensor, shape: Any, w: Any, *others: Any) -> Tensor:
    y = layer_norm(x, shape, w, *others)
    return y * torch.ones(shape) if w is None else y


of_scaled_dy = with_dy(lambda dy: dy * (1 / dy.abs().max()) * dy.abs().max())
without_tiny_dy = with_dy(lambda dy: dy * (dy.square().sum() > 0))


def without_tiny_rows(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(x * (x.square().sum() > 1e-29), *others[:-1], others[-1] or 1e-5)


SHARED, EXTREMES = "is_right_where_elements_share_memory", "is_right_at_extremes"
AXES = "is_correct_with_many_axes"
FUNCTIONS: list[tuple[str, Callable[..., Any], str]] = [
    (AXES, of_few_strides, "wrong y for an x of 1x1x2x2x2x2x2x2x2x2x2x2x2"),
    (AXES, without_leading_axes, "wrong y for an x of 3x4x6x3x4x6"),
    (SHARED, in_the_strides_of_x, "gives another y where the strides of x are (2, 8, 1), for an x"),
    (SHARED, expanded_along_the_third, "a y whose elements share memory where the strides of x"),
    (SHARED, with_sums_of_expanded, "another dbias where the strides of dy are (0, 0, 1)"),
    (EXTREMES, partial(with_eps_of, 5e-21), "gives a wrong y where eps is 5e-31 and x is 0"),
    (EXTREMES, without_tiny_rows, "gives a wrong y where eps is 0 and x is of the size 1e-16"),
    (EXTREMES, of_masked_rows, "gives a wrong y where all elements of a row are -inf"),
    (EXTREMES, of_whole_numbers, "gives a wrong y where x holds whole numbers of the size 2^31"),
    (EXTREMES, without_tiny_dy, "gives a wrong dx where dy is of the size 6e-30"),
    (EXTREMES, of_scaled_dy, "gives a dx that is not finite where dy is subnormal"),
    ("is_unchanged_by_modes_of_the_caller", of_ones, "y has dtype torch.float64"),
]


@pytest.mark.parametrize(("check", "function", "words"), FUNCTIONS)
def test_a_mistake_is_found_by_its_check(
    check: str, function: Callable[..., Any], words: str
) -> None:
    assert words in (CHECK[check](target(function), CASE) or "")
