"""Mutants whose gradients are right only if all are computed, once, directly after the forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.verify.findings import RemarkKind
from harness.verify.mutants.analytic import terms_of
from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.mutant import (
    DTYPES,
    HALVES,
    RECORDING,
    CheckKind,
    Stateful,
    mutant,
    on_call,
    on_rows,
)

# --- frozen inputs -------------------------------------------------------------------------------


def _without_gradient(tensor: Tensor) -> Tensor:
    """The values of ``tensor``, with zeros as gradient."""
    return tensor.detach() + 0 * tensor


@on_call(directions=RECORDING, caught_by=CheckKind.GRAPH)
def frozen_weight_stops_dx(call: LayerNormCall) -> Tensor:
    """Returns zeros as dx where weight requires no gradient."""
    is_frozen = call.weight is not None and not call.weight.requires_grad
    return replace(call, x=_without_gradient(call.x)).y if is_frozen else call.y


@on_call(directions=RECORDING, caught_by=CheckKind.GRAPH)
def frozen_x_stops_dweight(call: LayerNormCall) -> Tensor:
    """Returns zeros as dweight where x requires no gradient, as in a first layer."""
    if call.weight is None or call.x.requires_grad:
        return call.y
    return replace(call, weight=_without_gradient(call.weight)).y


@on_call(directions=RECORDING, caught_by=CheckKind.GRAPH)
def recorded_for_x_alone(call: LayerNormCall) -> Tensor:
    """Returns y without a gradient where x requires no gradient."""
    return call.y if call.x.requires_grad else call.y.detach()


# --- what is kept between the passes -------------------------------------------------------------


class _Again(torch.autograd.Function):
    """Runs the forward once more in the backward, on what it kept, which it may overwrite."""

    @staticmethod
    def forward(
        ctx: Any, overwrites: bool, shape: Sequence[int], eps: float, *inputs: Tensor | None
    ) -> Tensor:
        ctx.overwrites, ctx.shape, ctx.eps = overwrites, shape, eps
        ctx.kept = inputs
        if overwrites:
            ctx.kept = tuple(None if each is None else each.clone() for each in inputs)
        x, weight, bias = inputs
        assert x is not None
        return LayerNormCall(x, shape, weight, bias, eps).y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[3:]
        inputs = [
            None if each is None else each.detach().requires_grad_(is_needed)
            for each, is_needed in zip(ctx.kept, needed, strict=True)
        ]
        with torch.enable_grad():
            x, weight, bias = inputs
            assert x is not None
            y = LayerNormCall(x, ctx.shape, weight, bias, ctx.eps).y
        leaves = [each for each in inputs if each is not None and each.requires_grad]
        gradients = iter(torch.autograd.grad(y, leaves, dy))
        if ctx.overwrites:
            ctx.kept[0].zero_()
        return None, None, None, *(next(gradients) if each else None for each in needed)


def _run_again(call: LayerNormCall, *, overwrites: bool) -> Tensor:
    y: Tensor = _Again.apply(  # type: ignore[no-untyped-call]
        overwrites, call.normalized_shape, call.eps, call.x, call.weight, call.bias
    )
    return y


@on_call(directions=RECORDING, caught_by=CheckKind.GRAPH, remark=RemarkKind.CHANGES_UNNOTICED)
def inputs_kept_unguarded(call: LayerNormCall) -> Tensor:
    """Keeps its inputs without save_for_backward, so that later changes to them go unnoticed."""
    return _run_again(call, overwrites=False)


@on_call(directions=RECORDING, caught_by=CheckKind.GRAPH)
def used_up_by_the_backward(call: LayerNormCall) -> Tensor:
    """Overwrites in its backward what a second backward needs."""
    return _run_again(call, overwrites=True)


class _IntoBuffer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, buffers: dict[object, Tensor]) -> Tensor:
        ctx.buffers = buffers
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        key = gradient.shape, gradient.dtype
        return ctx.buffers.setdefault(key, torch.empty_like(gradient)).copy_(gradient), None


class _GradientBufferReused(Stateful):
    """Returns dweight in the same memory every time."""

    def __init__(self) -> None:
        self._buffers: dict[object, Tensor] = {}

    def y(self, call: LayerNormCall) -> Tensor:
        if call.weight is None:
            return call.y
        weight = _IntoBuffer.apply(call.weight, self._buffers)  # type: ignore[no-untyped-call]
        return replace(call, weight=weight).y


gradient_buffer_reused = mutant(directions=RECORDING, caught_by=CheckKind.GRAPH)(
    _GradientBufferReused
)


# --- second derivatives --------------------------------------------------------------------------


class _OfSavedStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        rows = Rows(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, rows.mean, rows.rstd)
        ctx.eps = eps
        return rows.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        terms = terms_of(dy, x, mean, rstd, weight, ctx.eps)
        return *terms.right.of_inputs(weight, bias), None


@on_rows(
    dtypes=DTYPES - HALVES,
    directions=RECORDING,
    caught_by=CheckKind.GRAPH,
    remark=RemarkKind.SECOND_DERIVATIVE_WRONG,
)
def second_derivative_of_constant_statistics(rows: Rows) -> Tensor:
    """Treats mean and rstd as constants where its gradients are differentiated again."""
    y: Tensor = _OfSavedStatistics.apply(  # type: ignore[no-untyped-call]
        rows.x, rows.weight, rows.bias, rows.eps
    )
    return y
