"""The CPU, timed by the CPU time of the calling thread while no other thread works.

The CPU time of the process, read together with that of the thread, shows whether another thread
worked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import NamedTuple

import torch

from harness.records import Clock, DeviceState

POWER_CAP = "power cap"
"""Reason for throttling that may last: the device then works at the speed that its power allows."""

_UNKNOWN_CACHE_BYTES = 64 << 20  # above the last-level cache of most processors
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_SUPPLIES = Path("/sys/class/power_supply")


class Reading(NamedTuple):
    """Seconds that some calls took together."""

    wall_s: float
    """By the wall clock or, on a GPU, between two of its events."""
    cpu_s: float | None
    """CPU time of the calling thread; None where other threads or a device do the work."""
    launch_s: float | None = None
    """Until the host had issued the calls; None where a call does the work itself."""
    process_s: float | None = None
    """CPU time of all threads of this process; None where it is not read."""


class CpuDevice:
    """The CPU. A device has these methods; a call is prepared by binding it to inputs."""

    kind = "cpu"

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.clock = Clock.THREAD_CPU if threads == 1 else Clock.WALL
        self._thread_cost_ns, self._process_cost_ns = _clock_costs_ns()
        self._flood: torch.Tensor | None = None

    def wake(self) -> None:
        """Bring an idle device to its working speed: the calls of the warm-up raise the clocks."""

    def unavailable(self) -> str | None:
        """Return why the device cannot be used, or None."""
        return None

    def free_bytes(self) -> int | None:
        """Return the free memory, or None where it is unknown."""
        try:
            with open("/proc/meminfo") as file:
                available = next(line for line in file if line.startswith("MemAvailable:"))
        except (OSError, StopIteration):
            return None
        return int(available.split()[1]) * 1024

    def cache_bytes(self) -> int:
        """Return the size of the last-level cache, or a guess above it where it is unknown."""
        sizes = [_bytes_of(text) for path in _CACHES.glob("index*/size") if (text := _text(path))]
        return max(sizes, default=_UNKNOWN_CACHE_BYTES)

    def resolution_s(self) -> float:
        """Return the smallest difference that the clock shows, measured once."""
        clock = thread_time_ns if self.clock is Clock.THREAD_CPU else perf_counter_ns
        return _step_ns(clock) / 1e9

    def synchronize(self) -> None:
        """Wait until all issued work is done."""

    def evict(self) -> None:
        """Overwrite the caches, so that the next call finds nothing in them."""
        if self._flood is None:
            # 2.5 times the cache, since its replacement is not exactly least-recently-used
            self._flood = torch.zeros(self.cache_bytes() * 5 // 2, dtype=torch.uint8)
        self._flood.add_(1)

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        """Time ``calls`` calls in a row."""
        repeats = range(calls)
        process_start = process_time_ns()
        cpu_start = thread_time_ns()
        start = perf_counter_ns()
        for _ in repeats:
            call()
        end = perf_counter_ns()
        cpu_end = thread_time_ns()
        process_end = process_time_ns()
        if self.threads > 1:
            return Reading((end - start) / 1e9, None)
        return Reading(
            (end - start) / 1e9,
            (cpu_end - cpu_start - self._thread_cost_ns) / 1e9,
            process_s=(process_end - process_start - self._process_cost_ns) / 1e9,
        )

    def replayed(self, prepare: Callable[[], Callable[[], object]]) -> Callable[[], object] | None:
        """Return a replay of a call without the host's part; None if it cannot be recorded."""
        return None

    def condition(self) -> DeviceState:
        """Return the device's present condition."""
        return DeviceState(
            load_average=_load_average(),
            steal_s=_steal_s(),
            governor=_text(_GOVERNOR),
            on_battery=_on_battery(),
        )


def _clock_costs_ns() -> tuple[int, int]:
    """Measure the CPU time that reading the clocks adds to that of the thread and the process."""
    of_thread, of_process = [], []
    for _ in range(101):
        process_start = process_time_ns()
        start = thread_time_ns()
        perf_counter_ns()
        perf_counter_ns()
        of_thread.append(thread_time_ns() - start)
        of_process.append(process_time_ns() - process_start)
    return int(median(of_thread)), int(median(of_process))


def _step_ns(clock: Callable[[], int]) -> int:
    """Return the smallest difference between two durations that the clock shows.

    A fine clock shows durations a nanosecond apart, since reading it takes varying time; a coarse
    one shows multiples of its step.
    """
    shown = set()
    for _ in range(101):
        start = now = clock()
        while now == start:
            now = clock()
        shown.add(now - start)
    durations = sorted(shown)
    return min((later - earlier for earlier, later in pairwise(durations)), default=durations[0])


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _bytes_of(size: str) -> int:
    """Read "32768K", as the kernel writes the size of a cache."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(size.rstrip("KMG")) * factors.get(size[-1], 1)


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # not on this system, or unreadable
        return None


def _steal_s() -> float | None:
    """Return the eighth number of the first line of /proc/stat, as seconds; see proc_stat(5)."""
    first = (_text(Path("/proc/stat")) or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    return int(first[8]) / os.sysconf("SC_CLK_TCK")


def _on_battery() -> bool | None:
    mains = [supply for supply in _SUPPLIES.glob("*") if _text(supply / "type") == "Mains"]
    online = [text for supply in mains if (text := _text(supply / "online"))]
    return "1" not in online if online else None
