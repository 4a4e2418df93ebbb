"""One pass over x - pivot, where the pivot is an element of the row.

Subtracting a constant from every element does not change the variance, but it reduces the
cancellation in ``E[x^2] - E[x]^2``: the error grows with the square of ``(mean - pivot) / std``
instead of ``mean / std``. The pivot is the median of the first, the middle and the last element, so
that a single outlier is never the pivot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import (
    Algorithm,
    implementation,
    scale_and_shift,
    trailing_axes,
    wide_dtype,
)


def _pivot(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the median of the first, middle and last element of each row; ``axes`` have size 1."""
    first, middle, last = (_element(x, axes, halves) for halves in (0, 1, 2))
    smaller, larger = torch.minimum(first, last), torch.maximum(first, last)
    return torch.maximum(smaller, torch.minimum(larger, middle))


def _element(x: Tensor, axes: tuple[int, ...], halves: int) -> Tensor:
    """Return the element at ``halves`` / 2 of each of ``axes``; empty for an empty axis."""
    for axis in axes:
        size = x.shape[axis]
        x = x.narrow(axis, halves * max(size - 1, 0) // 2, min(size, 1))
    return x


def _normalise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    # detached: y does not depend on the pivot, so its gradient is zero
    above = x - _pivot(x.detach(), axes)
    mean = above.mean(axes, keepdim=True)
    variance = above.square().mean(axes, keepdim=True) - mean.square()
    return (above - mean) * torch.rsqrt(variance + eps)


@implementation(
    source="Chan, Golub and LeVeque, Am. Stat. 37 (1983) 242-247, shifted data",
    algorithm=Algorithm.SHIFTED,
)
def shifted(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """E[d^2] - E[d]^2 of d = x - an element of the row, in float32 or wider."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    y = _normalise(x.to(wide_dtype(x.dtype)), axes, eps)
    return scale_and_shift(y, weight, bias).to(x.dtype)
