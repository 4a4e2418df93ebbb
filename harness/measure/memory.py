"""Memory: of the allocator, of copies at random addresses, and what a call allocates.

By default glibc maps memory for each large result and unmaps it again, so every call pays for page
faults. With the settings made here it faults a page in once and reuses it, as a long-lived process
or a caching allocator would.

What one call allocates, and its operators, are counted: exact, and the same in every process.

On the CPU the profiler's memory events are added up. They cover every tensor allocation, also
inside operators and compiled code. The resident set size would show what the allocator retains
instead, and a dispatch mode would disable compiled code. The profiler records the operators, too.

Two kinds of memory are invisible: what other libraries allocate, and on the CPU what the caller's
other Python threads allocate, since torch reports allocations to the profiler of their own thread
(pytorch/pytorch#192290). Both are detected by :func:`undercounted`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

import torch
from torch import Tensor

from harness.records import Allocation
from harness.records.text import bytes_text, count
from implementations.torch_private import negated_view, profiling_of_all_threads

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_NEVER = 2**31 - 1
# Bytes of a line, lines to choose from, and bytes of the largest pad before them. On a CPU cache
# lines, those of a page. On a GPU what torch aligns, within 2 MiB: a pad moves little there, since
# torch's allocator takes each large block, and all small ones, from memory of their own
_MOVES = {"cpu": (64, 64, 1 << 21), "cuda": (512, 4096, 0)}
_BEYOND = 2.5  # caches, since replacement is not exactly least-recently-used
_HOLDERS = 16  # four arms hold inputs, results and saved tensors; half of the memory stays free
_MOST_COPIES = 4096  # trade-off: bounds the time to copy tiny inputs on a large cache

# read by the profiler at its first use; otherwise each session prints to standard error
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def use_steady_allocation() -> Allocation:
    """Have the process's allocator reuse pages, if it can; return the setting from now on."""
    if platform.libc_ver()[0] != "glibc":
        return Allocation.DEFAULT
    mallopt = ctypes.CDLL(None).mallopt
    accepted = mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER)
    return Allocation.STEADY if accepted else Allocation.DEFAULT


class _MallInfo(ctypes.Structure):
    """What mallinfo2 of glibc returns: see mallinfo(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*"abcd", "hblkhd", *"ef", "uordblks", *"gh")]


def memory_in_use() -> tuple[int, int]:
    """Return the blocks that Python has allocated, and the bytes that the C library has.

    The bytes are 0 if the C library does not count them: up to glibc 2.32, and others.
    """
    count_bytes = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if count_bytes is None:
        return sys.getallocatedblocks(), 0
    count_bytes.restype = _MallInfo
    info = count_bytes()
    return sys.getallocatedblocks(), info.hblkhd + info.uordblks


def fault_in(size_bytes: int) -> None:
    """Write to memory once and return it to the allocator, so that no sample faults it in."""
    torch.empty(size_bytes, dtype=torch.uint8).zero_()


def relocate(tensor: Tensor, random: Random, *, far: bool = True) -> Tensor:
    """Copy ``tensor`` with its layout to a random line of memory.

    With ``far``, the copy on a CPU is allocated behind a pad of random size, which is then freed.
    Without it, hundreds of copies waste no memory on such holes.
    """
    storage = tensor.new_empty(0).set_(tensor.untyped_storage())
    size = tensor.element_size()
    line_bytes, lines, most_pad_bytes = _MOVES[tensor.device.type]
    pad = torch.empty(random.randint(0, most_pad_bytes) if far else 0, dtype=torch.uint8)
    line = max(line_bytes // size, 1)
    buffer = storage.new_empty(storage.numel() + (lines + 1) * line)
    del pad  # needed only while the buffer was allocated
    start = -buffer.data_ptr() % line_bytes // size + random.randrange(lines) * line
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


@dataclass(frozen=True, slots=True)
class Allocations:
    """What a call allocated and kept, and the operators it called."""

    peak_bytes: int
    """Most held at once, beyond what was held before the call."""
    total_bytes: int
    """Sum of all allocations."""
    count: int
    held_bytes: int
    """Held after the call: its result and what that keeps alive."""
    operators: int
    """Calls of registered operators, without those made by an operator of ATen."""
    operators_elsewhere: int
    """Calls of operators on threads whose allocations are not counted."""


def uncountable(device: str) -> str | None:
    """Return why allocations on a device kind cannot be counted, or None."""
    if device == "cpu" and not torch.profiler.kineto_available():
        return "torch is built without its profiler (Kineto), which counts allocations on the CPU"
    return None


def undercounted(counted: Allocations, least_held_bytes: int) -> str | None:
    """Return why ``counted`` is less than the call allocated, or None.

    Args:
        counted: of the call.
        least_held_bytes: size of its results, which any implementation must hold after the call.
    """
    if counted.operators_elsewhere:
        operators = count(counted.operators_elsewhere, "operator")
        return f"it runs {operators} on other threads, whose allocations torch does not report"
    held_bytes = min(counted.held_bytes, counted.peak_bytes)
    if held_bytes < least_held_bytes:
        return (
            f"its results take {bytes_text(least_held_bytes)}, of which torch allocated "
            f"{bytes_text(max(held_bytes, 0))} during the call: the rest is memory of another "
            "library, or is kept from call to call"
        )
    return None


def count_allocations(call: Callable[[], object], device: str) -> Allocations:
    """Count what ``call`` allocates, and its operators; it is called twice."""
    return _count_on_cuda(call) if device == "cuda" else _count_on_cpu(call)


def _count_on_cpu(call: Callable[[], object]) -> Allocations:
    profile, own_thread = torch.autograd.profiler.profile, torch.autograd.profiler.record_function
    with profile(profile_memory=True) as session, own_thread("call"):
        result = call()
    events = session.kineto_results.events()
    del result  # held until here, so that its memory counts as held
    # apart: with all threads, the profiler records no allocations, not even of the caller's thread
    with profile(**profiling_of_all_threads()) as session_of_all:
        call()
    counted_threads = {event.start_thread_id() for event in events}
    elsewhere = [
        event
        for event in session_of_all.kineto_results.events()
        if event.start_thread_id() not in counted_threads
    ]
    sizes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    changes = [size for _, size in sizes]
    held = list(accumulate(changes, initial=0))
    allocated = [size for size in changes if size > 0]
    return Allocations(
        peak_bytes=max(held),
        total_bytes=sum(allocated),
        count=len(allocated),
        held_bytes=held[-1],
        operators=_operators(events),
        operators_elsewhere=_operators(elsewhere),
    )


def _operators(events: Iterable[Any]) -> int:
    """Count the profiler's events that are operators, except those inside an operator of ATen.

    What ATen's operators call is PyTorch's choice; what an implementation's own operators call is
    the implementation's. Nodes of the backward have similar names and are not counted.
    """
    spans = sorted(
        (event.start_ns(), -event.duration_ns(), event.start_thread_id(), event.name())
        for event in events
        if "::" in event.name() and not event.name().startswith(("autograd::", "torch::"))
    )
    count = 0
    ends: dict[int, int] = {}  # of the last outermost operator of ATen, per thread
    for start, minus_duration, thread, name in spans:
        if start < ends.get(thread, 0):
            continue
        count += 1
        if name.startswith("aten::"):
            ends[thread] = start - minus_duration
    return count


def _count_on_cuda(call: Callable[[], object]) -> Allocations:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    result = call()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    del result
    with torch.autograd.profiler.profile() as session:  # a second call: it may allocate itself
        call()

    def grown(key: str) -> int:
        return int(after.get(key, 0) - before.get(key, 0))

    current = "requested_bytes.all.current"  # as asked for, before rounding to 512 bytes
    return Allocations(
        peak_bytes=int(after.get("requested_bytes.all.peak", 0) - before.get(current, 0)),
        total_bytes=grown("requested_bytes.all.allocated"),
        count=grown("allocation.all.allocated"),
        held_bytes=grown(current),
        operators=_operators(session.kineto_results.events()),
        operators_elsewhere=0,  # the statistics are of all threads
    )
