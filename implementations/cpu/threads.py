"""Where C finds the threads that torch works with."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

from implementations.torch_private import EXTENSION_FILE

__all__ = ["address_of_parallel"]


@cache
def address_of_parallel() -> int:
    """Address of what runs a function in several threads; 0 if torch has another way.

    It is GOMP_parallel of the OpenMP runtime that torch itself runs on, so that no second set of
    threads competes with torch's.
    """
    if EXTENSION_FILE is None:
        return 0
    with suppress(AttributeError):
        parallel = ctypes.CDLL(EXTENSION_FILE).GOMP_parallel
        return ctypes.cast(parallel, ctypes.c_void_p).value or 0
    return 0
