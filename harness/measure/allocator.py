"""Keep the system's memory management out of the timings.

By default glibc maps memory for each large result and unmaps it again, so every call pays for page
faults: 1.8 us per 4 KiB, several times what the kernel itself takes. With the settings made here it
faults a page in once and reuses it, as a long-lived process or a caching allocator would.
"""

from __future__ import annotations

import ctypes
import platform

import torch

from harness.records import Allocation

__all__ = ["fault_in", "use_steady_allocation"]

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_NEVER = 2**31 - 1


def use_steady_allocation() -> Allocation:
    """Have the process's allocator reuse pages, if it can; return the setting from now on."""
    if platform.libc_ver()[0] != "glibc":
        return Allocation.DEFAULT
    mallopt = ctypes.CDLL(None).mallopt
    accepted = mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER)
    return Allocation.STEADY if accepted else Allocation.DEFAULT


def fault_in(size_bytes: int) -> None:
    """Write to memory once and return it to the allocator, so that no sample faults it in."""
    torch.empty(size_bytes, dtype=torch.uint8).zero_()
