"""Mutants whose gradients are right when all are asked for, once, right after the forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.analytic import Terms
from harness.verify.mutants.mutant import (
    DTYPES,
    HALVES,
    Check,
    Family,
    Remembering,
    Rows,
    layer_norm_of,
    mutant,
)

_RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})

_right = layer_norm_of(lambda of: of.y)


# --- frozen inputs -------------------------------------------------------------------------------


def _without_gradient(tensor: Tensor) -> Tensor:
    """Its values, with zeros for a gradient."""
    return tensor.detach() + 0 * tensor


@mutant(Family.GRAPH, directions=_RECORDING, caught_by=Check.GRAPH)
def frozen_weight_stops_dx(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns zeros for dx where weight asks for no gradient."""
    is_frozen = weight is not None and not weight.requires_grad
    return _right(_without_gradient(x) if is_frozen else x, normalized_shape, weight, bias, eps)


@mutant(Family.GRAPH, directions=_RECORDING, caught_by=Check.GRAPH)
def frozen_x_stops_dweight(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns zeros for dweight where x asks for no gradient, as that of a first layer does not."""
    if weight is not None and not x.requires_grad:
        weight = _without_gradient(weight)
    return _right(x, normalized_shape, weight, bias, eps)


@mutant(Family.GRAPH, directions=_RECORDING, caught_by=Check.GRAPH)
def recorded_for_x_alone(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns a y that autograd does not know where x asks for no gradient."""
    y = _right(x, normalized_shape, weight, bias, eps)
    return y if x.requires_grad else y.detach()


# --- what is kept between the passes -------------------------------------------------------------


class _Again(torch.autograd.Function):
    """Runs the forward once more in the backward, on what it has kept, which it may use up."""

    @staticmethod
    def forward(
        ctx: Any, uses_up: bool, shape: Sequence[int], eps: float, *inputs: Tensor | None
    ) -> Tensor:
        ctx.uses_up, ctx.shape, ctx.eps = uses_up, shape, eps
        ctx.kept = inputs
        if uses_up:
            ctx.kept = tuple(None if each is None else each.clone() for each in inputs)
        x, weight, bias = inputs
        assert x is not None
        return _right(x, shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        inputs = [
            None if each is None else each.detach().requires_grad_(is_wanted)
            for each, is_wanted in zip(ctx.kept, wanted, strict=True)
        ]
        with torch.enable_grad():
            x, weight, bias = inputs
            assert x is not None
            y = _right(x, ctx.shape, weight, bias, ctx.eps)
        leaves = [each for each in inputs if each is not None and each.requires_grad]
        found = iter(torch.autograd.grad(y, leaves, dy))
        if ctx.uses_up:
            ctx.kept[0].zero_()
        return None, None, None, *(next(found) if each else None for each in wanted)


@mutant(
    Family.GRAPH,
    directions=_RECORDING,
    caught_by=Check.GRAPH,
    remark=RemarkKind.CHANGES_UNNOTICED,
)
def inputs_kept_unguarded(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Keeps its inputs without save_for_backward: what is written there since is not noticed."""
    y: Tensor = _Again.apply(  # type: ignore[no-untyped-call]
        False, normalized_shape, eps, x, weight, bias
    )
    return y


@mutant(Family.GRAPH, directions=_RECORDING, caught_by=Check.GRAPH)
def used_up_by_the_backward(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Writes over what it has kept in its backward, as if that came only once."""
    y: Tensor = _Again.apply(  # type: ignore[no-untyped-call]
        True, normalized_shape, eps, x, weight, bias
    )
    return y


class _IntoBuffer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, buffers: dict[object, Tensor]) -> Tensor:
        ctx.buffers = buffers
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        key = gradient.shape, gradient.dtype
        return ctx.buffers.setdefault(key, torch.empty_like(gradient)).copy_(gradient), None


class _GradientBufferReused(Remembering):
    """Returns dweight in the same memory every time."""

    def __init__(self) -> None:
        self._buffers: dict[object, Tensor] = {}

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if weight is not None:
            weight = _IntoBuffer.apply(weight, self._buffers)  # type: ignore[no-untyped-call]
        return _right(x, normalized_shape, weight, bias, eps)


gradient_buffer_reused = mutant(Family.GRAPH, directions=_RECORDING, caught_by=Check.GRAPH)(
    _GradientBufferReused
)


# --- once more -----------------------------------------------------------------------------------


class _OfSavedStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        of = Rows(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, of.mean, of.rstd)
        ctx.eps = eps
        return of.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        scale = x.new_ones(x.shape[1]) if weight is None else weight.to(x.dtype)
        found = Terms(dy, x, mean, rstd, scale, ctx.eps).right
        return (
            found.dx,
            None if weight is None else found.dweight.to(weight.dtype),
            None if bias is None else found.dbias.to(bias.dtype),
            None,
        )


@mutant(
    Family.GRAPH,
    dtypes=DTYPES - HALVES,
    directions=_RECORDING,
    caught_by=Check.GRAPH,
    remark=RemarkKind.SECOND_DERIVATIVE_WRONG,
)
@layer_norm_of
def second_derivative_of_constant_statistics(of: Rows) -> Tensor:
    """Takes mean and rstd for constants where its gradients are differentiated again."""
    y: Tensor = _OfSavedStatistics.apply(  # type: ignore[no-untyped-call]
        of.x, of.weight, of.bias, of.eps
    )
    return y
