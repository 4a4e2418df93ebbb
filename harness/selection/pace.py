"""How fast candidates are, in words: speeds relative to native, higher is faster.

Where native was not timed, times are written instead.
"""

from __future__ import annotations

from math import isinf

from harness.records import Estimate
from harness.records.speed import speed_interval_text, speed_text
from harness.records.text import seconds_text
from harness.selection.choose import Choice
from harness.selection.ranking import Candidate, is_close, is_tie, speed_of
from harness.selection.times import NATIVE

__all__ = ["is_faster_than", "pace_text", "speed_in"]


def speed_in(choice: Choice, candidate: Candidate | None) -> str:
    """Return the speed of a candidate relative to native, with its interval; else "-"."""
    speed = None if candidate is None else choice.speed(candidate)
    if candidate is None or speed is None:
        return "-"
    return speed_text(1.0) if candidate.name == NATIVE else speed_interval_text(speed)


def pace_text(candidate: Candidate, native_s: Estimate | None, best: Candidate | None) -> str:
    """Return how fast a candidate is, and how that compares to the best; empty if not timed."""
    cost = candidate.cost
    if cost is None:
        return ""
    pace = _speed_or_time(candidate, native_s)
    if best is None or best.cost is None or isinf(cost.high):
        return pace
    if is_tie(candidate, best):
        if is_close(candidate, best) and is_close(best, candidate):
            return f"{pace}, as fast within the intervals"
        speed = None if candidate.name == NATIVE else speed_of(candidate, native_s)
        ends = f" [{speed_text(speed.low)}, {speed_text(speed.high)}]" if speed else ""
        return f"{pace}{ends}, may be as fast"
    return (
        f"{pace} against {_speed_or_time(best, native_s)}"
        if is_faster_than(candidate, best)
        else pace
    )


def _speed_or_time(candidate: Candidate, native_s: Estimate | None) -> str:
    """Return the speed relative to native; the time where native was not timed."""
    assert candidate.cost is not None  # the callers check it
    if candidate.name == NATIVE:
        return speed_text(1.0)
    if native_s is None:
        return seconds_text(candidate.cost.value)
    return speed_text(native_s.value / candidate.cost.value)


def is_faster_than(candidate: Candidate, best: Candidate) -> bool:
    """Whether the estimate of a candidate's time is below that of the best."""
    return bool(candidate.cost and best.cost and candidate.cost.value < best.cost.value)
