"""Where inputs lie in memory: copies of them at random places, as luck would have it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

__all__ = ["copies_beyond", "overwrite", "relocate"]

_LINE_BYTES, _PAGE_LINES = 64, 64  # a cache line, and how many a page holds
_LARGEST_PAD_BYTES = 1 << 21
_BEYOND = 2.5  # of the cache: replacement is not exactly least-recently-used
_MOST_COPIES = 4096  # ours: of a tiny case on a large cache; they cover what they can


def relocate(tensor: Tensor, random: Random) -> Tensor:
    """Copy ``tensor`` with its layout to a random place: a random pad, a random cache line."""
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    size = tensor.element_size()
    pad = torch.empty(random.randrange(_LINE_BYTES, _LARGEST_PAD_BYTES), dtype=torch.uint8)
    line = max(_LINE_BYTES // size, 1)
    buffer = storage.new_empty(storage.numel() + (_PAGE_LINES + 1) * line)
    del pad  # it only had to be there while the buffer was placed
    start = -buffer.data_ptr() % _LINE_BYTES // size + random.randrange(_PAGE_LINES) * line
    buffer[start : start + storage.numel()].copy_(storage)
    return buffer.as_strided(tensor.size(), tensor.stride(), start + tensor.storage_offset())


def overwrite(placed: Tensor, tensor: Tensor) -> None:
    """Write the values of ``tensor`` where ``placed``, a relocated one of its layout, lies."""
    old = placed.new_empty(0).set_(placed.untyped_storage())
    new = tensor.new_empty(0).set_(tensor.untyped_storage())
    start = placed.storage_offset() - tensor.storage_offset()
    old[start : start + new.numel()].copy_(new)


def copies_beyond(cache_bytes: int, tensors: Sequence[Tensor]) -> int:
    """How many copies of ``tensors`` a cache cannot hold, so that the first is gone at the last."""
    once = sum(each.numel() * each.element_size() for each in tensors)
    return min(max(2, -int(-_BEYOND * cache_bytes // max(once, 1))), _MOST_COPIES)
