"""Shared memory, overlapping elements and ignored strides are found; free strides are allowed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from verify_targets import CASE, case_in, every_dtype, layer_norm, mutant, target, then

from harness.verify.checks.memory import (
    accepts_every_layout,
    elements_do_not_overlap,
    respects_argument_strides,
    respects_negative_bit,
    y_shares_no_memory,
)
from implementations import Implementation, UnsupportedError


@pytest.mark.parametrize(
    ("function", "owner"),
    [
        (lambda x, shape, weight, bias, eps: x.view_as(x), "x"),
        (lambda x, shape, weight, bias, eps: weight.expand_as(x), "weight"),
        (lambda x, shape, weight, bias, eps: bias.expand_as(x), "bias"),
    ],
    ids=["x", "weight", "bias"],
)
def test_a_result_in_an_arguments_memory_is_found(
    function: Callable[..., Tensor], owner: str
) -> None:
    assert f"memory of {owner}" in str(y_shares_no_memory(target(function), CASE))


def from_a_slab(step: int) -> Implementation:
    """A right LayerNorm, each result so many elements further on in one allocation."""
    slab, starts = torch.empty(1 << 12), itertools.count(0, step)

    def sliced(x: Tensor, *others: Any) -> Tensor:
        y = slab[next(starts) :][: x.numel()].view(x.shape)
        return y.copy_(layer_norm(x, *others))

    return target(sliced)


@pytest.mark.parametrize(
    ("step", "shares"), [(0, True), (1, True), (6 * 32 - 1, True), (6 * 32, False)]
)
def test_results_share_memory_if_they_overlap_in_one_allocation(step: int, shares: bool) -> None:
    assert (y_shares_no_memory(from_a_slab(step), CASE) is not None) is shares


class _WithGradients(torch.autograd.Function):
    """A right y; as gradients whatever ``change`` makes of zeros."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, change: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.change = change
        return layer_norm(x, x.shape[-1:], weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (
            None if each is None else ctx.change(name, each.new_zeros(each.shape))
            for name, each in zip(("dx", "dweight", "dbias"), ctx.saved_tensors, strict=True)
        )
        return (*gradients, None, None)


@pytest.mark.parametrize("name", ["dx", "dweight", "dbias"])
def test_a_gradient_whose_elements_overlap_is_found(name: str) -> None:
    def overlapping(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
        def change(of: str, zeros: Tensor) -> Tensor:
            return zeros.flatten()[:1].expand(zeros.shape) if of == name else zeros

        y: Tensor = _WithGradients.apply(x, *others, change)
        return y

    assert f"of {name} overlap" in str(elements_do_not_overlap(target(overlapping), CASE))


def overlapping_like_x(x: Tensor, *others: Any) -> Tensor:
    """Computes the rows that x has memory for, and gives y the strides of x."""
    rows = x[:1] if x.stride(0) == 0 else x
    return layer_norm(rows, *others).expand(x.shape)


@pytest.mark.parametrize("forward_only", [False, True])
def test_a_result_whose_elements_overlap_is_found(forward_only: bool) -> None:
    def function(*arguments: Any) -> Tensor:
        y = overlapping_like_x(*arguments)
        return y.detach() if forward_only else y

    text = elements_do_not_overlap(target(function, forward_only=forward_only), CASE)
    assert "of y overlap" in str(text)
    assert "expanded" in str(text)


def dense_only(x: Tensor, *others: Any) -> Tensor:
    if not x.is_contiguous():
        raise RuntimeError("x must be contiguous")
    return layer_norm(x, *others)


@pytest.mark.parametrize(
    "function",
    [
        then(lambda y: y.mT.contiguous().mT),
        then(lambda y: y.repeat(1, 2)[:, : y.shape[1]]),
        dense_only,
    ],
    ids=["transposed", "padded", "declined layout"],
)
def test_other_strides_and_declined_layouts_do_not_overlap(
    function: Callable[..., Tensor],
) -> None:
    assert elements_do_not_overlap(target(function), CASE) is None


class Declining(torch.autograd.Function):
    """Passes dy on, if it is contiguous."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, kind: type[Exception]) -> Tensor:
        ctx.kind = kind
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if not dy.is_contiguous():
            raise ctx.kind("needs a contiguous dy")
        return dy, None


def declining(kind: type[Exception]) -> Implementation:
    return target(lambda *each: Declining.apply(layer_norm(*each), kind))


@every_dtype
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("dy_strides_ignored", ("dx", "of dy", "padded_rows")),
        ("parameter_strides_ignored", ("y", "weight or bias", "every_second")),
    ],
)
def test_ignored_strides_are_found(name: str, facts: tuple[str, ...], dtype: str) -> None:
    text = str(respects_argument_strides(mutant(name), case_in(dtype)))
    assert all(fact in text for fact in facts)


@every_dtype
def test_an_ignored_negative_bit_of_dy_is_found(dtype: str) -> None:
    wrong, case = mutant("dy_negative_bit_ignored"), case_in(dtype)
    assert "of dy: negated" in str(respects_negative_bit(wrong, case))
    assert respects_argument_strides(wrong, case) is None


def test_the_layouts_of_dy_include_one_expanded_number() -> None:
    """y.sum() hands back one number, expanded: stride 0 in every direction."""
    seen: set[tuple[int, ...]] = set()

    class Watching(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return y.view_as(y)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            seen.add(dy.stride())
            return dy

    watching = target(lambda *each: Watching.apply(layer_norm(*each)))
    assert respects_argument_strides(watching, CASE) is None
    assert {(0, 0), (0, 1), (1, 6), (32, 1), (35, 1), (64, 2)} <= seen


def test_a_layout_that_raises_is_a_finding_unless_it_is_declared_unsupported() -> None:
    for kind in (UnsupportedError, RuntimeError):
        assert respects_argument_strides(declining(kind), CASE) is None
    assert accepts_every_layout(declining(UnsupportedError), CASE) is None
    text = str(accepts_every_layout(declining(RuntimeError), CASE))
    assert "RuntimeError: needs a contiguous dy" in text


@pytest.mark.parametrize(
    ("name", "is_found"), [("dy_strides_ignored", False), ("parameter_strides_ignored", True)]
)
def test_a_forward_only_target_is_checked_without_gradients(name: str, is_found: bool) -> None:
    text = respects_argument_strides(mutant(name, forward_only=True), CASE)
    assert (text is not None) is is_found
