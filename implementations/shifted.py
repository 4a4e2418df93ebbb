"""One pass over x - pivot, where the pivot is an element of the row.

Mean and variance do not change when a constant is taken from every element, but for the constant
itself; the cancellation in ``E[x^2] - E[x]^2`` does: its error grows with the square of
``(mean - pivot) / std`` instead of ``mean / std``. The pivot is the median of the first, the middle
and the last element, so that no single outlier, wherever it lies, can be it.
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

__all__ = ["shifted"]


def _pivot(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Median of the first, middle and last element of each row; ``axes`` stay, of size 1."""
    first, middle, last = (_element(x, axes, halves) for halves in (0, 1, 2))
    smaller, larger = torch.minimum(first, last), torch.maximum(first, last)
    return torch.maximum(smaller, torch.minimum(larger, middle))


def _element(x: Tensor, axes: tuple[int, ...], halves: int) -> Tensor:
    """The element ``halves`` halves of the way along each of ``axes``; none where there is none."""
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
