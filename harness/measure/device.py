"""The interface of a device that is measured; the CPU, CUDA and a fake for tests implement it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from harness.records import Clock, DeviceState

POWER_CAP = "power cap"
"""Reason for throttling that may last: the device then works at the speed that its power allows."""


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


class Device(Protocol):
    """One device."""

    kind: str
    clock: Clock

    def wake(self) -> None:
        """Bring an idle device to its working speed."""

    def unavailable(self) -> str | None:
        """Return why the device cannot be used, or None."""

    def free_bytes(self) -> int | None:
        """Return the free memory, or None where it is unknown."""

    def cache_bytes(self) -> int:
        """Return the size of the last-level cache, or a guess above it where it is unknown."""

    def resolution_s(self) -> float:
        """Return the smallest difference that the clock shows, measured once."""

    def synchronize(self) -> None:
        """Wait until all issued work is done."""

    def evict(self) -> None:
        """Overwrite the caches, so that the next call finds nothing in them."""

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        """Time ``calls`` calls in a row."""

    def replayed(self, prepare: Callable[[], Callable[[], object]]) -> Callable[[], object] | None:
        """Return a replay of a call's work without the host's part; None if it cannot be recorded.

        Args:
            prepare: returns the call.
        """

    def condition(self) -> DeviceState:
        """Return the device's present condition."""
