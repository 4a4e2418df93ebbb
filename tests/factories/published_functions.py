"""LayerNorm functions as people publish them, in a few lines each.

Nobody's code is copied. Each docstring names the source and what is unusual about it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def batch_time_channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """llm.c's: for three axes only, with weight and bias."""
    _, _, channels = x.shape
    return functional.layer_norm(x, (channels,), weight, bias, eps)


def rows_alone(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """A kernel's launcher: for (N, D) only."""
    rows, width = x.shape
    return functional.layer_norm(x.reshape(rows, width), (width,), weight, bias, eps)


def weight_required(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """A scale and no shift, as functions of inference engines have it."""
    return functional.layer_norm(x, weight.shape, weight, None, eps)


def broadcasts(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """A plain function that checks no argument."""
    axes = tuple(range(-len(normalized_shape), 0))
    deviation = x - x.mean(axes, keepdim=True)
    y = deviation * torch.rsqrt(deviation.square().mean(axes, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    mean, rstd = _statistics(x, eps)
    xhat = (x - mean) * rstd
    wdy = weight * dy
    dx = rstd * (wdy - wdy.mean(-1, keepdim=True) - xhat * (wdy * xhat).mean(-1, keepdim=True))
    return dx, (dy * xhat).sum_to_size(weight.shape), dy.sum_to_size(weight.shape)


class RawPointers(torch.autograd.Function):
    """A Triton kernel's launcher: it raises for no rows, and for memory that it cannot read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        if x.numel() == 0:
            raise RuntimeError("grid must be positive")
        for each in (x, weight, bias):
            if each.is_neg():
                raise RuntimeError("data pointer of a negated view")
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        mean, rstd = _statistics(x, eps)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if dy.is_neg():
            raise RuntimeError("data pointer of a negated view")
        return *_gradients(dy, *ctx.saved_tensors, ctx.eps), None


class SavesItsStatistics(torch.autograd.Function):
    """A backward without once_differentiable: mean and rstd are constants to its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        mean, rstd = _statistics(x, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        xhat, wdy = (x - mean) * rstd, weight * dy
        dx = rstd * (wdy - wdy.mean(-1, keepdim=True) - xhat * (wdy * xhat).mean(-1, keepdim=True))
        return dx, (dy * xhat).sum_to_size(weight.shape), dy.sum_to_size(weight.shape), None
