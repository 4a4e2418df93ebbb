"""Find the thread pool of torch for the C code."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

from implementations.torch_private import EXTENSION_FILE

__all__ = ["address_of_parallel"]


@cache
def address_of_parallel() -> int:
    """Return the address of GOMP_parallel, which runs a function in several threads, or 0.

    It belongs to the OpenMP runtime of torch itself, so that no second set of threads competes with
    torch's. The result is 0 if torch uses another runtime.
    """
    if EXTENSION_FILE is None:
        return 0
    with suppress(AttributeError):
        parallel = ctypes.CDLL(EXTENSION_FILE).GOMP_parallel
        return ctypes.cast(parallel, ctypes.c_void_p).value or 0
    return 0
