"""A function of (batch, channels, ...), called for an x with its features last."""

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

    A contiguous x is given as a contiguous image; what is written into that is written to x.

    Args:
        call: returns a tensor of the shape it is given.
        x: (..., channels), of any number of axes; its rows become batch and spatial axes.
        spatial_counts: how many axes there may be behind the channels; as many as x has beside
            batch and channels if it may, else the first of these.
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
    """How often a tensor was written to; None in inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def _split(rows: int, count: int) -> list[int]:
    """Return ``count`` factors of ``rows``, small ones first."""
    sizes = []
    for _ in range(count - 1):
        factor = next((each for each in _FACTORS if rows > each and rows % each == 0), 1)
        sizes.append(factor)
        rows //= factor
    return [*sizes, rows]
