"""Copies of inputs at random places in memory."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from implementations.torch_private import negated_view

__all__ = ["copies_beyond", "overwrite", "relocate"]

_LINE_BYTES = {"cpu": 64, "cuda": 512}  # a cache line, and what torch aligns on a GPU
_LINES = 64  # places: on a CPU, the lines of a page
_LEAST_PAD_BYTES, _LARGEST_PAD_BYTES = 64, 1 << 21
_BEYOND = 2.5  # caches, since replacement is not exactly least-recently-used
_HOLDERS = 16  # four arms hold inputs, results and saved tensors; half of the memory stays free
_MOST_COPIES = 4096  # trade-off: bounds the time to copy tiny inputs on a large cache


def relocate(tensor: Tensor, random: Random, *, far: bool = True) -> Tensor:
    """Copy ``tensor`` with its layout to a random line of memory.

    With ``far``, the copy is allocated behind a pad of random size, which is then freed. Without
    it, hundreds of copies waste no memory on such holes.
    """
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    size = tensor.element_size()
    pad_bytes = random.randrange(_LEAST_PAD_BYTES, _LARGEST_PAD_BYTES) if far else 0
    pad = torch.empty(pad_bytes, dtype=torch.uint8, device=tensor.device)
    line_bytes = _LINE_BYTES[tensor.device.type]
    line = max(line_bytes // size, 1)
    buffer = storage.new_empty(storage.numel() + (_LINES + 1) * line)
    del pad  # needed only while the buffer was allocated
    start = -buffer.data_ptr() % line_bytes // size + random.randrange(_LINES) * line
    buffer[start : start + storage.numel()].copy_(storage)
    moved = buffer.as_strided(tensor.size(), tensor.stride(), start + tensor.storage_offset())
    return negated_view(moved) if tensor.is_neg() else moved


def overwrite(placed: Tensor, tensor: Tensor) -> None:
    """Write the values of ``tensor`` to the memory of ``placed``, a relocated one of its layout."""
    old = placed.new_empty(0).set_(placed.untyped_storage())
    new = tensor.new_empty(0).set_(tensor.untyped_storage())
    start = placed.storage_offset() - tensor.storage_offset()
    old[start : start + new.numel()].copy_(new)


def copies_beyond(cache_bytes: int, touched_bytes: int, free_bytes: int | None) -> int:
    """Return the number of copies of the inputs that together exceed a cache.

    It is at least two, and no larger than fits in ``free_bytes`` several times.

    Args:
        cache_bytes: size of the last-level cache.
        touched_bytes: bytes that a call reads and writes.
        free_bytes: free memory, or None where it is unknown.
    """
    once = max(touched_bytes, 1)
    beyond = -int(-_BEYOND * cache_bytes // once)
    fitting = _MOST_COPIES if free_bytes is None else free_bytes // _HOLDERS // once
    return max(2, min(beyond, _MOST_COPIES, fitting))
