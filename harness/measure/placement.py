"""Where inputs lie in memory: copies of them at random places, as luck would have it."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from implementations.torch_private import negated_view

__all__ = ["copies_beyond", "overwrite", "relocate"]

_LINE_BYTES = {"cpu": 64, "cuda": 512}  # a cache line, and what torch aligns on a GPU
_LINES = 64  # ours: as many places; on a CPU those of a page
_LEAST_PAD_BYTES, _LARGEST_PAD_BYTES = 64, 1 << 21
_BEYOND = 2.5  # of the cache: replacement is not exactly least-recently-used
_HOLDERS = 16  # four arms, each with inputs, results and what it saves, and half left over
_MOST_COPIES = 4096  # ours: of a tiny case on a large cache; they cover what they can


def relocate(tensor: Tensor, random: Random, *, far: bool = True) -> Tensor:
    """Copy ``tensor`` with its layout to a random line of memory, and ``far`` from the last copy.

    Far means behind a pad of random size, which is then free; among hundreds of copies such holes
    are never used and always in the way.
    """
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    size = tensor.element_size()
    pad_bytes = random.randrange(_LEAST_PAD_BYTES, _LARGEST_PAD_BYTES) if far else 0
    pad = torch.empty(pad_bytes, dtype=torch.uint8, device=tensor.device)
    line_bytes = _LINE_BYTES[tensor.device.type]
    line = max(line_bytes // size, 1)
    buffer = storage.new_empty(storage.numel() + (_LINES + 1) * line)
    del pad  # it only had to be there while the buffer was placed
    start = -buffer.data_ptr() % line_bytes // size + random.randrange(_LINES) * line
    buffer[start : start + storage.numel()].copy_(storage)
    moved = buffer.as_strided(tensor.size(), tensor.stride(), start + tensor.storage_offset())
    return negated_view(moved) if tensor.is_neg() else moved


def overwrite(placed: Tensor, tensor: Tensor) -> None:
    """Write the values of ``tensor`` where ``placed``, a relocated one of its layout, lies."""
    old = placed.new_empty(0).set_(placed.untyped_storage())
    new = tensor.new_empty(0).set_(tensor.untyped_storage())
    start = placed.storage_offset() - tensor.storage_offset()
    old[start : start + new.numel()].copy_(new)


def copies_beyond(cache_bytes: int, touched_bytes: int, free_bytes: int | None) -> int:
    """How many calls on inputs of their own fill a cache, so that the first ones' are gone.

    At least two, and no more than fit in ``free_bytes`` several times over.

    Args:
        cache_bytes: size of the last-level cache.
        touched_bytes: what a call reads and writes.
        free_bytes: memory there is, or None where that is not known.
    """
    once = max(touched_bytes, 1)
    beyond = -int(-_BEYOND * cache_bytes // once)
    fitting = _MOST_COPIES if free_bytes is None else free_bytes // _HOLDERS // once
    return max(2, min(beyond, _MOST_COPIES, fitting))
