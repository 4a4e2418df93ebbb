"""The timers that are compared, by name.

The harness's sampler and the alternating loop run with the harness's allocator settings. The timers
of other tools run with the system's defaults, as their users run them. One row runs torch's timer
with the harness's settings, to show how much of the difference is due to the allocator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from harness_timer import sampler
from pairs import Pair
from peer_timers import Measured, alternating, blocked, repeated

from harness.records import Allocation

__all__ = ["TIMERS", "Timer", "selected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """One way to time a pair."""

    name: str
    tool: str
    """The tool that provides the timer."""
    expected_s: float
    """Seconds per pair, roughly: for the estimate before a run."""
    measure: Callable[[Pair, Random], Measured] | None = None
    """None for a tool that starts processes of its own."""
    steady: bool = False
    """Whether the harness's allocator settings are made first."""

    @property
    def allocation(self) -> Allocation:
        return Allocation.STEADY if self.steady else Allocation.DEFAULT


def _harness(limit_s: float) -> Timer:
    return Timer(
        name=f"harness-{limit_s}",
        tool="harness",
        expected_s=limit_s,
        measure=partial(sampler, limit_s=limit_s),
        steady=True,
    )


def _alternating(run_s: float) -> Timer:
    return Timer(
        name=f"alternating-{run_s}",
        tool="alternating",
        expected_s=run_s,
        measure=partial(alternating, run_s=run_s),
        steady=True,
    )


def _blocked(min_run_time: float, *, steady: bool = False) -> Timer:
    return Timer(
        name=f"blocked-{min_run_time}{'-steady' if steady else ''}",
        tool="torch",
        expected_s=2.1 * min_run_time,
        measure=partial(blocked, min_run_time=min_run_time),
        steady=steady,
    )


TIMERS = (
    _harness(0.3),
    _harness(1.0),
    _alternating(0.3),
    _alternating(1.0),
    _blocked(1.0),
    _blocked(1.0, steady=True),
    Timer(name="timeit", tool="timeit", expected_s=4.2, measure=repeated),
    Timer(name="pytest-benchmark", tool="pytest-benchmark", expected_s=5),
)


def selected(names: str) -> tuple[Timer, ...]:
    """Timers by name or by the beginning of one, separated by commas: "harness,blocked-1.0".

    Raises:
        ValueError: there is none of that name.
    """
    found = []
    for name in names.split(","):
        matching = [timer for timer in TIMERS if f"{timer.name}-".startswith(f"{name}-")]
        if not matching:
            raise ValueError(f"no timer {name!r}; there are {', '.join(t.name for t in TIMERS)}")
        found += [timer for timer in matching if timer not in found]
    return tuple(found)
