"""The implementations of the gate experiment: four LayerNorms, and the changes planted in one.

A copy of this file is committed to a repository of its own. One line of the copy says what is
planted, so that base and head differ as in a pull request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import implementations

PLANTED = "nothing"
SUBJECT = "two_pass"
# The nodes of a backward see a part of its time; the rest is autograd's own. The median ratios in
# the table of the planted changes show what this comes to.
UNSEEN = 1.5


def native(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's own."""
    return implementations.native(x, normalized_shape, weight, bias, eps)


def one_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """E[x^2] - E[x]^2."""
    return implementations.one_pass(x, normalized_shape, weight, bias, eps)


def two_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean first, then the mean of squared deviations."""
    return _timed(_two_pass, x, normalized_shape, weight, bias, eps)


def welford_chunked(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Welford's update, of chunks."""
    return implementations.welford_chunked(x, normalized_shape, weight, bias, eps)


class _Began(Function):
    """The end of a call, where its backward begins: reads the clock there."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, times: list[int]) -> Tensor:
        ctx.times = times
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        ctx.times.append(perf_counter_ns())
        return dy, None


class _Ended(Function):
    """The beginning of a call, where its backward ends: waits there, if that is planted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: list[int]) -> Tensor:
        ctx.times = times
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        _take_longer(ctx.times.pop(), UNSEEN)
        return dx, None


def _timed(function: Callable[..., Tensor], x: Tensor, *rest: Any) -> Tensor:
    """Call a function, whose forward and backward take longer if that is planted."""
    began, times = perf_counter_ns(), list[int]()
    is_recorded = torch.is_grad_enabled() and x.requires_grad
    y = function(_Ended.apply(x, times) if is_recorded else x, *rest)
    _take_longer(began)
    return _Began.apply(y, times) if is_recorded else y


def _take_longer(began: int, unseen: float = 1.0) -> None:
    """Wait for a share of what the call took so far, if that is planted; read the clock anyway."""
    took = perf_counter_ns() - began
    if PLANTED.endswith("slower"):
        end = began + took * (1 + unseen * float(PLANTED.split()[0]))
        while perf_counter_ns() < end:
            pass


def _two_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if PLANTED == "extra copy":
        x = x.clone()
    if PLANTED == "variance over N-1":
        hidden = x.shape[-1]
        y = implementations.two_pass(x, normalized_shape, eps=eps * hidden / (hidden - 1))
        return (y * ((hidden - 1) / hidden) ** 0.5 * weight + bias).to(x.dtype)
    if PLANTED == "bfloat16 statistics":
        mean = x.mean(-1, keepdim=True, dtype=torch.bfloat16)
        deviations = x - mean
        variance = deviations.square().mean(-1, keepdim=True, dtype=torch.bfloat16)
        return (deviations * torch.rsqrt(variance + eps) * weight + bias).to(x.dtype)
    return implementations.two_pass(x, normalized_shape, weight, bias, eps)
