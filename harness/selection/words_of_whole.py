"""The choice for a workload in words."""

from __future__ import annotations

from collections.abc import Iterator

from harness.selection.ranking import Candidate, Decider
from harness.selection.text import disqualification_text
from harness.selection.whole import Load, Whole
from harness.selection.words_of_speed import fastest_words, rival_words, speed_words, tied_words

__all__ = ["gain_words", "missing_lines", "price_in_whole", "whole_reason"]


def whole_reason(whole: Whole) -> str:
    """Why this one for all calls; where there is none, why not."""
    best = whole.best
    if best is None:
        ways = "a choice for each shape does" if whole.dispatch_s else "no choice for each does"
        return f"none of {len(whole.candidates)} serves every call; {ways}"
    others = [each for each in whole.ranking.eligible if each is not best]
    fastest = fastest_words(best, whole.candidates)
    if whole.ranking.decider is Decider.ONLY:
        return "the only one to be relied on for every call"
    if whole.ranking.decider is Decider.TIME:
        return f"{fastest}, all calls together; {others[0].label} {speed_words(others[0], best)}"
    if whole.ranking.decider is Decider.ESTIMATE:
        return f"{fastest}, all calls together, by its estimate; {rival_words(whole.ranking, best)}"
    tied = tied_words(whole.ranking)
    return f"in all as fast as {tied} within the intervals; decided by {whole.ranking.decider}"


def price_in_whole(candidate: Candidate, whole: Whole) -> str:
    """What one would get, and pay, with ``candidate`` for all calls: a predicate to its name."""
    parts = []
    if whole.best is not None and candidate.cost is not None:
        parts.append(speed_words(candidate, whole.best))
    faulty = dict(whole.disqualifications)[candidate.label]
    for load in faulty[:1]:
        rest = f" (and {len(faulty) - 1} more)" if len(faulty) > 1 else ""
        found = [each for each in load.choice.candidates if each.label == candidate.label]
        why = "was not asked"
        if found and found[0].disqualification is not None:
            why = disqualification_text(found[0], found[0].disqualification, load.choice.scenario)
        parts.append(f"in {load.call.words}{rest} {why}")
    by = next((by for each, by in whole.ranking.tied if each is candidate), None)
    if by in {Decider.ACCURACY, Decider.MEMORY}:
        parts.append("is less accurate" if by is Decider.ACCURACY else "takes more memory")
    return " and ".join(parts) or "is not timed in every call"


def gain_words(whole: Whole) -> str:
    """What a choice for each shape would add, as a share of the time of the one for all."""
    gain = whole.gain
    if whole.dispatch_s is None:
        return "does not serve every call either"
    if gain is None:
        return "serves every call"
    if all(_is_for_all(load, whole) for load in whole.loads):
        return "adds nothing: each is the one for all"
    share = gain.share
    interval = f"{_percent(share.low)} to {_percent(share.high)}"
    if not gain.is_certain:
        return f"cannot tell whether it saves time: {_percent(share.value)}, within {interval}"
    return f"saves {_percent(share.value)} of the time ({interval})"


def _is_for_all(load: Load, whole: Whole) -> bool:
    own, best = load.choice.best, whole.best
    return own is not None and best is not None and own.label == best.label


def missing_lines(whole: Whole) -> Iterator[str]:
    """Name the calls that the run does not hold, and say what share it does."""
    held, there = whole.covered
    if whole.missing:
        names = ", ".join(f"{each.words} ({each.count} times)" for each in whole.missing)
        yield f"not in the run: {names}"
    yield f"covered: {held} of {there} calls ({_percent(held / there)})"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
