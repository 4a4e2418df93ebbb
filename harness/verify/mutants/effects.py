"""Mutants with right results that write where they must not, or keep what was dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.verify.findings import RemarkKind
from harness.verify.mutants.analytic import terms_of
from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.mutant import (
    RECORDING,
    CheckKind,
    Stateful,
    mutant,
    on_call,
    on_rows,
)

_VECTOR = 4  # elements of a vector store
_MOST_KEPT = 1 << 12  # elements; larger ones would fill the memory
_BLOCK = 1024  # the most threads of a block

# --- memory beside a tensor ----------------------------------------------------------------------


def _clear_beside(tensor: Tensor) -> None:
    """Set the elements after the last one to zero, as a store of a whole vector does."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    after = int(tensor.storage_offset()) + last + 1
    elements = int(tensor.untyped_storage().nbytes()) // tensor.element_size()
    count = min(_VECTOR, elements - after)
    if tensor.numel() and count > 0:
        torch.as_strided(tensor.data, (count,), (1,), after).zero_()  # autograd does not notice it


@on_call(caught_by=CheckKind.EFFECT)
def memory_after_x_cleared(call: LayerNormCall) -> Tensor:
    """Writes zeros to the four elements after x, where x is a part of a larger tensor."""
    y = call.y
    _clear_beside(call.x)
    return y


@on_call(caught_by=CheckKind.EFFECT)
def memory_after_weight_cleared(call: LayerNormCall) -> Tensor:
    """Writes zeros to the four elements after weight, as if its length were rounded up."""
    y = call.y
    if call.weight is not None:
        _clear_beside(call.weight)
    return y


class _Identity(torch.autograd.Function):
    """Returns the value, and does something to the gradient or the inputs in the backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, effect: Any) -> Tensor:
        ctx.effect = effect
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.effect(gradient)
        return gradient, None


def _then(value: Tensor, effect: Any) -> Tensor:
    """Return ``value``; its backward calls ``effect`` with the gradient."""
    found: Tensor = _Identity.apply(value, effect)  # type: ignore[no-untyped-call]
    return found


@on_call(directions=RECORDING, caught_by=CheckKind.EFFECT)
def memory_after_dy_cleared(call: LayerNormCall) -> Tensor:
    """Writes zeros to the four elements after dy in the backward."""
    return _then(call.y, _clear_beside)


@on_call(directions=RECORDING, caught_by=CheckKind.EFFECT)
def bias_grad_written(call: LayerNormCall) -> Tensor:
    """Stores dbias in bias.grad itself, besides returning it to autograd."""
    bias = call.bias
    if bias is None or not (bias.requires_grad and bias.is_leaf):
        return call.y

    def store(gradient: Tensor) -> None:
        bias.grad = gradient.detach().clone()

    return replace(call, bias=_then(bias, store)).y


# --- tensors kept alive --------------------------------------------------------------------------


class _LastXKept(Stateful):
    """Keeps the x of the last call, as a module that stores it for inspection does."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def y(self, call: LayerNormCall) -> Tensor:
        self._kept = [call.x.detach()]
        return call.y


class _LastYOfLongRowsKept(Stateful):
    """Keeps the y of the last call whose rows have over 1,024 elements."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def y(self, call: LayerNormCall) -> Tensor:
        y = call.y
        if call.x.shape[-1] > _BLOCK:
            self._kept = [y.detach()]
        return y


class _LastDyKept(Stateful):
    """Keeps the dy of the last backward."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def y(self, call: LayerNormCall) -> Tensor:
        return _then(call.y, lambda dy: setattr(self, "_kept", [dy.detach()]))


class _EveryXCopied(Stateful):
    """Keeps a copy of every small x, so that memory grows with each call."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def y(self, call: LayerNormCall) -> Tensor:
        if call.x.numel() <= _MOST_KEPT:
            self._kept.append(call.x.detach().clone())
        return call.y


_keeping = mutant(caught_by=CheckKind.EFFECT)

last_x_kept = _keeping(_LastXKept)
last_y_of_long_rows_kept = _keeping(_LastYOfLongRowsKept)
last_dy_kept = mutant(directions=RECORDING, caught_by=CheckKind.EFFECT)(_LastDyKept)
every_x_copied = _keeping(_EveryXCopied)


@on_call(caught_by=CheckKind.EFFECT, remark=RemarkKind.KEPT_IN_A_CYCLE)
def x_in_a_reference_cycle(call: LayerNormCall) -> Tensor:
    """Leaves x in a reference cycle, which keeps its memory until the cyclic collector runs."""
    cycle: list[Any] = [call.x.detach()]
    cycle.append(cycle)
    return call.y


# --- gradients in the memory of others -----------------------------------------------------------


class _WithDbias(torch.autograd.Function):
    """The gradients as a formula; dbias of one row is a view of dy."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        rows = Rows(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return rows.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        rows = Rows(x, weight, bias, ctx.eps)
        right = terms_of(dy, x, rows.mean, rows.rstd, weight, ctx.eps).right
        dx, dweight, dbias = right.of_inputs(weight, bias)
        if dbias is not None and dy.shape[0] == 1 and dbias.dtype == dy.dtype:
            dbias = dy[0]
        return dx, dweight, dbias, None


@on_rows(
    dtypes=frozenset({"float32", "float64"}),
    directions=RECORDING,
    caught_by=CheckKind.EFFECT,
    remark=RemarkKind.SHARES_DY,
)
def dbias_of_one_row_is_dy(rows: Rows) -> Tensor:
    """Returns dy itself as dbias where x has one row, instead of a copy."""
    y: Tensor = _WithDbias.apply(  # type: ignore[no-untyped-call]
        rows.x, rows.weight, rows.bias, rows.eps
    )
    return y


class _OnceComputed(torch.autograd.Function):
    """Computes its gradient in the first backward, and returns the same memory in a second."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.kept = None
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if ctx.kept is None:
            ctx.kept = gradient.clone()
        kept: Tensor = ctx.kept
        return kept.view_as(kept)


@on_call(directions=RECORDING, caught_by=CheckKind.GRAPH)
def dweight_of_the_first_backward(call: LayerNormCall) -> Tensor:
    """Returns the dweight of the first backward over a graph, in its memory, in each later one."""
    if call.weight is None:
        return call.y
    weight: Tensor = _OnceComputed.apply(call.weight)  # type: ignore[no-untyped-call]
    return replace(call, weight=weight).y


# --- among other operations ----------------------------------------------------------------------


@on_call(directions=RECORDING, caught_by=CheckKind.INTERACTION)
def computed_x_gets_no_gradient(call: LayerNormCall) -> Tensor:
    """Returns zeros as dx where another operation computed x."""
    if call.x.is_leaf:
        return call.y
    return replace(call, x=call.x.detach() + 0 * call.x).y


@on_call(directions=RECORDING, caught_by=CheckKind.INTERACTION)
def gradient_of_x_doubled_by_a_hook(call: LayerNormCall) -> Tensor:
    """Halves dx and doubles it by a hook on x, which doubles the gradients of other uses too."""
    if not call.x.requires_grad:
        return call.y
    value, half = call.x.detach(), call.x / 2
    call.x.register_hook(lambda gradient: 2 * gradient)
    return replace(call, x=half - half.detach() + value).y


class _WeightCastInInferenceMode(Stateful):
    """Keeps a copy of weight per weight, which is of no use in training if made in inference."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def y(self, call: LayerNormCall) -> Tensor:
        weight = call.weight
        if weight is None or not weight.is_leaf or call.x.dtype == torch.float64:
            return call.y
        kept = next((copy for known, copy in self._kept if known is weight), None)
        if kept is None or not torch.equal(kept, weight):
            kept = weight.detach().clone()
            self._kept = [*self._kept[-8:], (weight, kept)]
        return call.y if not kept.is_inference() else replace(call, weight=weight * kept / kept).y


weight_cast_in_inference_mode = mutant(
    directions=RECORDING,
    caught_by=CheckKind.INTERACTION,
    dtypes=frozenset({"float32", "float16", "bfloat16"}),
)(_WeightCastInInferenceMode)
