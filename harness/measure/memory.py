"""Memory of one call, by the allocator's own count: exact, and the same in every process.

On the CPU the profiler's memory events are added up. They see every tensor allocation, those
inside operators and compiled code too; resident set size sees the allocator's habits instead,
and a dispatch mode would undo the compilation it watches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

__all__ = ["Allocations", "count_allocations", "uncountable"]

# read by the profiler at its first use; without it each session prints lines to standard error
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass(frozen=True, slots=True)
class Allocations:
    """What was allocated during a call, the result still held at its end."""

    peak_bytes: int
    """Most held at once, beyond what was held before."""
    total_bytes: int
    """Sum of all allocations."""
    count: int
    held_bytes: int
    """Still held when the call had returned: its result and what that keeps alive."""


def uncountable(device: str) -> str | None:
    """Why allocations on a device kind cannot be counted, or None if they can."""
    if device == "cpu" and not torch.profiler.kineto_available():
        return "torch is built without its profiler (Kineto), which counts allocations on the CPU"
    if device not in {"cpu", "cuda"}:
        return f"allocations on {device} cannot be counted"
    return None


def count_allocations(call: Callable[[], object], device: str) -> Allocations:
    """Run ``call`` once and count its allocations on a device kind."""
    return _count_on_cuda(call) if device == "cuda" else _count_on_cpu(call)


def _count_on_cpu(call: Callable[[], object]) -> Allocations:
    with torch.autograd.profiler.profile(profile_memory=True) as session:
        result = call()
    events = sorted(
        (each.start_ns(), each.nbytes())
        for each in session.kineto_results.events()
        if each.name() == "[memory]"
    )
    del result  # held until here, so that its memory counts as held
    changes = [size for _, size in events]
    held = list(accumulate(changes, initial=0))
    allocated = [size for size in changes if size > 0]
    return Allocations(
        peak_bytes=max(held), total_bytes=sum(allocated), count=len(allocated), held_bytes=held[-1]
    )


def _count_on_cuda(call: Callable[[], object]) -> Allocations:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    result = call()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    del result

    def grown(key: str) -> int:
        return int(after.get(key, 0) - before.get(key, 0))

    current = "requested_bytes.all.current"  # as asked for, before rounding to 512 bytes
    return Allocations(
        peak_bytes=int(after.get("requested_bytes.all.peak", 0) - before.get(current, 0)),
        total_bytes=grown("requested_bytes.all.allocated"),
        count=grown("allocation.all.allocated"),
        held_bytes=grown(current),
    )
