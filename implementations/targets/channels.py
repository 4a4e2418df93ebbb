"""Call a function of (batch, channels, ...) on an x whose last axis holds the features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["on_channels"]

_FACTORS = (2, 3, 5, 7)


def on_channels(
    call: Callable[[Tensor], Tensor], x: Tensor, spatial_counts: Sequence[int]
) -> Tensor:
    """Call a function of (batch, channels, *spatial) on an x whose last axis is normalised.

    A contiguous x becomes a contiguous image; if the function writes into it, x changes too.

    Args:
        call: returns a tensor of the shape of its argument.
        x: (..., channels) with any number of axes; its rows become batch and spatial axes.
        spatial_counts: accepted numbers of axes behind the channels. The number that keeps x's
            axes is used if accepted, else the first.
    """
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    wanted = x.dim() - 2
    spatial = wanted if wanted in spatial_counts else spatial_counts[0]
    sizes = x.shape[:-1] if x.dim() == spatial + 2 else _split(rows, spatial + 1)
    moved = x.reshape(*sizes, x.shape[-1]).movedim(-1, 1)
    given = moved.contiguous() if x.is_contiguous() else moved
    version = _version(given)
    y = call(given)
    if given is not moved and _version(given) != version:
        with torch.no_grad():
            x.copy_(given.detach().movedim(1, -1).reshape(x.shape))
    return y.movedim(1, -1).reshape(x.shape)


def _version(tensor: Tensor) -> int | None:
    """Return the number of writes to a tensor; inference tensors do not count them."""
    return None if tensor.is_inference() else tensor._version


def _split(rows: int, count: int) -> list[int]:
    """Return ``count`` factors of ``rows``, small ones first."""
    sizes = []
    for _ in range(count - 1):
        factor = next((each for each in _FACTORS if rows > each and rows % each == 0), 1)
        sizes.append(factor)
        rows //= factor
    return [*sizes, rows]
