"""Mutants that keep state between calls, or that write where they must only read.

A benchmark that repeats one call on the same tensors does not see kept state, and times it as if
it were fast. The state is in the function object, not in its module: a new instance has none.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.verify.mutants.arguments import LayerNormCall, Rows, layer_norm_of
from harness.verify.mutants.mutant import CheckKind, Stateful, mutant, on_call, with_value

# of llm.c pull request 852: as many calls as a check makes, fewer than a timing makes
_RIGHT_CALLS = 10


class _OutputOfTheFirstCall(Stateful):
    """Returns the result of the first call with the same shape again."""

    def __init__(self) -> None:
        self._kept: dict[torch.Size, Tensor] = {}

    def y_of_rows(self, rows: Rows) -> Tensor:
        y = rows.y
        return with_value(y, self._kept.setdefault(y.shape, y.detach()).to(y.dtype))


class _WeightOfTheFirstCall(Stateful):
    """Keeps the weight of the first call with the same N, as a packed weight is kept."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def y_of_rows(self, rows: Rows) -> Tensor:
        if rows.weight is None:
            return rows.y
        kept = self._kept.setdefault(rows.hidden, rows.weight.detach().clone())
        return replace(rows, weight=with_value(rows.weight, kept.to(rows.weight.dtype))).y


class _EpsOfTheFirstCall(Stateful):
    """Keeps the eps of the first call, as a kernel compiled for it does."""

    def __init__(self) -> None:
        self._kept: list[float] = []

    def y_of_rows(self, rows: Rows) -> Tensor:
        self._kept.append(rows.eps)
        return replace(rows, eps=self._kept[0]).y


class _HiddenOfTheFirstCall(Stateful):
    """Divides by the N of the first call, as a kernel with N in a global variable does."""

    def __init__(self) -> None:
        self._kept: list[int] = []

    def y_of_rows(self, rows: Rows) -> Tensor:
        self._kept.append(rows.hidden)
        mean = rows.x.sum(-1, keepdim=True) / self._kept[0]
        squares = (rows.x - mean).square().sum(-1, keepdim=True)
        return rows.normalised_by(mean, squares / self._kept[0])


class _ZerosAfterTenCalls(Stateful):
    """Returns zeros from the eleventh call on."""

    def __init__(self) -> None:
        self._calls = 0

    def y_of_rows(self, rows: Rows) -> Tensor:
        self._calls += 1
        return rows.y if self._calls <= _RIGHT_CALLS else rows.y * 0


class _StatisticsOfAnAddress(Stateful):
    """Keeps the statistics of each address of x, even if x has changed there."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.Size], tuple[Tensor, Tensor]] = {}

    def y(self, call: LayerNormCall) -> Tensor:
        def stale(rows: Rows) -> Tensor:
            now = (rows.mean.detach(), rows.variance.detach())
            mean, variance = self._kept.setdefault((call.x.data_ptr(), rows.x.shape), now)
            if mean.dtype != rows.x.dtype:
                return rows.y
            return rows.normalised_by(
                with_value(rows.mean, mean), with_value(rows.variance, variance)
            )

        return call.by(layer_norm_of(stale))


class _OutputBufferReused(Stateful):
    """Returns the same memory from every call with the same shape: the next call overwrites it."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def y(self, call: LayerNormCall) -> Tensor:
        y = call.y
        buffer = self._buffers.setdefault((y.shape, y.dtype), torch.empty_like(y).detach())
        buffer.copy_(y.detach())
        return with_value(y, buffer)


_remembering = mutant(caught_by=CheckKind.REPETITION)

output_of_the_first_call = _remembering(_OutputOfTheFirstCall)
weight_of_the_first_call = _remembering(_WeightOfTheFirstCall)
eps_of_the_first_call = _remembering(_EpsOfTheFirstCall)
hidden_of_the_first_call = _remembering(_HiddenOfTheFirstCall)
zeros_after_ten_calls = _remembering(_ZerosAfterTenCalls)
statistics_of_an_address = _remembering(_StatisticsOfAnAddress)
output_buffer_reused = _remembering(_OutputBufferReused)


# --- writing to inputs ---------------------------------------------------------------------------


@on_call(caught_by=CheckKind.CONTRACT)
def x_overwritten(call: LayerNormCall) -> Tensor:
    """Uses x as scratch memory and leaves the deviations in it."""
    y, x = call.y, call.x.detach()
    x.sub_(x.mean(tuple(range(-len(call.normalized_shape), 0)), keepdim=True))
    return y


@on_call(caught_by=CheckKind.CONTRACT)
def y_is_x(call: LayerNormCall) -> Tensor:
    """Normalises x in place and returns it."""
    y, x = call.y, call.x
    x.detach().copy_(y.detach())
    return with_value(y, x.detach()) if x.requires_grad else x


@on_call(caught_by=CheckKind.CONTRACT)
def weight_doubled_in_place(call: LayerNormCall) -> Tensor:
    """Doubles the caller's weight after using it."""
    y = call.y
    if call.weight is not None:
        call.weight.data.mul_(2)  # autograd would notice it on weight itself
    return y
