"""A copy in C++ that bypasses the caches, which is fastest for tensors larger than they are."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from implementations.contract import UnsupportedError
from implementations.cpu.build import load

_pack_copy = struct.Struct("@2Pni").pack  # struct Copy of copy.cpp


def can_stream() -> bool:
    """Whether the library exists or can be built."""
    try:
        _library()
    except UnsupportedError:
        return False
    return True


def streamed_copy(to: Tensor, x: Tensor) -> Callable[[], object]:
    """Return a function that copies ``x`` to ``to`` with torch's threads.

    Args:
        to: dense, on the CPU, of the same size as ``x``.
        x: dense, on the CPU.

    Raises:
        UnsupportedError: the library cannot be built.
    """
    packed = _pack_copy(
        to.data_ptr(),
        x.data_ptr(),
        x.numel() * x.element_size(),
        torch.get_num_threads(),
    )
    # the function keeps a reference to both tensors
    return partial(_call, _library().streamed_copy, packed, to, x)


def _call(function: Callable[[bytes], object], packed: bytes, *_: Tensor) -> None:
    function(packed)


@cache
def _library() -> ctypes.CDLL:
    library = load(("copy.cpp",), ("stream.h", "threads.h"))
    library.streamed_copy.argtypes = (ctypes.c_char_p,)
    library.streamed_copy.restype = None
    return library
