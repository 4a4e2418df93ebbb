"""Mutants that are right alone, and wrong next to other calls or in other modes."""

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
    RECORDING,
    CheckKind,
    Stateful,
    mutant,
    on_call,
    on_rows,
    with_value,
)

# --- another form of the call, another mode ------------------------------------------------------


@mutant(caught_by=CheckKind.INTERACTION, remark=RemarkKind.DEFAULT_EPS)
def eps_of_1e_12_by_default(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Adds 1e-12 where no eps is given."""
    return LayerNormCall(x, normalized_shape, weight, bias, eps).y


@on_call(caught_by=CheckKind.INTERACTION)
def recorded_under_no_grad(call: LayerNormCall) -> Tensor:
    """Records a graph, and so keeps its inputs, even under torch.no_grad."""
    with torch.enable_grad():
        return call.y


@on_call(caught_by=CheckKind.INTERACTION)
def random_numbers_seeded(call: LayerNormCall) -> Tensor:
    """Seeds torch's random numbers, which makes every later dropout the same."""
    torch.manual_seed(0)
    return call.y


@on_rows(
    dtypes=frozenset({"float32"}),
    caught_by=CheckKind.INTERACTION,
    remark=RemarkKind.AUTOCAST,
)
def products_left_to_autocast(rows: Rows) -> Tensor:
    """Computes sums as matrix products, for which autocast uses bfloat16."""
    if rows.hidden > 4096:  # the error of so long a product would be a second mistake
        return rows.y
    ones = rows.x.new_ones((rows.hidden, 1))
    mean = (rows.x @ ones).to(rows.x.dtype) / rows.hidden
    squares = ((rows.x - mean).square() @ ones).to(rows.x.dtype)
    return rows.normalised_by(mean, squares / rows.hidden)


# --- other calls in between ----------------------------------------------------------------------


class _OneOfTwoBuffers(Stateful):
    """Returns one of two buffers in turn, so that the second call after a call overwrites it."""

    def __init__(self) -> None:
        self._buffers: dict[object, list[Tensor]] = {}

    def y(self, call: LayerNormCall) -> Tensor:
        y = call.y
        key = y.shape, y.dtype, torch.is_grad_enabled()
        buffers = self._buffers.setdefault(key, [torch.empty_like(y).detach() for _ in range(2)])
        buffers.reverse()
        buffers[0].copy_(y.detach())
        return with_value(y, buffers[0])


class _WeightOnceTrained(Stateful):
    """Keeps a copy of each weight that requires a gradient, as a cache of casts does."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def y(self, call: LayerNormCall) -> Tensor:
        weight = call.weight
        if weight is None or not weight.requires_grad:
            return call.y
        kept = next((copy for known, copy in self._kept if known is weight), None)
        if kept is None:
            kept = weight.detach().clone()
            self._kept = [*self._kept[-8:], (weight, kept)]
        return replace(call, weight=with_value(weight, kept)).y


one_of_two_buffers = mutant(caught_by=CheckKind.REPETITION)(_OneOfTwoBuffers)
weight_once_trained = mutant(caught_by=CheckKind.INTERACTION)(_WeightOnceTrained)


class _Written(torch.autograd.Function):
    """The gradients as a formula, with one of three mistakes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        mistake: str,
        workspace: dict[object, tuple[Tensor, Tensor]],
    ) -> Tensor:
        rows = Rows(x, weight, bias, eps)
        kept = rows.mean, rows.rstd
        if mistake == "shared":
            kept = workspace.setdefault((x.shape, x.dtype), kept)
            for old, new in zip(kept, (rows.mean, rows.rstd), strict=True):
                old.copy_(new)
        ctx.kept, ctx.eps, ctx.mistake = kept, eps, mistake
        ctx.save_for_backward(x, weight, bias)
        return rows.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        is_recorded = torch.is_grad_enabled()
        with torch.no_grad():
            x, weight, bias = ctx.saved_tensors
            mean, rstd = ctx.kept
            right = terms_of(dy, x, mean, rstd, weight, ctx.eps).right
            dx, dweight, dbias = right.of_inputs(weight, bias)
            adds = ctx.mistake == "added" and weight is not None and weight.is_leaf
            if adds and dweight is not None and weight.grad is not None:
                dweight = dweight + weight.grad
            if ctx.mistake == "recorded" and is_recorded:
                dx = dx / 2
        return dx, dweight, dbias, None, None, None


class _StatisticsOfTheLatestForward(Stateful):
    """Keeps mean and rstd for the backward in memory that the next forward overwrites."""

    _mistake = "shared"

    def __init__(self) -> None:
        self._workspace: dict[object, tuple[Tensor, Tensor]] = {}

    def y_of_rows(self, rows: Rows) -> Tensor:
        y: Tensor = _Written.apply(  # type: ignore[no-untyped-call]
            rows.x, rows.weight, rows.bias, rows.eps, self._mistake, self._workspace
        )
        return y


class _GradientAddedToTheLast(_StatisticsOfTheLatestForward):
    """Adds weight.grad to dweight, although autograd adds them too."""

    _mistake = "added"


class _AnotherGradientWhenRecorded(_StatisticsOfTheLatestForward):
    """Halves dx where the backward is recorded for a second derivative."""

    _mistake = "recorded"


_of_graphs = mutant(directions=RECORDING, caught_by=CheckKind.INTERACTION)

statistics_of_the_latest_forward = _of_graphs(_StatisticsOfTheLatestForward)
gradient_added_to_the_last = _of_graphs(_GradientAddedToTheLast)
another_gradient_when_recorded = _of_graphs(_AnotherGradientWhenRecorded)
