"""Each contract check of a backward, of training and of second derivatives finds a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, WIDE, case_in, every_dtype, layer_norm, mutant, target
from torch import Tensor
from torch.nn import functional

from harness.verify.checks.gradients import (
    detects_in_place_changes,
    follows_parameter_updates,
    retained_graph_gives_same_gradients,
    returned_gradients_stay_unchanged,
    second_derivative_is_correct,
)


@every_dtype
def test_a_graph_that_its_backward_uses_up_is_found(dtype: str) -> None:
    wrong = mutant("used_up_by_the_backward")
    assert "dx" in str(retained_graph_gives_same_gradients(wrong, case_in(dtype)))


@every_dtype
def test_a_gradient_that_a_later_step_overwrites_is_found(dtype: str) -> None:
    wrong = mutant("gradient_buffer_reused")
    assert "dweight" in str(returned_gradients_stay_unchanged(wrong, case_in(dtype)))


@pytest.mark.parametrize("dtype", WIDE)
def test_a_second_derivative_without_a_term_is_found(dtype: str) -> None:
    wrong = mutant("second_derivative_of_constant_statistics")
    assert "respect to x" in str(second_derivative_is_correct(wrong, case_in(dtype)))


class _DxWithoutGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, dx_of: Any) -> Tensor:
        ctx.dx_of = dx_of
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        return dy, ctx.dx_of(dy.detach()) + 0 * dy, None


def test_a_second_derivative_that_is_silently_missing_is_found() -> None:
    """Its dx is recorded with respect to dy only."""

    def silent(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        def dx_of(dy: Tensor) -> Tensor:
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                y = layer_norm(leaf, shape, weight, bias, eps)
            return torch.autograd.grad(y, leaf, dy)[0]

        detached = layer_norm(x.detach(), shape, weight, bias, eps)
        y: Tensor = _DxWithoutGraph.apply(detached, x, dx_of)
        return y

    assert "respect to x" in str(second_derivative_is_correct(target(silent), CASE))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


def test_a_second_derivative_that_raises_is_not_wrong() -> None:
    once = target(lambda *each, **more: _Once.apply(layer_norm(*each, **more)))
    assert second_derivative_is_correct(once, CASE) is None


def test_inputs_changed_in_place_without_an_error_are_found() -> None:
    text = str(detects_in_place_changes(mutant("inputs_kept_unguarded"), CASE))
    assert "wrong dx" in text
    assert "if x is" in text


class _DxOfY(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, affine: Tensor) -> Tensor:
        y = affine.clone()
        ctx.kept = y, y.clone()
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, Tensor]:
        x, weight = ctx.saved_tensors
        now, before = ctx.kept
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = functional.layer_norm(leaf, x.shape[-1:], weight)
        (dx,) = torch.autograd.grad(y, leaf, dy)
        return dx + (now - before), None, dy


def test_a_result_changed_in_place_without_an_error_is_found() -> None:
    """A backward that computes from y: an in-place activation after it changes y."""

    def of_y(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        affine = layer_norm(x.detach() + 0 * x, shape, weight, bias, eps)  # dweight and dbias
        y: Tensor = _DxOfY.apply(x, weight, affine)
        return y

    text = str(detects_in_place_changes(target(of_y), CASE))
    assert "wrong dx" in text
    assert "if y is" in text


def test_a_frozen_weight_that_is_kept_is_found() -> None:
    kept: list[Tensor] = []

    def keeping(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        if weight.requires_grad:
            kept.clear()
            return functional.layer_norm(x, shape, weight, bias, eps)
        kept.extend([] if kept else [weight.detach().clone()])
        return functional.layer_norm(x, shape, kept[0], bias, eps)

    assert "frozen" in str(follows_parameter_updates(target(keeping), CASE))
