"""The devices that can be measured: whether they are there, and how a run of calls is timed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple, Protocol

import torch

from harness.records import Clock

__all__ = ["DEVICES", "CpuDevice", "CudaDevice", "Device", "Reading", "device_of"]


class Reading(NamedTuple):
    """Seconds that a number of calls took together."""

    wall_s: float
    cpu_s: float | None
    """CPU time of the calling thread; None where others do the work."""


class Device(Protocol):
    """One device; tests script a fake one."""

    kind: str
    clock: Clock

    def unavailable(self) -> str | None:
        """Why the device cannot be used, or None if it can."""

    def free_bytes(self) -> int | None:
        """Memory that can still be taken, or None where that is not known."""

    def synchronize(self) -> None:
        """Wait until everything issued so far is done."""

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        """Time ``calls`` calls in a row."""


class CpuDevice:
    """The CPU; the clock is the calling thread's CPU time as long as it works alone."""

    kind = "cpu"

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.clock = Clock.THREAD_CPU if threads == 1 else Clock.WALL
        self._clock_cost_ns = _thread_clock_cost_ns()

    def unavailable(self) -> str | None:
        return None

    def free_bytes(self) -> int | None:
        try:
            with open("/proc/meminfo") as file:
                available = next(line for line in file if line.startswith("MemAvailable:"))
        except (OSError, StopIteration):
            return None
        return int(available.split()[1]) * 1024

    def synchronize(self) -> None:
        return

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        repeats = range(calls)
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        for _ in repeats:
            call()
        end = perf_counter_ns()
        cpu_end = thread_time_ns()
        if self.threads > 1:
            return Reading((end - start) / 1e9, None)
        # at least 1 ns: the thread clock has been seen to step back by its own cost
        return Reading((end - start) / 1e9, max(cpu_end - cpu_start - self._clock_cost_ns, 1) / 1e9)


class CudaDevice:
    """The current CUDA device, timed by events on its stream."""

    kind = "cuda"
    clock = Clock.CUDA_EVENT

    def unavailable(self) -> str | None:
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA"
        return None if torch.cuda.is_available() else "torch sees no CUDA device"

    def free_bytes(self) -> int | None:
        free, _ = torch.cuda.mem_get_info()
        return int(free)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(calls):
            call()
        after.record()
        after.synchronize()
        return Reading(before.elapsed_time(after) / 1e3, None)  # it gives milliseconds


DEVICES: dict[str, Callable[[], Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}


def device_of(kind: str, threads: int) -> Device:
    """Return the device of that kind, for calls that use ``threads`` CPU threads."""
    return CpuDevice(threads) if kind == "cpu" else DEVICES[kind]()


def _thread_clock_cost_ns() -> int:
    """Measure what reading the clocks themselves adds to a CPU time."""
    costs = []
    for _ in range(101):
        start = thread_time_ns()
        perf_counter_ns()
        perf_counter_ns()
        costs.append(thread_time_ns() - start)
    return int(median(costs))
