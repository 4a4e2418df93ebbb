"""A function of images with their channels on axis 1, called for an x with its features last."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["on_channels"]


def on_channels(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Call a function of (batch, channels, height, width) on an x whose last axis is normalised.

    A contiguous x is given as a contiguous image; what is written into that is written to x.
    """
    channels = x.shape[-1]
    rows = x.numel() // channels if channels else 0
    batch = next((each for each in (2, 3, 5) if rows % each == 0 and rows > each), 1)
    height = next((each for each in (3, 5, 7, 2) if (rows // batch) % each == 0), 1)
    if x.dim() == 4:
        image = x
    else:
        image = x.reshape(batch, height, rows // batch // height, channels)
    moved = image.movedim(-1, 1)
    if not x.is_contiguous():
        return call(moved).movedim(1, -1).reshape(x.shape)
    given = moved.contiguous()
    version = given._version
    y = call(given)
    if given._version != version and given is not x:
        with torch.no_grad():
            x.copy_(given.detach().movedim(1, -1).reshape(x.shape))
    return y.movedim(1, -1).reshape(x.shape) if isinstance(y, Tensor) else y
