"""The state of a machine while something is measured on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Condition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """State of a device at one moment. Each field is None where it cannot be read."""

    load_average: float | None = None
    """Average number of runnable processes over the last minute."""
    steal_s: float | None = None
    """CPU time that the hypervisor gave to other machines since boot, summed over all CPUs."""
    governor: str | None = None
    """CPU frequency governor, e.g. "performance"."""
    on_battery: bool | None = None
    """Whether the machine runs on its battery."""
    clock_hz: float | None = None
    """Clock of the GPU's multiprocessors."""
    clock_max_hz: float | None = None
    """Maximum clock of the GPU's multiprocessors."""
    memory_clock_hz: float | None = None
    """Clock of the GPU's memory."""
    power_w: float | None = None
    """Power draw of the GPU."""
    power_limit_w: float | None = None
    """Power limit of the GPU."""
    temperature_c: float | None = None
    """Temperature of the GPU."""
    throttled_by: tuple[str, ...] | None = None
    """Reasons why the GPU's clock is reduced; empty where it is not."""
    other_processes: int | None = None
    """Number of other processes that compute on the GPU."""
