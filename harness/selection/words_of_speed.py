"""How fast one candidate is beside another, in words, as far as their intervals tell."""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf

from harness.selection.ranking import Candidate, Decider, Ranking, is_close, is_tie

__all__ = ["fastest_words", "rival_words", "speed_words", "tied_words"]

_BY_RATIO = 1.5  # ours: from here on "times as slow" is read more easily than a percentage


def speed_words(candidate: Candidate, best: Candidate) -> str:
    """How fast one is beside another, as far as the intervals tell."""
    assert candidate.cost is not None  # who asks has looked
    assert best.cost is not None
    ratio = candidate.cost.value / best.cost.value
    if isinf(candidate.cost.high):
        return f"took {ratio:.3g} times as long"
    if is_tie(candidate, best):
        if is_close(candidate, best) and is_close(best, candidate):
            return "is as fast within the intervals"
        assert candidate.span is not None  # it has a cost
        low, high = (each / best.cost.value for each in (candidate.span.low, candidate.span.high))
        return f"may be as fast: its interval is {low:.3g} to {high:.3g} times that of {best.label}"
    if ratio >= _BY_RATIO:
        return f"is {ratio:.3g} times as slow"
    if ratio > 1:
        return f"is {_percent(ratio - 1)} slower"
    if ratio > 1 / _BY_RATIO:
        return f"is {_percent(1 - ratio)} faster"
    return f"is {1 / ratio:.3g} times as fast"


def fastest_words(best: Candidate, candidates: Iterable[Candidate]) -> str:
    """What the fastest of those to be relied on is among all that were timed."""
    faster = any(
        each.cost is not None and best.cost is not None and each.cost.value < best.cost.value
        for each in candidates
    )
    return "the fastest of those to be relied on" if faster else "the fastest"


def tied_words(ranking: Ranking) -> str:
    """Who is as fast as the best, within the intervals and close."""
    return ", ".join(each.label for each, by in ranking.tied if by is not Decider.ESTIMATE)


def rival_words(ranking: Ranking, best: Candidate) -> str:
    """Who may be as fast as the best, the first of them, for all that a wide interval tells."""
    rival = next(each for each, by in ranking.tied if by is Decider.ESTIMATE)
    return f"{rival.label} {speed_words(rival, best)}"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %"
