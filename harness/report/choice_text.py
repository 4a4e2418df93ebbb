"""A choice in words: why, how fast, and why other candidates are disqualified.

The texts about a candidate are predicates: its name comes before them. Speeds are relative to
native, higher is faster; where native was not timed, times are written instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, inf, isfinite, isinf, log10
from typing import TYPE_CHECKING

from harness.records import Estimate, Record, Status
from harness.records.text import (
    bytes_text,
    count,
    in_words,
    percent_text,
    seconds_text,
    shape_text,
    speed_interval_text,
    speed_text,
    ulp_text,
)
from harness.report.document import DASH
from harness.selection import (
    NATIVE,
    REFERENCE_NAME,
    Candidate,
    Choice,
    Decider,
    Disqualification,
    DisqualificationKind,
    Ranking,
    Scenario,
    cost_of,
    is_close,
    is_tie,
    scaled,
    speed_of,
    worst_in_common,
)

if TYPE_CHECKING:  # it imports pydantic, for which a page has no use
    from harness.selection.workload import WorkloadChoice

_DIGITS = ("loses all digits", "keeps one digit", "keeps two digits")
_BENIGN = 10.0  # trade-off: below it the name of the distribution says more than its condition
_MOST_NAMES = 4  # trade-off: of more distributions the number is easier to read


def answer_text(choice: Choice) -> str:
    """Return why the best candidate was chosen; where there is none, why not."""
    best, decider = choice.best, choice.ranking.decider
    if best is None:
        return _none_text(choice.candidates)
    if decider is Decider.ONLY:
        alone = len(choice.candidates) == 1
        return "the only one measured" if alone else "the only eligible candidate"
    if decider in {Decider.TIME, Decider.ESTIMATE}:
        return _fastest_text(choice)
    ends = {Decider.ACCURACY: "and more accurate", Decider.MEMORY: "and takes less memory"}
    end = ends.get(decider, "and nothing else tells them apart") if decider else ""
    return f"as fast as {_tied_labels(choice.ranking)} within the intervals, {end}"


def _none_text(candidates: Sequence[Candidate]) -> str:
    reasons = [(one, one.disqualification) for one in candidates if one.disqualification]
    kinds = Counter(in_words(reason.kind) for _, reason in reasons)
    text = f"none of {len(candidates)} is eligible: "
    text += ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    off = [
        (max((record.worst_ulp or 0.0 for record in reason.records), default=inf), one.label)
        for one, reason in reasons
        if reason.kind is DisqualificationKind.INACCURATE
    ]
    if off:
        error, nearest = min(off, key=lambda entry: entry[0])
        text += f"; the nearest, {nearest}, is {ulp_text(error)} off"
    return text


def _fastest_text(choice: Choice | WorkloadChoice, scope: str = "") -> str:
    """Return that the best is the fastest, and how fast the next one is."""
    ranking, best = choice.ranking, choice.best
    is_fastest = all(cost_of(candidate) >= cost_of(best) for candidate in choice.candidates)
    text = f"the fastest{'' if is_fastest else ' eligible candidate'}{scope}"
    if ranking.decider is Decider.TIME:
        other = next(candidate for candidate in ranking.eligible if candidate is not best)
    else:
        text += f"{',' if scope else ''} by its estimate"
        other = next(candidate for candidate, by in ranking.tied if by is Decider.ESTIMATE)
    return f"{text}; {other.label}: {pace_text(other, choice.native_s, best)}"


def _tied_labels(ranking: Ranking) -> str:
    return ", ".join(one.label for one, by in ranking.tied if by is not Decider.ESTIMATE)


def _defeated_by(candidate: Candidate, ranking: Ranking) -> Decider | None:
    return next((by for one, by in ranking.tied if one is candidate), None)


def price_text(candidate: Candidate, choice: Choice) -> str:
    """Return what one would gain and lose with ``candidate`` instead; its name comes before it.

    Such as "1.00x against 0.79x, but loses all digits (first failure measured at ...)".
    """
    best = choice.best
    pace = pace_text(candidate, choice.native_s, best)
    parts = [pace] if pace else []
    if candidate.disqualification is not None:
        reason = disqualification_text(candidate, candidate.disqualification, choice.scenario)
        is_faster = best is not None and cost_of(candidate) < cost_of(best)
        return ", ".join([*parts, f"but {reason}" if is_faster else reason])
    decider = _defeated_by(candidate, choice.ranking)
    if best is not None and decider is Decider.ACCURACY:
        (error, record), (other, _) = worst_in_common([candidate, best])
        errors = f"{ulp_text(error)} against {ulp_text(other)}"
        parts.append(f"less accurate: {errors} on {record.case.distribution}")
    elif best is not None and decider is Decider.MEMORY:
        sizes = (bytes_text(one.peak_bytes or 0) for one in (candidate, best))
        parts.append(f"takes more memory: {' against '.join(sizes)}")
    return ", ".join([*parts, *_limit_text(candidate, choice)]) or "the choice"


def _limit_text(candidate: Candidate, choice: Choice) -> Iterator[str]:
    """Yield the first failure of an eligible candidate, beyond what is required."""
    unlimited = choice.any_condition.candidate(candidate.name) if choice.any_condition else None
    if unlimited and unlimited.disqualification and candidate.disqualification is None:
        yield disqualification_text(unlimited, unlimited.disqualification, choice.scenario)


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
    """Yield what limits the evidence for the best candidate."""
    best = choice.best
    if best is None:
        return
    vacuous = [one for one in best.evidence if one.status is Status.OUT_OF_GUARANTEE]
    if vacuous:
        names = _names(record.case.distribution for record in vacuous)
        where = _from_condition(best, _least_conditioned(vacuous), names)
        yield f"is out of guarantee {where}, as all candidates are"
    yield from _limit_text(best, choice)
    if best.verified_on < len(choice.distributions):
        yield f"is verified on {best.verified_on} of {len(choice.distributions)} distributions"
    kinds = dict.fromkeys(warning.kind for record in best.timed for warning in record.warnings)
    if kinds:
        yield f"has {count(len(kinds), 'warning')}: {', '.join(map(in_words, kinds))}"


def workload_answer_text(choice: WorkloadChoice) -> str:
    """Return why one candidate was chosen for all calls; where there is none, why not."""
    best, decider = choice.best, choice.ranking.decider
    if best is None:
        either = "does" if choice.per_shape_s else "does not either"
        return (
            f"none of {len(choice.candidates)} candidates serves every call; a choice per shape "
            f"{either}"
        )
    if decider is Decider.ONLY:
        return "the only candidate that is eligible for every call"
    scope = ", all calls together"
    if decider in {Decider.TIME, Decider.ESTIMATE}:
        return _fastest_text(choice, scope)
    tied = _tied_labels(choice.ranking)
    return f"as fast as {tied} within the intervals{scope}; decided by {decider}"


def price_in_workload_text(candidate: Candidate, choice: WorkloadChoice) -> str:
    """Return what one would gain and lose with ``candidate`` for all calls."""
    pace = pace_text(candidate, choice.native_s, choice.best)
    parts = [pace] if pace else []
    ineligible = choice.ineligible_for(candidate.name)
    for call, one in ineligible[:1]:
        rest = f" (and {len(ineligible) - 1} more)" if len(ineligible) > 1 else ""
        own, reason = one.candidate(candidate.name), "was not measured"
        if own is not None and own.disqualification is not None:
            reason = disqualification_text(own, own.disqualification, one.scenario)
        parts.append(f"in {call.text}{rest} {reason}")
    defeats = {Decider.ACCURACY: "less accurate", Decider.MEMORY: "takes more memory"}
    decider = _defeated_by(candidate, choice.ranking)
    parts += [defeats[decider]] if decider in defeats else []
    return ", ".join(parts) or "not timed in every call"


def saving_text(choice: WorkloadChoice) -> str:
    """Return what "a choice per shape" would save, as a predicate of these words."""
    saved_s, best = choice.saved_s, choice.best
    if choice.per_shape_s is None:
        return "does not serve every call either"
    total = f"; {interval_text(choice.per_shape_s)} in all"
    if saved_s is None or best is None:
        return f"serves every call{total}"
    if all(one.best and one.best.name == best.name for _, one in choice.calls):
        return f"saves nothing: every call has the same choice{total}"
    share = scaled(saved_s, 1 / cost_of(best))
    interval = f"({percent_text(share.low)} to {percent_text(share.high)})"
    if saved_s.low > 0:
        saved = f"{interval}, {seconds_text(saved_s.value)}"
        return f"saves {percent_text(share.value)} of the time {saved}{total}"
    return f"may save no time: {percent_text(share.value)} {interval}{total}"


# --- how fast ------------------------------------------------------------------------------------


def speed_in(choice: Choice, candidate: Candidate | None) -> str:
    """Return the speed of a candidate relative to native, with its interval."""
    speed = None if candidate is None else choice.speed(candidate)
    if candidate is None or speed is None:
        return DASH
    return speed_text(1.0) if candidate.name == NATIVE else speed_interval_text(speed)


def pace_text(candidate: Candidate, native_s: Estimate | None, best: Candidate | None) -> str:
    """Return how fast a candidate is, and how that compares to the best; empty if not timed."""
    cost = candidate.cost
    if cost is None:
        return ""
    pace = _speed_or_time(candidate, native_s)
    if best is None or best.cost is None or isinf(cost.high):
        return pace
    if not is_tie(candidate, best):
        against = f" against {_speed_or_time(best, native_s)}"
        return pace + (against if cost_of(candidate) < cost_of(best) else "")
    if is_close(candidate, best) and is_close(best, candidate):
        return f"{pace}, as fast within the intervals"
    speed = None if candidate.name == NATIVE else speed_of(candidate, native_s)
    ends = f" [{speed_text(speed.low)}, {speed_text(speed.high)}]" if speed else ""
    return f"{pace}{ends}, may be as fast"


def _speed_or_time(candidate: Candidate, native_s: Estimate | None) -> str:
    if candidate.name == NATIVE:
        return speed_text(1.0)
    if native_s is None:
        return seconds_text(cost_of(candidate))
    return speed_text(native_s.value / cost_of(candidate))


def interval_text(estimate: Estimate | None) -> str:
    """Return a time with its interval."""
    if estimate is None:
        return DASH
    low, high = seconds_text(estimate.low), seconds_text(estimate.high)
    return f"{seconds_text(estimate.value)} [{low}, {high}]"


# --- why a candidate is disqualified --------------------------------------------------------------

_WHY = {
    DisqualificationKind.UNVERIFIED: "was not verified: its errors were not measured",
    DisqualificationKind.TOO_FEW_SAMPLES: (
        "has too few samples for an interval: raise seconds_per_case, or take --processes 5"
    ),
    DisqualificationKind.UNTIMED: (
        "was not timed on the same inputs and by the same timer as the others"
    ),
}
_IN_BRIEF = {
    DisqualificationKind.UNVERIFIED: "its errors were not measured on every input",
    DisqualificationKind.INVALID_TIME: "its time is not valid",
    DisqualificationKind.TOO_FEW_SAMPLES: "too few samples for an interval",
    DisqualificationKind.UNTIMED: "not timed in every case",
}


def disqualification_text(
    candidate: Candidate, disqualification: Disqualification, scenario: Scenario
) -> str:
    """Return why ``candidate`` is not eligible for ``scenario``: where and how far off it is."""
    records = disqualification.records
    match disqualification.kind:
        case DisqualificationKind.WRONG:
            record = _least_conditioned(records)
            others = len({one.case.distribution for one in records}) - 1
            rest = f", and on {others} more" if others else ""
            return f"is wrong on {_where_in(record, candidate, scenario)}: {record.reason}{rest}"
        case DisqualificationKind.OUT_OF_GUARANTEE:
            first = _least_conditioned(records)
            where = _from_condition(candidate, first, _where_in(first, candidate, scenario))
            text = f"{_digits_text(first)} {where}"
            least = min(map(_digits_left, records))
            if least == _digits_left(first):
                return text
            worse = _least_conditioned([one for one in records if _digits_left(one) == least])
            return f"{text} and {_digits_text(worse)} on {worse.case.distribution}"
        case DisqualificationKind.UNSUPPORTED:
            name, reason = records[0].case.implementation, records[0].reason
            if reason.startswith(f"{name} "):  # such as "NAME has no gradient"
                return reason.removeprefix(f"{name} ")
            return f"was not measured: {reason or 'declined'}"
        case DisqualificationKind.UNVERIFIED if disqualification.missing:
            return f"was not verified on {_names(disqualification.missing)}, where others are ok"
        case DisqualificationKind.INACCURATE:
            worst = max(records, key=lambda record: record.worst_ulp or 0.0)
            limit = _condition(_least_conditioned(records)) or inf
            last = _condition_below(limit, candidate, lambda record: record not in records)
            right = (
                "" if last is None else f"; accurate enough up to condition {condition_text(last)}"
            )
            where = _where_in(worst, candidate, scenario)
            return f"is {ulp_text(worst.worst_ulp or 0.0)} off on {where}{right}"
        case DisqualificationKind.INVALID_TIME:
            advice = "; ".join(warning.advice for one in records for warning in one.warnings)
            return f"has no valid time{': ' if advice else ''}{advice}"
        case kind if kind in _WHY:
            return _WHY[kind]
        case _:  # the case did not run
            record = records[0]
            reason = f": {record.reason}" if record.reason else ""
            return (
                f"was not measured on {record.case.distribution}: {in_words(record.status)}{reason}"
            )


def fault_text(disqualification: Disqualification) -> str:
    """Return in a few words why a candidate is not eligible."""
    kind, records = disqualification.kind, disqualification.records
    if kind in _IN_BRIEF:
        return _IN_BRIEF[kind]
    if kind is DisqualificationKind.UNSUPPORTED:
        return f"declines {count(len(records), 'case')} that others run"
    if kind not in {DisqualificationKind.WRONG, DisqualificationKind.OUT_OF_GUARANTEE}:
        return f"{in_words(kind)} in {count(len(records), 'case')}"
    first = _least_conditioned(records)
    what = "wrong" if kind is DisqualificationKind.WRONG else _digits_text(first)
    condition = _condition(first)
    if condition is None or condition < _BENIGN:
        return f"{what} on {first.case.distribution}"
    return f"{what} {'on constant rows' if isinf(condition) else f'({_first_failure(condition)})'}"


def reach_text(disqualification: Disqualification) -> str:
    """Return how far a candidate is right that is disqualified on worse conditioned inputs."""
    records = disqualification.records
    condition = _condition(_least_conditioned(records)) if records else None
    if condition is None or condition < _BENIGN:
        return fault_text(disqualification)
    return "right except on constant rows" if isinf(condition) else _first_failure(condition)


def requirement_text(max_condition: float) -> str:
    """Return a requirement as a phrase: "inputs with a condition number up to 1,000"."""
    if not isfinite(max_condition):
        return "all inputs"
    return f"inputs with a condition number up to {condition_text(max_condition)}"


def condition_text(condition: float) -> str:
    """Return a condition number to three digits: "1,030" or "1.05e7"."""
    if condition < 1e6:
        return f"{float(f'{condition:.3g}'):,.10g}"
    return f"{condition:.3g}".replace("e+0", "e").replace("e+", "e")


def _first_failure(condition: float) -> str:
    return f"first failure measured at condition {condition_text(condition)}"


def _from_condition(candidate: Candidate, first: Record, detail: str) -> str:
    """Return the condition number of the first failure, and the largest one that was right."""
    condition = _condition(first)
    if condition is None:
        return f"on {detail}"
    if isinf(condition):
        return f"on constant rows ({detail})"
    last = _condition_below(condition, candidate, lambda record: record.status is Status.OK)
    right = "" if last is None else f"; right up to {condition_text(last)}"
    return f"({_first_failure(condition)}, {detail}{right})"


def _condition_below(
    limit: float, candidate: Candidate, is_counted: Callable[[Record], bool]
) -> float | None:
    """Return the largest condition below ``limit`` of the records that are counted."""
    conditions = (_condition(record) for record in candidate.evidence if is_counted(record))
    return max((one for one in conditions if one is not None and one < limit), default=None)


def _digits_text(record: Record) -> str:
    left = _digits_left(record)
    if left < 0:
        return "gives NaN or infinity"
    return _DIGITS[left] if left < len(_DIGITS) else "is out of guarantee"


def _digits_left(record: Record) -> int:
    """Return how many decimal digits of the worst output are right, at most 3; -1 if not finite."""
    if record.errors is None or record.worst_ulp is None:
        return len(_DIGITS)
    share = max(output.normwise_ratio for output in record.errors.outputs)
    if not (isfinite(record.worst_ulp) and isfinite(share)):
        return -1
    return min(max(floor(-log10(share)), 0), len(_DIGITS)) if share > 0 else len(_DIGITS)


def _where_in(record: Record, candidate: Candidate, scenario: Scenario) -> str:
    """Return the distribution of a record, and its differences from the scenario."""
    case = record.case
    parts = [case.distribution]
    if case.mode is not candidate.mode:
        parts.append(f"run {case.mode}")
    if case.shape != scenario.case.shape:
        parts.append(f"at {shape_text(case.shape)}")
    if case.direction is not scenario.case.direction:
        parts.append(f"in {case.direction}")
    return " ".join(parts)


def _least_conditioned(records: Sequence[Record]) -> Record:
    return min(records, key=lambda record: inf if (known := _condition(record)) is None else known)


def _condition(record: Record) -> float | None:
    return None if record.errors is None else record.errors.condition_max_ratio


def _names(distributions: Iterable[str]) -> str:
    names = list(dict.fromkeys(distributions))
    more = len(names) - _MOST_NAMES
    if more > 1:
        names[_MOST_NAMES:] = [f"{more} more"]
    return ", ".join(names)
