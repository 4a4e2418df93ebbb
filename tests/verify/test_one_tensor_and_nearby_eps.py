"""Checks of weight and bias in one memory, and of eps that are nearly equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factories.verify_targets import target
from torch import Tensor
from torch.nn.functional import layer_norm

from harness.records import Case, Direction
from harness.verify.checks import gradients, surroundings
from harness.verify.checks.contract_checks import ContractCheck
from implementations import native

CASE = Case(implementation="mine", shape=(6, 32), direction=Direction.BACKWARD)
ONE_TENSOR = gradients.takes_one_tensor_as_weight_and_bias
NEARBY_EPS = surroundings.tells_nearby_eps_apart


class _ByAddress(torch.autograd.Function):
    """Keeps the gradients of parameters by their address."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, w: Tensor, b: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, w, b)
        ctx.shape, ctx.eps = shape, eps
        return layer_norm(x, shape, w, b, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            y = layer_norm(leaves[0], ctx.shape, *leaves[1:], ctx.eps)
        dx, dweight, dbias = torch.autograd.grad(y, leaves, dy)
        kept = {ctx.saved_tensors[1].data_ptr(): dweight, ctx.saved_tensors[2].data_ptr(): dbias}
        return dx, None, *(kept[own.data_ptr()] for own in ctx.saved_tensors[1:]), None


def by_address(x: Tensor, shape: Any, w: Any = None, b: Any = None, eps: float = 1e-5) -> Any:
    norm = layer_norm if w is None or b is None else _ByAddress.apply
    return norm(x, shape, w, b, eps)


def tied(x: Tensor, shape: Any, w: Any = None, b: Any = None, eps: float = 1e-5) -> Tensor:
    return layer_norm(x, shape, w, None if b is w else b, eps)


def _rounding(digits: int) -> Any:
    first: dict[str, float] = {}

    def norm(x: Tensor, shape: Any, w: Any = None, b: Any = None, eps: float = 1e-5) -> Tensor:
        return layer_norm(x, shape, w, b, first.setdefault(f"{eps:.{digits}g}", eps))

    return norm


@pytest.mark.parametrize(
    ("check", "function"),
    [
        (ONE_TENSOR, by_address),
        (ONE_TENSOR, tied),
        *((NEARBY_EPS, _rounding(digits)) for digits in (1, 2, 3)),
    ],
)
def test_a_mistake_is_found(check: ContractCheck, function: Any) -> None:
    assert check(target(function), CASE)


@pytest.mark.parametrize("check", [ONE_TENSOR, NEARBY_EPS])
def test_a_right_one_passes(check: ContractCheck) -> None:
    assert check(native, CASE) is None
