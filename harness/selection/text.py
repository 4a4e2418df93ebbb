"""A choice in words: its reason, its limits, and how each other candidate compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from harness.records import Estimate
from harness.records.text import bytes_text, count, in_words, percent_text, ulp_text
from harness.selection.choose import Choice
from harness.selection.disqualification_text import disqualification_text, out_of_guarantee_text
from harness.selection.eligibility import DisqualificationKind
from harness.selection.pace import is_faster_than, pace_text
from harness.selection.ranking import Candidate, Decider, Ranking, worst_in_common
from harness.selection.times import REFERENCE_NAME

if TYPE_CHECKING:  # it imports pydantic, for which a page has no use
    from harness.selection.workload_choice import WorkloadChoice

__all__ = [
    "answer_text",
    "beyond_text",
    "caveats",
    "limit_text",
    "missing_lines",
    "price_in_workload_text",
    "price_text",
    "run_text",
    "saving_text",
    "workload_answer_text",
]


def answer_text(choice: Choice) -> str:
    """Return why the best candidate was chosen; where there is none, why not."""
    best, decider = choice.best, choice.ranking.decider
    if best is None:
        return _none_text(choice.candidates)
    if decider is Decider.ONLY:
        alone = len(choice.candidates) == 1
        return "the only one measured" if alone else "the only eligible candidate"
    if decider in {Decider.TIME, Decider.ESTIMATE}:
        return _fastest_text(choice.ranking, best, choice.candidates, choice.native_s)
    ends = {Decider.ACCURACY: "and more accurate", Decider.MEMORY: "and takes less memory"}
    end = ends.get(decider, "and nothing else tells them apart") if decider else ""
    return f"as fast as {_tied_labels(choice.ranking)} within the intervals, {end}"


def price_text(candidate: Candidate, choice: Choice) -> str:
    """Return what one would gain and lose with ``candidate`` instead; its name comes before it.

    Such as "1.00x against 0.79x, but loses all digits (first failure measured at ...)".
    """
    best = choice.best
    pace = pace_text(candidate, choice.native_s, best)
    parts = [pace] if pace else []
    if candidate.disqualification is not None:
        reason = disqualification_text(candidate, candidate.disqualification, choice.scenario)
        is_faster = best is not None and is_faster_than(candidate, best)
        parts.append(f"but {reason}" if is_faster else reason)
    else:
        if best is not None:
            parts += _defeat_text(candidate, best, choice.ranking)
        parts += limit_text(candidate, choice)
    return ", ".join(parts) or "the choice"


def limit_text(candidate: Candidate, choice: Choice) -> Iterator[str]:
    """Yield the first failure of an eligible candidate, beyond what is required."""
    unlimited = choice.at_any_condition(candidate)
    if unlimited is None or candidate.disqualification is not None:
        return
    reason = unlimited.disqualification
    if reason is not None:
        yield disqualification_text(unlimited, reason, choice.scenario)


def beyond_text(choice: Choice) -> Iterator[str]:
    """Yield what to run for inputs of any condition, if that is not the choice: a whole phrase."""
    unlimited, best = choice.any_condition, choice.best
    if unlimited is None or best is None:
        return
    other = unlimited.best
    if other is None:
        yield "for inputs of any condition no candidate is eligible"
    elif other.name != best.name:
        pace = pace_text(other, unlimited.native_s, None)
        yield f"for inputs of any condition: {run_text(other.label)}{f', {pace}' if pace else ''}"


def run_text(label: str) -> str:
    """Return what to do: "run NAME" or "keep native"."""
    return f"keep {label}" if label == REFERENCE_NAME else f"run {label}"


def caveats(choice: Choice) -> Iterator[str]:
    """Yield what limits the evidence for the best candidate: predicates of its name."""
    best = choice.best
    if best is None:
        return
    if out_of_guarantee := out_of_guarantee_text(best):
        yield out_of_guarantee
    yield from limit_text(best, choice)
    if best.verified_on < len(choice.distributions):
        yield f"is verified on {best.verified_on} of {len(choice.distributions)} distributions"
    kinds = dict.fromkeys(warning.kind for record in best.timed for warning in record.warnings)
    if kinds:
        names = ", ".join(map(in_words, kinds))
        yield f"has {count(len(kinds), 'warning')}: {names}"


def workload_answer_text(choice: WorkloadChoice) -> str:
    """Return why one candidate was chosen for all calls; where there is none, why not."""
    best, decider = choice.best, choice.ranking.decider
    if best is None:
        ways = (
            "a choice per shape does"
            if choice.per_shape_s
            else "a choice per shape does not either"
        )
        return f"none of {len(choice.candidates)} candidates serves every call; {ways}"
    if decider is Decider.ONLY:
        return "the only candidate that is eligible for every call"
    if decider in {Decider.TIME, Decider.ESTIMATE}:
        return _fastest_text(
            choice.ranking, best, choice.candidates, choice.native_s, ", all calls together"
        )
    tied = _tied_labels(choice.ranking)
    return f"as fast as {tied} within the intervals, all calls together; decided by {decider}"


def price_in_workload_text(candidate: Candidate, choice: WorkloadChoice) -> str:
    """Return what one would gain and lose with ``candidate`` for all calls."""
    pace = pace_text(candidate, choice.native_s, choice.best)
    parts = [pace] if pace else []
    ineligible = choice.ineligible_for[candidate.name]
    for call in ineligible[:1]:
        rest = f" (and {len(ineligible) - 1} more)" if len(ineligible) > 1 else ""
        own, reason = call.candidate(candidate.name), "was not measured"
        if own is not None and own.disqualification is not None:
            reason = disqualification_text(own, own.disqualification, call.choice.scenario)
        parts.append(f"in {call.call.text}{rest} {reason}")
    decider = _defeated_by(candidate, choice.ranking)
    if decider in {Decider.ACCURACY, Decider.MEMORY}:
        parts.append("less accurate" if decider is Decider.ACCURACY else "takes more memory")
    return ", ".join(parts) or "not timed in every call"


def saving_text(choice: WorkloadChoice) -> str:
    """Return what "a choice per shape" would save, as a predicate of these words."""
    saving, best = choice.saving, choice.best
    if choice.per_shape_s is None:
        return "does not serve every call either"
    if saving is None or best is None:
        return "serves every call"
    if all(call.choice.best and call.choice.best.name == best.name for call in choice.calls):
        return "saves nothing: every call has the same choice"
    share = saving.share
    interval = f"{percent_text(share.low)} to {percent_text(share.high)}"
    if not saving.is_certain:
        return f"may save no time: {percent_text(share.value)} ({interval})"
    return f"saves {percent_text(share.value)} of the time ({interval})"


def missing_lines(choice: WorkloadChoice) -> Iterator[str]:
    """Yield which calls the run does not hold, and how many it holds."""
    held, all_calls = choice.covered
    if choice.missing:
        names = ", ".join(f"{call.text} ({call.count} times)" for call in choice.missing)
        yield f"not in the run: {names}"
    yield f"covered: {held} of {all_calls} calls"


def _fastest_text(
    ranking: Ranking,
    best: Candidate,
    candidates: Sequence[Candidate],
    native_s: Estimate | None,
    scope: str = "",
) -> str:
    """Return that the best is the fastest, and how fast the next one is."""
    text = "the fastest"
    if any(is_faster_than(each, best) for each in candidates):
        text += " eligible candidate"
    text += scope
    if ranking.decider is Decider.TIME:
        other = next(each for each in ranking.eligible if each is not best)
    else:
        text += " by its estimate" if not scope else ", by its estimate"
        other = next(each for each, by in ranking.tied if by is Decider.ESTIMATE)
    return f"{text}; {other.label}: {pace_text(other, native_s, best)}"


def _tied_labels(ranking: Ranking) -> str:
    return ", ".join(each.label for each, by in ranking.tied if by is not Decider.ESTIMATE)


def _defeated_by(candidate: Candidate, ranking: Ranking) -> Decider | None:
    return next((by for each, by in ranking.tied if each is candidate), None)


def _defeat_text(candidate: Candidate, best: Candidate, ranking: Ranking) -> Iterator[str]:
    """Yield why an eligible candidate lost a tie with the best."""
    decider = _defeated_by(candidate, ranking)
    if decider is Decider.ACCURACY:
        own, other = worst_in_common([candidate, best])
        errors = f"{ulp_text(own.worst_ulp or 0.0)} against {ulp_text(other.worst_ulp or 0.0)}"
        yield f"less accurate: {errors} on {own.case.distribution}"
    elif decider is Decider.MEMORY:
        own_bytes, other_bytes = candidate.peak_bytes or 0, best.peak_bytes or 0
        yield f"takes more memory: {bytes_text(own_bytes)} against {bytes_text(other_bytes)}"


def _none_text(candidates: Sequence[Candidate]) -> str:
    reasons = [(each, each.disqualification) for each in candidates if each.disqualification]
    kinds = Counter(in_words(reason.kind) for _, reason in reasons)
    text = f"none of {len(candidates)} is eligible: "
    text += ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    off = [
        (max((record.worst_ulp or 0.0 for record in reason.records), default=inf), each.label)
        for each, reason in reasons
        if reason.kind is DisqualificationKind.INACCURATE
    ]
    if off:
        error, nearest = min(off, key=lambda entry: entry[0])
        text += f"; the nearest, {nearest}, is {ulp_text(error)} off"
    return text
