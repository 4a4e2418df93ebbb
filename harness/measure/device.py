"""What measuring needs of a device: the CPU and CUDA have files of their own, tests script one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from harness.records import Clock, Condition

__all__ = ["Device", "Reading"]


class Reading(NamedTuple):
    """Seconds that a number of calls took together."""

    wall_s: float
    """By the wall clock, or between two events of the device."""
    cpu_s: float | None
    """CPU time of the calling thread; None where others do the work."""
    launch_s: float | None = None
    """Until the host had issued the calls; None where calling and working are one."""
    process_s: float | None = None
    """CPU time of all threads of this process; None where that is not looked at."""


class Device(Protocol):
    """One device."""

    kind: str
    clock: Clock

    def wake(self) -> None:
        """Bring the device from rest to the speed it works at."""

    def unavailable(self) -> str | None:
        """Why the device cannot be used, or None if it can."""

    def free_bytes(self) -> int | None:
        """Memory that can still be taken, or None where that is not known."""

    def cache_bytes(self) -> int:
        """Size of the last-level cache, or a guess above it where that is not known."""

    def resolution_s(self) -> float:
        """Smallest difference that the clock shows, as measured once."""

    def synchronize(self) -> None:
        """Wait until everything issued so far is done."""

    def evict(self) -> None:
        """Overwrite the caches, so that the next call finds nothing in them."""

    def time(self, call: Callable[[], object], calls: int) -> Reading:
        """Time ``calls`` calls in a row."""

    def replayed(self, prepare: Callable[[], Callable[[], object]]) -> Callable[[], object] | None:
        """The work of a call without the host's part in it; None where there is no such thing.

        Args:
            prepare: returns the call.
        """

    def condition(self) -> Condition:
        """What the device is going through at this moment."""
