"""Whether the fresh processes that time a suspect again agree that it changed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from harness.records.speed import speed_text

__all__ = ["CONFIRMING_PROCESSES", "rules_out", "speeds_text", "why_too_few"]

# simulated with the limits of harness.regression.latency_test, where the result is
CONFIRMING_PROCESSES = 5


def rules_out(confirmed: Sequence[float], *, each: float, middle: float, is_slower: bool) -> bool:
    """Whether these fresh processes rule out a change, whatever those that may follow find.

    Args:
        confirmed: the ratio in each process so far.
        each: ratio that every process has to exceed or, if not ``is_slower``, to stay below.
        middle: ratio that the median of all processes has to exceed or to stay below.
        is_slower: the direction of the change.
    """

    def short_of(limit: float) -> int:
        return sum(ratio <= limit if is_slower else ratio >= limit for ratio in confirmed)

    is_usable = all(0 < ratio < inf for ratio in confirmed)
    return is_usable and (short_of(each) > 0 or short_of(middle) > CONFIRMING_PROCESSES // 2)


def why_too_few(confirmed: Sequence[float]) -> str | None:
    """Return why the ratios of the fresh processes confirm nothing; None if they can."""
    valid = sum(0 < ratio < inf for ratio in confirmed)
    if valid == len(confirmed) >= CONFIRMING_PROCESSES:
        return None
    return f"only {valid} of {CONFIRMING_PROCESSES} processes could time it again"


def speeds_text(ratios: Sequence[float]) -> str:
    """Return the least and the largest speed, as in ``0.97x to 1.02x``."""
    return " to ".join(dict.fromkeys(speed_text(1 / each(ratios), 3) for each in (max, min)))
