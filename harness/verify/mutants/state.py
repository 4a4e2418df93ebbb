"""Mutants with a memory, or that write where they must only read.

A benchmark that calls one function again and again on the same tensors sees none of the former,
and times them as if they were fast. Each keeps what it remembers in itself, not in its module:
a new instance is a first call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.verify.mutants.mutant import (
    Check,
    Family,
    Remembering,
    Rows,
    layer_norm_of,
    mutant,
    with_value,
)

_HONEST_CALLS = 10  # of llm.c pull request 852: as many as a check makes, fewer than a timing

_right = layer_norm_of(lambda of: of.y)


class _RememberingRows(Remembering):
    """A memory written as a function of rows."""

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        return layer_norm_of(self.y)(x, normalized_shape, weight, bias, eps)

    def y(self, of: Rows) -> Tensor:
        """Return the wrong rows."""
        raise NotImplementedError


class _OutputOfTheFirstCall(_RememberingRows):
    """Returns the result of the first call with the same shape again."""

    def __init__(self) -> None:
        self._kept: dict[torch.Size, Tensor] = {}

    def y(self, of: Rows) -> Tensor:
        return with_value(of.y, self._kept.setdefault(of.x.shape, of.y.detach()).to(of.y.dtype))


class _WeightOfTheFirstCall(_RememberingRows):
    """Keeps the weight of the first call with the same N, as a folded or packed one is kept."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def y(self, of: Rows) -> Tensor:
        if of.weight is None:
            return of.y
        kept = self._kept.setdefault(of.hidden, of.weight.detach().clone())
        return Rows(of.x, with_value(of.weight, kept.to(of.weight.dtype)), of.bias, of.eps).y


class _EpsOfTheFirstCall(_RememberingRows):
    """Keeps the eps of the first call, as a kernel compiled for it does."""

    def __init__(self) -> None:
        self._kept: list[float] = []

    def y(self, of: Rows) -> Tensor:
        self._kept.append(of.eps)
        return Rows(of.x, of.weight, of.bias, self._kept[0]).y


class _HiddenOfTheFirstCall(_RememberingRows):
    """Divides by the N of the first call, as one reading a global instead of its argument does."""

    def __init__(self) -> None:
        self._kept: list[int] = []

    def y(self, of: Rows) -> Tensor:
        self._kept.append(of.hidden)
        mean = of.x.sum(-1, keepdim=True) / self._kept[0]
        squares = (of.x - mean).square().sum(-1, keepdim=True)
        return of.normalised_by(mean, squares / self._kept[0])


class _ZerosAfterTenCalls(_RememberingRows):
    """Is right for ten calls and returns zeros from then on."""

    def __init__(self) -> None:
        self._calls = 0

    def y(self, of: Rows) -> Tensor:
        self._calls += 1
        return of.y if self._calls <= _HONEST_CALLS else of.y * 0


class _StatisticsOfAnAddress(Remembering):
    """Keeps the statistics of each address of x, whatever was written there since."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.Size], tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        def stale(of: Rows) -> Tensor:
            now = (of.mean.detach(), of.variance.detach())
            mean, variance = self._kept.setdefault((x.data_ptr(), of.x.shape), now)
            if mean.dtype != of.x.dtype:
                return of.y
            return of.normalised_by(with_value(of.mean, mean), with_value(of.variance, variance))

        return layer_norm_of(stale)(x, normalized_shape, weight, bias, eps)


class _OutputBufferReused(Remembering):
    """Returns the same memory from every call with the same shape: the next one overwrites it."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        y = _right(x, normalized_shape, weight, bias, eps)
        buffer = self._buffers.setdefault((y.shape, y.dtype), torch.empty_like(y).detach())
        buffer.copy_(y.detach())
        return with_value(y, buffer)


# --- the mutants of these memories ---------------------------------------------------------------

_remembering = mutant(Family.STATE, caught_by=Check.REPETITION)

output_of_the_first_call = _remembering(_OutputOfTheFirstCall)
weight_of_the_first_call = _remembering(_WeightOfTheFirstCall)
eps_of_the_first_call = _remembering(_EpsOfTheFirstCall)
hidden_of_the_first_call = _remembering(_HiddenOfTheFirstCall)
zeros_after_ten_calls = _remembering(_ZerosAfterTenCalls)
statistics_of_an_address = _remembering(_StatisticsOfAnAddress)
output_buffer_reused = _remembering(_OutputBufferReused)


# --- writing to what is only lent ----------------------------------------------------------------


@mutant(Family.STATE, caught_by=Check.CONTRACT)
def x_overwritten(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Uses x as scratch memory: it holds the deviations afterwards."""
    y = _right(x, normalized_shape, weight, bias, eps)
    axes = tuple(range(-len(normalized_shape), 0))
    x.detach().sub_(x.detach().mean(axes, keepdim=True))
    return y


@mutant(Family.STATE, caught_by=Check.CONTRACT)
def y_is_x(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises x in place and returns it."""
    y = _right(x, normalized_shape, weight, bias, eps)
    x.detach().copy_(y.detach())
    return with_value(y, x.detach()) if x.requires_grad else x


@mutant(Family.STATE, caught_by=Check.CONTRACT)
def weight_doubled_in_place(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Doubles the caller's weight after using it."""
    y = _right(x, normalized_shape, weight, bias, eps)
    if weight is not None:
        weight.data.mul_(2)  # autograd would notice it on weight itself
    return y
