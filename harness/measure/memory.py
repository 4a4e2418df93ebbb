"""Count what one call allocates, and its operators: exact, and the same in every process.

On the CPU the profiler's memory events are added up. They cover every tensor allocation, also
inside operators and compiled code. The resident set size would show what the allocator retains
instead, and a dispatch mode would disable compiled code. The profiler records the operators, too.

Two kinds of memory are invisible: what other libraries allocate, and on the CPU what the caller's
other Python threads allocate, since torch reports allocations to the profiler of their own thread
(pytorch/pytorch#192290). Both are detected by :func:`undercounted`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from harness.records.text import bytes_text, count
from implementations.torch_private import profiling_of_all_threads

__all__ = ["Allocations", "count_allocations", "uncountable", "undercounted"]

# read by the profiler at its first use; otherwise each session prints to standard error
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


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
    if device not in {"cpu", "cuda"}:
        return f"allocations on {device} cannot be counted"
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
    counted_threads = {each.start_thread_id() for each in events}
    elsewhere = [
        each
        for each in session_of_all.kineto_results.events()
        if each.start_thread_id() not in counted_threads
    ]
    sizes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
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
        (each.start_ns(), -each.duration_ns(), each.start_thread_id(), each.name())
        for each in events
        if "::" in each.name() and not each.name().startswith(("autograd::", "torch::"))
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
