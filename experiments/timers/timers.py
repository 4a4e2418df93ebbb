"""The timers that are compared, by name.

The harness's sampler runs with the harness's allocator settings. The other timers run with the
system's defaults. One row runs torch's timer with the harness's settings, to show how much of the
difference is due to the allocator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from harness_timer import sampler
from pairs import COMPARED_PAIRS, RATIO_PAIRS, Pair
from peer_timers import Measured, adaptive, alternating, blocked, repeated

from harness.records import Allocation

__all__ = ["ALTERNATING_S", "TIMERS", "Timer", "selected"]

ALTERNATING_S = 2.0  # ten times the shortest budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """One way to time a pair."""

    name: str
    tool: str
    """The tool that provides the timer. Each tool has one vote on the true ratio."""
    quiet_s: float
    """Seconds per pair, roughly: for the estimate before a run."""
    loaded_s: float
    """The same, with every core kept busy by other processes."""
    measure: Callable[[Pair, Random], Measured] | None = None
    """None for a tool that starts processes of its own."""
    steady: bool = False
    """Whether the harness's allocator settings are made first."""
    quiet_only: bool = False
    """Whether it only votes on the true ratio and is not compared."""
    every: int = 1
    """It runs in every n-th repeat: slow timers run less often."""
    pairs: tuple[str, ...] = COMPARED_PAIRS
    """Names of the pairs that it measures."""

    @property
    def allocation(self) -> Allocation:
        return Allocation.STEADY if self.steady else Allocation.DEFAULT


def _harness(limit_s: float) -> Timer:
    return Timer(
        name=f"harness-{limit_s}",
        tool="harness",
        quiet_s=limit_s,
        loaded_s=1.3 * limit_s,
        measure=partial(sampler, limit_s=limit_s),
        steady=True,
    )


def _blocked(min_run_time: float, *, steady: bool = False) -> Timer:
    return Timer(
        name=f"blocked-{min_run_time}{'-steady' if steady else ''}",
        tool="torch",
        quiet_s=2.1 * min_run_time,
        loaded_s=2.6 * min_run_time,
        measure=partial(blocked, min_run_time=min_run_time),
        steady=steady,
    )


def _alternating(*, steady: bool = False) -> Timer:
    return Timer(
        name=f"alternating{'-steady' if steady else ''}",
        tool="alternating",
        quiet_s=ALTERNATING_S,
        loaded_s=ALTERNATING_S,
        measure=partial(alternating, run_s=ALTERNATING_S),
        steady=steady,
        quiet_only=True,
        every=2,
    )


TIMERS = (
    _harness(0.2),
    _harness(0.3),
    _harness(1.0),
    _blocked(0.2),
    _blocked(1.0),
    _blocked(1.0, steady=True),
    Timer(name="adaptive", tool="torch", quiet_s=0.5, loaded_s=11, measure=adaptive, every=2),
    Timer(name="timeit", tool="timeit", quiet_s=4.2, loaded_s=5.5, measure=repeated, every=2),
    Timer(name="pytest-benchmark", tool="pytest-benchmark", quiet_s=4, loaded_s=7, every=2),
    Timer(name="pyperf", tool="pyperf", quiet_s=95, loaded_s=240, every=4, pairs=RATIO_PAIRS),
    _alternating(),
    _alternating(steady=True),
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
