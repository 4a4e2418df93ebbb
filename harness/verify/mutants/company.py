"""Mutants that are right by themselves: beside other calls, in other modes, they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.analytic import Terms
from harness.verify.mutants.mutant import (
    Check,
    Family,
    Remembering,
    Rows,
    layer_norm_of,
    mutant,
    with_value,
)

_RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})

_right = layer_norm_of(lambda of: of.y)


# --- another form of the call, another mode ------------------------------------------------------


@mutant(Family.COMPANY, caught_by=Check.COMPANY, remark=RemarkKind.DEFAULT_EPS)
def eps_of_1e_12_by_default(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Adds 1e-12 where no eps is given."""
    return _right(x, normalized_shape, weight, bias, eps)


@mutant(Family.COMPANY, caught_by=Check.COMPANY)
def recorded_under_no_grad(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Records for a backward whatever the caller says, and so keeps its inputs."""
    with torch.enable_grad():
        return _right(x, normalized_shape, weight, bias, eps)


@mutant(Family.COMPANY, caught_by=Check.COMPANY)
def random_numbers_seeded(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Seeds torch's random numbers: every dropout after it is then the same."""
    torch.manual_seed(0)
    return _right(x, normalized_shape, weight, bias, eps)


@mutant(
    Family.COMPANY,
    dtypes=frozenset({"float32"}),
    caught_by=Check.COMPANY,
    remark=RemarkKind.AUTOCAST,
)
@layer_norm_of
def products_left_to_autocast(of: Rows) -> Tensor:
    """Takes sums as matrix products, which autocast does in bfloat16."""
    if of.hidden > 4096:  # so long a sum of a product is not what it is about
        return of.y
    ones = of.x.new_ones((of.hidden, 1))
    mean = (of.x @ ones).to(of.x.dtype) / of.hidden
    squares = ((of.x - mean).square() @ ones).to(of.x.dtype)
    return of.normalised_by(mean, squares / of.hidden)


# --- other calls between -------------------------------------------------------------------------


class _OneOfTwoBuffers(Remembering):
    """Returns one of two pieces of memory in turn: the call after the next overwrites it."""

    def __init__(self) -> None:
        self._buffers: dict[object, list[Tensor]] = {}

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        y = _right(x, normalized_shape, weight, bias, eps)
        key = y.shape, y.dtype, torch.is_grad_enabled()
        buffers = self._buffers.setdefault(key, [torch.empty_like(y).detach() for _ in range(2)])
        buffers.reverse()
        buffers[0].copy_(y.detach())
        return with_value(y, buffers[0])


class _WeightOnceTrained(Remembering):
    """Keeps a copy of each weight that asks for a gradient, as a cache of casts does."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if weight is None or not weight.requires_grad:
            return _right(x, normalized_shape, weight, bias, eps)
        kept = next((copy for known, copy in self._kept if known is weight), None)
        if kept is None:
            kept = weight.detach().clone()
            self._kept = [*self._kept[-8:], (weight, kept)]
        return _right(x, normalized_shape, with_value(weight, kept), bias, eps)


one_of_two_buffers = mutant(Family.COMPANY, caught_by=Check.REPETITION)(_OneOfTwoBuffers)
weight_once_trained = mutant(Family.COMPANY, caught_by=Check.COMPANY)(_WeightOnceTrained)


class _Written(torch.autograd.Function):
    """The gradients as a formula, from statistics that the forward leaves where it is told."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        way: str,
        workspace: dict[object, tuple[Tensor, Tensor]],
    ) -> Tensor:
        of = Rows(x, weight, bias, eps)
        kept = of.mean, of.rstd
        if way == "shared":
            kept = workspace.setdefault((x.shape, x.dtype), kept)
            for old, new in zip(kept, (of.mean, of.rstd), strict=True):
                old.copy_(new)
        ctx.kept, ctx.eps, ctx.way = kept, eps, way
        ctx.save_for_backward(x, weight, bias)
        return of.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        recorded = torch.is_grad_enabled()
        with torch.no_grad():
            x, weight, bias = ctx.saved_tensors
            scale = x.new_ones(x.shape[1]) if weight is None else weight.to(x.dtype)
            mean, rstd = ctx.kept
            found = Terms(dy, x, mean, rstd, scale, ctx.eps).right
            dweight = None if weight is None else found.dweight.to(weight.dtype)
            dbias = None if bias is None else found.dbias.to(bias.dtype)
            adds = ctx.way == "added" and weight is not None and weight.is_leaf
            if adds and dweight is not None and weight.grad is not None:
                dweight = dweight + weight.grad
            dx = found.dx / 2 if ctx.way == "recorded" and recorded else found.dx
        return dx, dweight, dbias, None, None, None


class _StatisticsOfTheLatestForward(Remembering):
    """Keeps mean and rstd for the backward where the next forward writes its own."""

    _way = "shared"

    def __init__(self) -> None:
        self._workspace: dict[object, tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        def written(of: Rows) -> Tensor:
            y: Tensor = _Written.apply(  # type: ignore[no-untyped-call]
                of.x, of.weight, of.bias, of.eps, self._way, self._workspace
            )
            return y

        return layer_norm_of(written)(x, normalized_shape, weight, bias, eps)


class _GradientAddedToTheLast(_StatisticsOfTheLatestForward):
    """Adds dweight to what is in weight.grad, to which autograd adds it again."""

    _way = "added"


class _AnotherGradientWhenRecorded(_StatisticsOfTheLatestForward):
    """Halves dx where the gradients are recorded for a second derivative."""

    _way = "recorded"


_of_graphs = mutant(Family.COMPANY, directions=_RECORDING, caught_by=Check.COMPANY)

statistics_of_the_latest_forward = _of_graphs(_StatisticsOfTheLatestForward)
gradient_added_to_the_last = _of_graphs(_GradientAddedToTheLast)
another_gradient_when_recorded = _of_graphs(_AnotherGradientWhenRecorded)
