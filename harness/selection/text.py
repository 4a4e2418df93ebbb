"""A choice in words: its reason, how each other candidate compares, and its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf, isinf

from harness.records import Environment, Run
from harness.records.text import bytes_text, count, in_words, percent_text, ulp_text
from harness.selection.choose import Choice, Choices
from harness.selection.disqualification_text import disqualification_text, out_of_guarantee_text
from harness.selection.eligibility import DisqualificationKind
from harness.selection.ranking import (
    Candidate,
    Decider,
    Ranking,
    is_close,
    is_tie,
    worst_in_common,
)
from harness.selection.times import LONG_FLOOR, SHORT_FLOOR
from harness.selection.workload_choice import WorkloadChoice

__all__ = [
    "WIDENED_TEXT",
    "answer_text",
    "caveats",
    "evidence_lines",
    "missing_lines",
    "price_in_workload_text",
    "price_text",
    "saving_text",
    "workload_answer_text",
]

WIDENED_TEXT = (
    f"An interval over one process is widened by {percent_text(SHORT_FLOOR - 1)} either way, and "
    f"that of a call over 1 ms by {percent_text(LONG_FLOOR - 1)}, because processes differ by as "
    "much."
)
"""How the comparison treats intervals over one process."""

_BY_RATIO = 1.5  # trade-off: above it "times as slow" is easier to read than a percentage


def answer_text(choice: Choice) -> str:
    """Return why the best candidate was chosen; where there is none, why not."""
    best, decider = choice.best, choice.ranking.decider
    if best is None:
        return _none_text(choice.candidates)
    if decider is Decider.ONLY:
        alone = len(choice.candidates) == 1
        return "the only one measured" if alone else "the only eligible candidate"
    if decider in {Decider.TIME, Decider.ESTIMATE}:
        return _fastest_text(choice.ranking, best, choice.candidates)
    ends = {Decider.ACCURACY: "and more accurate", Decider.MEMORY: "and takes less memory"}
    end = ends.get(decider, "and nothing else tells them apart") if decider else ""
    return f"as fast as {_tied_labels(choice.ranking)} within the intervals, {end}"


def price_text(candidate: Candidate, choice: Choice) -> str:
    """Return what one would gain and lose with ``candidate`` instead: a predicate of its name."""
    best = choice.best
    parts = []
    if best is not None and candidate.cost is not None:
        parts.append(_speed_text(candidate, best))
    if candidate.disqualification is not None:
        parts.append(disqualification_text(candidate, candidate.disqualification, choice.scenario))
    elif best is not None:
        parts += _defeat_text(candidate, best, choice.ranking)
    return " and ".join(parts) or "is the choice"


def caveats(choice: Choice) -> Iterator[str]:
    """Yield what limits the evidence for the best candidate: predicates of its name."""
    best = choice.best
    if best is None:
        return
    if out_of_guarantee := out_of_guarantee_text(best):
        yield out_of_guarantee
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
        return _fastest_text(choice.ranking, best, choice.candidates, ", all calls together")
    tied = _tied_labels(choice.ranking)
    return f"as fast as {tied} within the intervals, all calls together; decided by {decider}"


def price_in_workload_text(candidate: Candidate, choice: WorkloadChoice) -> str:
    """Return what one would gain and lose with ``candidate`` for all calls."""
    parts = []
    if choice.best is not None and candidate.cost is not None:
        parts.append(_speed_text(candidate, choice.best))
    ineligible = choice.ineligible_for[candidate.name]
    for call in ineligible[:1]:
        rest = f" (and {len(ineligible) - 1} more)" if len(ineligible) > 1 else ""
        own, reason = call.candidate(candidate.name), "was not measured"
        if own is not None and own.disqualification is not None:
            reason = disqualification_text(own, own.disqualification, call.choice.scenario)
        parts.append(f"in {call.call.text}{rest} {reason}")
    decider = _defeated_by(candidate, choice.ranking)
    if decider in {Decider.ACCURACY, Decider.MEMORY}:
        parts.append("is less accurate" if decider is Decider.ACCURACY else "takes more memory")
    return " and ".join(parts) or "is not timed in every call"


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


def evidence_lines(choices: Choices, names: Sequence[str]) -> Iterator[str]:
    """Yield the runs that the choices are based on, with their dates and machines."""
    runs = ", ".join(map(_run_text, choices.runs)) or "the run is not known"
    yield f"evidence: {', '.join(names)}: {runs}"
    for environment in choices.environments.values():
        yield f"measured on {_environment_text(environment)}"
    processes = min(
        (
            record.latency.processes
            for choice in choices.choices
            for candidate in choice.candidates
            for record in candidate.timed
            if record.latency is not None
        ),
        default=0,
    )
    if processes == 1:
        yield f"some intervals are over one process only (see `run --processes`). {WIDENED_TEXT}"
    elif processes:
        yield f"intervals are over {processes} processes or more"


def _fastest_text(
    ranking: Ranking, best: Candidate, candidates: Sequence[Candidate], scope: str = ""
) -> str:
    """Return that the best is the fastest, and how fast the next one is."""
    faster = any(
        each.cost and best.cost and each.cost.value < best.cost.value for each in candidates
    )
    text = f"the fastest{' eligible candidate' if faster else ''}{scope}"
    if ranking.decider is Decider.TIME:
        other = next(each for each in ranking.eligible if each is not best)
    else:
        text += " by its estimate" if not scope else ", by its estimate"
        other = next(each for each, by in ranking.tied if by is Decider.ESTIMATE)
    return f"{text}; {other.label} {_speed_text(other, best)}"


def _speed_text(candidate: Candidate, best: Candidate) -> str:
    """Return how fast a candidate is compared to the best, as far as the intervals tell."""
    assert candidate.cost is not None  # the callers check it
    assert best.cost is not None
    ratio = candidate.cost.value / best.cost.value
    if isinf(candidate.cost.high):
        return f"took {ratio:.3g} times as long"
    if is_tie(candidate, best):
        if is_close(candidate, best) and is_close(best, candidate):
            return "is as fast within the intervals"
        assert candidate.widened_cost is not None  # it has a cost
        low = candidate.widened_cost.low / best.cost.value
        high = candidate.widened_cost.high / best.cost.value
        return f"may be as fast: its interval is {low:.3g} to {high:.3g} times that of {best.label}"
    if ratio >= _BY_RATIO:
        return f"is {ratio:.3g} times as slow"
    if ratio > 1:
        return f"is {percent_text(ratio - 1)} slower"
    if ratio > 1 / _BY_RATIO:
        return f"is {percent_text(1 - ratio)} faster"
    return f"is {1 / ratio:.3g} times as fast"


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
        yield f"is less accurate: {errors} on {own.case.distribution}"
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


def _run_text(run: Run) -> str:
    return f"{run.name} of {run.started_utc} by layernorm-bench {run.version}"


def _environment_text(environment: Environment) -> str:
    packages = dict(environment.packages)
    parts = [f"{environment.cpu}, {environment.cpu_count} CPUs"]
    parts += [gpu.name for gpu in environment.gpus]
    if "torch" in packages:
        parts.append(f"torch {packages['torch']}")
    return f"{', '.join(parts)} (environment {environment.fingerprint})"
