"""Why a candidate is disqualified, in words: where its results fail, and how far off they are.

Each text is a predicate: the name of the candidate comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, inf, isfinite, isinf, log10

from harness.records import Record, Status
from harness.records.text import count, in_words, shape_text, ulp_text
from harness.selection.eligibility import Disqualification, DisqualificationKind
from harness.selection.ranking import Candidate
from harness.selection.requirement import condition_text
from harness.selection.scenarios import Scenario

__all__ = ["disqualification_text", "fault_text", "out_of_guarantee_text", "reach_text"]

_DIGITS = ("loses all digits", "keeps one digit", "keeps two digits")
_BENIGN = 10.0  # trade-off: below it the name of the distribution says more than its condition
_MOST_NAMES = 4  # trade-off: of more distributions the number is easier to read


def disqualification_text(
    candidate: Candidate, disqualification: Disqualification, scenario: Scenario
) -> str:
    """Return why ``candidate`` is not eligible for ``scenario``."""
    records = disqualification.records
    match disqualification.kind:
        case DisqualificationKind.WRONG:
            record = _least_conditioned(records)
            others = len({each.case.distribution for each in records}) - 1
            rest = f", and on {others} more" if others else ""
            return f"is wrong on {_place(record, candidate, scenario)}: {record.reason}{rest}"
        case DisqualificationKind.OUT_OF_GUARANTEE:
            return _lost_text(candidate, records, scenario)
        case DisqualificationKind.UNSUPPORTED:
            name, reason = records[0].case.implementation, records[0].reason
            if reason.startswith(f"{name} "):  # such as "NAME has no gradient"
                return reason.removeprefix(f"{name} ")
            return f"was not measured: {reason or 'declined'}"
        case DisqualificationKind.UNVERIFIED:
            if disqualification.missing:
                return (
                    f"was not verified on {_names(disqualification.missing)}, where others are ok"
                )
            return "was not verified: its errors were not measured"
        case DisqualificationKind.INACCURATE:
            return _inaccurate_text(candidate, records, scenario)
        case DisqualificationKind.INVALID_TIME:
            advice = "; ".join(warning.advice for each in records for warning in each.warnings)
            return f"has no valid time{': ' if advice else ''}{advice}"
        case DisqualificationKind.TOO_FEW_SAMPLES:
            return (
                "has too few samples for an interval: raise seconds_per_case, or take --processes 5"
            )
        case DisqualificationKind.UNTIMED:
            return "was not timed on the same inputs and by the same timer as the others"
        case _:  # the case did not run
            status = in_words(records[0].status)
            reason = f": {records[0].reason}" if records[0].reason else ""
            return f"was not measured on {records[0].case.distribution}: {status}{reason}"


def fault_text(disqualification: Disqualification) -> str:
    """Return in a few words why a candidate is not eligible."""
    kind, records = disqualification.kind, disqualification.records
    match kind:
        case DisqualificationKind.WRONG:
            return f"wrong {_where(_least_conditioned(records))}"
        case DisqualificationKind.OUT_OF_GUARANTEE:
            record = _least_conditioned(records)
            return f"{_digits_text(record)} {_where(record)}"
        case DisqualificationKind.UNSUPPORTED:
            return f"declines {count(len(records), 'case')} that others run"
        case DisqualificationKind.UNVERIFIED:
            return "its errors were not measured on every input"
        case DisqualificationKind.INVALID_TIME:
            return "its time is not valid"
        case DisqualificationKind.TOO_FEW_SAMPLES:
            return "too few samples for an interval"
        case DisqualificationKind.UNTIMED:
            return "not timed in every case"
        case _:
            return f"{in_words(kind)} in {count(len(records), 'case')}"


def reach_text(disqualification: Disqualification) -> str:
    """Return how far a candidate is right that is disqualified on worse conditioned inputs."""
    records = disqualification.records
    condition = _condition(_least_conditioned(records)) if records else None
    if condition is None or condition < _BENIGN:
        return fault_text(disqualification)
    if isinf(condition):
        return "right except on constant rows"
    return _first_failure(condition)


def _where(record: Record) -> str:
    """Return the input of the first failure; if it is ill-conditioned, its condition number."""
    condition = _condition(record)
    if condition is None or condition < _BENIGN:
        return f"on {record.case.distribution}"
    return "on constant rows" if isinf(condition) else f"({_first_failure(condition)})"


def _first_failure(condition: float) -> str:
    return f"first failure measured at condition {condition_text(condition)}"


def out_of_guarantee_text(candidate: Candidate) -> str | None:
    """Return where an eligible candidate is out of guarantee; None if nowhere."""
    vacuous = [each for each in candidate.evidence if each.status is Status.OUT_OF_GUARANTEE]
    if not vacuous:
        return None
    names = _names(record.case.distribution for record in vacuous)
    place = _from_condition(candidate, _least_conditioned(vacuous), names)
    return f"is out of guarantee {place}, as all candidates are"


def _lost_text(candidate: Candidate, records: Sequence[Record], scenario: Scenario) -> str:
    """Return from which condition a candidate is out of guarantee, and how many digits are left."""
    first = _least_conditioned(records)
    place = _from_condition(candidate, first, _place(first, candidate, scenario))
    text = f"{_digits_text(first)} {place}"
    least = min(map(_digits_left, records))
    if least == _digits_left(first):
        return text
    worse = _least_conditioned([each for each in records if _digits_left(each) == least])
    return f"{text} and {_digits_text(worse)} on {worse.case.distribution}"


def _inaccurate_text(candidate: Candidate, records: Sequence[Record], scenario: Scenario) -> str:
    worst = max(records, key=lambda record: record.worst_ulp or 0.0)
    first = _condition(_least_conditioned(records)) or inf
    last = _condition_below(first, candidate, lambda record: record not in records)
    allowed = "" if last is None else f"; accurate enough up to condition {condition_text(last)}"
    place = _place(worst, candidate, scenario)
    return f"is {ulp_text(worst.worst_ulp or 0.0)} off on {place}{allowed}"


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
    return max((each for each in conditions if each is not None and each < limit), default=None)


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


def _place(record: Record, candidate: Candidate, scenario: Scenario) -> str:
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
    def condition(record: Record) -> float:
        known = _condition(record)
        return inf if known is None else known

    return min(records, key=condition)


def _condition(record: Record) -> float | None:
    return None if record.errors is None else record.errors.condition_max_ratio


def _names(distributions: Iterable[str]) -> str:
    names = list(dict.fromkeys(distributions))
    more = len(names) - _MOST_NAMES
    if more > 1:
        names[_MOST_NAMES:] = [f"{more} more"]
    return ", ".join(names)
