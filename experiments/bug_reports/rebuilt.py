"""How a LayerNorm is rebuilt: the right one, and makers of one that differs in a single part.

What a kernel reads beyond a tensor is 0 here, and results that it does not write are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Gradients",
    "Rows",
    "affine",
    "changes",
    "dx_of",
    "elements",
    "moments",
    "normalises",
    "read_as_contiguous",
    "right",
    "right_gradients",
    "trailing",
    "wide",
    "with_backward",
    "without_rows",
]

Shape = tuple[int, ...]
Gradients = tuple[Tensor, Tensor, Tensor]


def wide(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 if it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def trailing(shape: Shape) -> Shape:
    """Return the axes that are normalised."""
    return tuple(range(-len(shape), 0))


def moments(x: Tensor, axes: Shape) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance."""
    mean = x.mean(axes, keepdim=True)
    return mean, (x - mean).square().mean(axes, keepdim=True)


def affine(n: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return n * weight + bias."""
    n = n if weight is None else n * weight
    return (n if bias is None else n + bias).to(dtype)


def right(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the LayerNorm from which the wrong ones differ."""
    mean, var = moments(wide(x), trailing(normalized_shape))
    return affine((wide(x) - mean) * (var + eps).rsqrt(), weight, bias, x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a backward kernel reads, in float32 or wider."""

    x: Tensor
    """(rows, N)"""
    dy: Tensor
    """(rows, N)"""
    weight: Tensor
    """(N,)"""
    mean: Tensor
    """(rows, 1)"""
    rstd: Tensor
    """(rows, 1)"""
    eps: float
    shape: Shape
    """Of x, before its axes were made two."""
    dims: int
    """Number of normalized axes."""

    @property
    def n(self) -> Tensor:
        """x, normalised."""
        return (self.x - self.mean) * self.rstd


class Fused(torch.autograd.Function):
    """A kernel with a right forward, and a backward that another function computes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        dims: int,
        gradients: Callable[[Rows], Gradients],
    ) -> Tensor:
        """Return y."""
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.eps, ctx.dims, ctx.gradients = eps, dims, gradients
        return right(x, x.shape[x.ndim - dims :], weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx, dweight and dbias."""
        x, weight = ctx.saved_tensors
        normalized = x.shape[x.ndim - ctx.dims :]
        rows = (prod(x.shape[: x.ndim - ctx.dims]), prod(normalized))
        mean, var = moments(wide(x).reshape(rows), (-1,))
        ones = torch.ones(normalized, dtype=mean.dtype)
        read = Rows(
            x=wide(x).reshape(rows),
            dy=wide(dy).reshape(rows),
            weight=(ones if weight is None else weight.to(mean.dtype)).reshape(-1),
            mean=mean,
            rstd=(var + ctx.eps).rsqrt(),
            eps=ctx.eps,
            shape=tuple(x.shape),
            dims=ctx.dims,
        )
        dx, dweight, dbias = ctx.gradients(read)
        return (
            dx.reshape(x.shape).to(x.dtype),
            None if weight is None else dweight.reshape(normalized).to(weight.dtype),
            None if ctx.bias_dtype is None else dbias.reshape(normalized).to(ctx.bias_dtype),
            *(None, None, None),
        )


def right_gradients(rows: Rows) -> Gradients:
    """Return dx, dweight and dbias."""
    return dx_of(rows, rows.dy * rows.weight), (rows.dy * rows.n).sum(0), rows.dy.sum(0)


def dx_of(rows: Rows, g: Tensor) -> Tensor:
    """Return dx, given the gradient of the normalised x."""
    n = rows.n
    return rows.rstd * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))


def changes(change: Callable[..., Tensor], of: Callable[..., Any] | None = None) -> Any:
    """Make a LayerNorm of what it does with its arguments.

    Args:
        change: of all five arguments; returns y.
        of: the part that differs, which the docstring describes; None for ``change``.
    """

    def layer_norm(
        x: Tensor,
        normalized_shape: Shape,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        return change(x, normalized_shape, weight, bias, eps)

    part = of or change
    layer_norm.__doc__, layer_norm.__name__ = part.__doc__, part.__name__
    return layer_norm


def with_backward(gradients: Callable[[Rows], Gradients]) -> Any:
    """Make a LayerNorm of its backward."""

    def fused(
        x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y: Tensor = Fused.apply(x, weight, bias, eps, len(shape), gradients)
        return y

    return changes(fused, gradients)


def normalises(
    statistics: Callable[[Tensor, Shape, float], tuple[Tensor, Tensor]],
) -> Any:
    """Make a LayerNorm of what gives its mean and its 1 / standard deviation."""

    def normalised(
        x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        mean, rstd = statistics(x, trailing(shape), eps)
        return affine((wide(x) - mean) * rstd, weight, bias, x.dtype)

    return changes(normalised, statistics)


def read_as_contiguous(x: Tensor) -> Tensor:
    """Return what lies from x's address on, as if x was contiguous; past the end, the start."""
    size = x.untyped_storage().nbytes() // x.element_size()
    at = (x.storage_offset() + torch.arange(x.numel())) % max(size, 1)
    return x.as_strided((size,), (1,), 0)[at].reshape(x.shape)


def without_rows(y: Tensor, normalized_shape: Shape, start: int) -> Tensor:
    """Return y with zeros from this row on."""
    rows = prod(y.shape[: y.ndim - len(normalized_shape)])
    written = (torch.arange(rows) < start)[:, None]
    return (y.reshape(rows, -1) * written).reshape(y.shape)


def elements(x: Tensor, axes: Shape) -> int:
    """Return the row length."""
    return prod(x.shape[axis] for axis in axes)
