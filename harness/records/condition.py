"""What a machine was going through while something was measured on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Condition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """State of a device at one moment. Each field is None where it cannot be read."""

    load_average: float | None = None
    """Processes that wanted to run, over the last minute."""
    steal_s: float | None = None
    """CPU time that the hypervisor gave to other machines, all CPUs, since this one started."""
    governor: str | None = None
    """CPU frequency governor, e.g. "performance"."""
    on_battery: bool | None = None
    """Whether the machine runs on its battery."""
    clock_hz: float | None = None
    """Clock of the GPU's multiprocessors."""
    clock_max_hz: float | None = None
    """Largest such clock."""
    memory_clock_hz: float | None = None
    """Clock of the GPU's memory."""
    power_w: float | None = None
    """Power that the GPU draws."""
    power_limit_w: float | None = None
    """Most that it may draw."""
    temperature_c: float | None = None
    """Temperature of the GPU."""
    throttled_by: tuple[str, ...] | None = None
    """Why the GPU runs below the clock it would choose; empty when it does not."""
    other_processes: int | None = None
    """Processes other than this one that compute on the GPU."""
