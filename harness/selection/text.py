"""A choice in words: what it rests on, and the price of each alternative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import floor, inf, isfinite, isinf, log10

from harness.records import Record, Status
from harness.selection.choose import Choice
from harness.selection.eligibility import Disqualification, DisqualificationKind, error_ulp
from harness.selection.ranking import Candidate, Decider, worst_in_common
from harness.selection.scenarios import Scenario
from harness.selection.words_of_speed import fastest_words, rival_words, speed_words, tied_words

__all__ = [
    "answer_words",
    "caveats",
    "disqualification_text",
    "price",
    "ulp",
]

_NOT_RUN = {
    DisqualificationKind.CRASHED,
    DisqualificationKind.TIMEOUT,
    DisqualificationKind.ERROR,
    DisqualificationKind.OUT_OF_MEMORY,
}
_DIGITS = ("loses all digits", "keeps one digit", "keeps two digits")
_MOST_NAMES = 4  # ours: more distributions are a number


def answer_words(choice: Choice) -> str:
    """Why this one; where none is chosen, why not."""
    best = choice.best
    if best is None:
        return _none_words(choice)
    decider = choice.ranking.decider
    fastest = fastest_words(best, choice.candidates)
    others = [each for each in choice.ranking.eligible if each is not best]
    if decider is Decider.ONLY:
        alone = len(choice.candidates) == 1
        return "the only one measured" if alone else "the only one to be relied on"
    if decider is Decider.TIME:
        return f"{fastest}; {others[0].label} {speed_words(others[0], best)}"
    if decider is Decider.ESTIMATE:
        return f"{fastest} by its estimate; {rival_words(choice.ranking, best)}"
    tied = tied_words(choice.ranking)
    ends = {
        Decider.ACCURACY: "and more accurate",
        Decider.MEMORY: "and takes less memory",
        Decider.NOTHING: "and nothing else tells them apart",
    }
    assert decider is not None  # there is a best
    return f"as fast as {tied} within the intervals, {ends[decider]}"


def price(candidate: Candidate, choice: Choice) -> str:
    """What one would get, and pay, with ``candidate`` instead: a predicate to its name."""
    best = choice.best
    parts = []
    if best is not None and candidate.cost is not None:
        parts.append(speed_words(candidate, best))
    if candidate.disqualification is not None:
        parts.append(disqualification_text(candidate, candidate.disqualification, choice.scenario))
    elif best is not None:
        parts += _defeat(candidate, best, choice)
    return " and ".join(parts) or "is the choice"


def caveats(choice: Choice) -> Iterator[str]:
    """What to know of the one that is chosen."""
    best = choice.best
    if best is None:
        return
    vacuous = [each for each in best.evidence if each.status is Status.OUT_OF_GUARANTEE]
    if vacuous:
        names = _names(each.case.distribution for each in vacuous)
        yield f"promises nothing, as none does, {_reach(best, _first(vacuous), names)}"
    seen, there = best.measured_on
    if seen < there:
        yield f"verified on {seen} of {there} distributions"
    warnings = dict.fromkeys(each.kind for record in best.timed for each in record.warnings)
    if warnings:
        yield f"warning: {', '.join(each.replace('_', ' ') for each in warnings)}"


def disqualification_text(
    candidate: Candidate, disqualification: Disqualification, scenario: Scenario
) -> str:
    """What speaks against a candidate: a predicate to its name."""
    if disqualification.kind is DisqualificationKind.OUT_OF_GUARANTEE:
        return _stop_words(candidate, disqualification.records, scenario)
    if disqualification.kind is DisqualificationKind.WRONG:
        record = _first(disqualification.records)
        more = len({each.case.distribution for each in disqualification.records}) - 1
        rest = f", and on {more} more" if more else ""
        place = _place(record, candidate, scenario)
        return f"is wrong on {record.case.distribution}{place}: {record.reason}{rest}"
    if disqualification.kind in _NOT_RUN:
        record = disqualification.records[0]
        said = f": {record.reason}" if record.reason else ""
        status = record.status.replace("_", " ")
        return f"was not measured on {record.case.distribution}: {status}{said}"
    if disqualification.kind is DisqualificationKind.UNSUPPORTED:
        return _declined_words(disqualification.records[0])
    if disqualification.kind is DisqualificationKind.UNVERIFIED:
        return _gap_words(disqualification)
    if disqualification.kind is DisqualificationKind.INACCURATE:
        return _inaccurate_words(candidate, disqualification.records, scenario)
    if disqualification.kind is DisqualificationKind.NOT_BELIEVED:
        advice = [each.advice for record in disqualification.records for each in record.warnings]
        return f"has no time to be believed{': ' if advice else ''}{'; '.join(advice)}"
    if disqualification.kind is DisqualificationKind.TOO_FEW_SAMPLES:
        return (
            "was timed too few times to tell how far off that is: raise seconds_per_case, or take "
            "--processes 5"
        )
    return "was not timed as the others were, on their inputs and by their timer"


def _gap_words(disqualification: Disqualification) -> str:
    """Where a candidate was not verified."""
    if disqualification.missing:
        return f"was not verified on {_names(disqualification.missing)}, where others hold"
    return "was not verified: its errors were not measured"


def ulp(error: float | None) -> str:
    """An error as text."""
    if error is None:
        return "-"
    return f"{error:.3g} ulp" if isfinite(error) else "not finite"


def _none_words(choice: Choice) -> str:
    counts = Counter(
        each.disqualification.kind
        for each in choice.candidates
        if each.disqualification is not None
    )
    kinds = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
    reason = f"none of {len(choice.candidates)} is to be relied on: {kinds}"
    off = [
        (
            max(
                error
                for error in map(error_ulp, each.disqualification.records)
                if error is not None
            ),
            each,
        )
        for each in choice.candidates
        if each.disqualification is not None
        and each.disqualification.kind is DisqualificationKind.INACCURATE
    ]
    if off:
        error, nearest = min(off, key=lambda entry: entry[0])
        reason += f"; the nearest, {nearest.label}, is {ulp(error)} off"
    return reason


def _defeat(candidate: Candidate, best: Candidate, choice: Choice) -> Iterator[str]:
    """Say what told a candidate without disqualification from the best, beyond time."""
    by = next((by for each, by in choice.ranking.tied if each is candidate), None)
    if by is Decider.ACCURACY:
        worst = worst_in_common([candidate, best])
        if worst:
            mine, its = worst
            yield (
                f"is less accurate: {ulp(error_ulp(mine))} against {ulp(error_ulp(its))} "
                f"on {mine.case.distribution}"
            )
    elif by is Decider.MEMORY:
        yield f"takes more memory: {_bytes(candidate.peak_bytes)} against {_bytes(best.peak_bytes)}"


def _stop_words(candidate: Candidate, records: Sequence[Record], scenario: Scenario) -> str:
    """Say where a promise ends, and what is left beyond."""
    first = _first(records)
    detail = f"{first.case.distribution}{_place(first, candidate, scenario)}"
    words = f"{_lost_words(first)} {_reach(candidate, first, detail)}"
    least = min(map(_digits_left, records))
    if least == _digits_left(first):
        return words
    worse = _first([each for each in records if _digits_left(each) == least])
    return f"{words} and {_lost_words(worse)} on {worse.case.distribution}"


def _reach(candidate: Candidate, first: Record, detail: str) -> str:
    """Name the condition from which on something is so: the last at which it was not."""
    condition = _condition(first)
    if condition is None:
        return f"on {detail}"
    if isinf(condition):
        return f"on constant rows ({detail})"
    held = [
        found
        for each in candidate.evidence
        if each.status is Status.OK
        and (found := _condition(each)) is not None
        and found < condition
    ]
    if not held:
        return f"at condition {condition:.3g} ({detail}) already"
    return f"beyond condition {max(held):.3g} ({detail}: {condition:.3g})"


def _lost_words(record: Record) -> str:
    left = _digits_left(record)
    if left < 0:
        return "gives NaN or infinity"
    return _DIGITS[left] if left < len(_DIGITS) else "promises nothing"


def _digits_left(record: Record) -> int:
    """Decimal digits of its worst output that are right, 3 being enough; -1 if not finite."""
    error = error_ulp(record)
    if record.errors is None or error is None:
        return len(_DIGITS)
    share = max(each.normwise_ratio for each in record.errors.outputs)
    if not (isfinite(error) and isfinite(share)):
        return -1
    return min(max(floor(-log10(share)), 0), len(_DIGITS)) if share > 0 else len(_DIGITS)


def _declined_words(record: Record) -> str:
    name = record.case.implementation
    if record.reason.startswith(f"{name} "):  # such as "NAME has no gradient"
        return record.reason.removeprefix(f"{name} ")
    return f"was not measured: {record.reason or 'declined'}"


def _inaccurate_words(candidate: Candidate, records: Sequence[Record], scenario: Scenario) -> str:
    worst = max(records, key=lambda each: error_ulp(each) or 0.0)
    first = _condition(_first(records)) or inf
    within = [
        found
        for each in candidate.evidence
        if each not in records and (found := _condition(each)) is not None and found < first
    ]
    held = f", and within what is allowed up to condition {max(within):.3g}" if within else ""
    place = _place(worst, candidate, scenario)
    return f"is {ulp(error_ulp(worst))} off on {worst.case.distribution}{place}{held}"


def _place(record: Record, candidate: Candidate, scenario: Scenario) -> str:
    """Say where a record is from, if not from the scenario itself."""
    case = record.case
    differing = []
    if case.mode is not candidate.mode:
        differing.append(f" run {case.mode}")
    if case.shape != scenario.case.shape:
        differing.append(f" at {'x'.join(map(str, case.shape))}")
    if case.direction is not scenario.case.direction:
        differing.append(f" in {case.direction}")
    return "".join(differing)


def _first(records: Sequence[Record]) -> Record:
    """Return the record of the least condition."""
    return min(records, key=lambda each: inf if (k := _condition(each)) is None else k)


def _condition(record: Record) -> float | None:
    return None if record.errors is None else record.errors.condition_max_ratio


def _names(found: Iterable[str]) -> str:
    names = list(dict.fromkeys(found))
    more = len(names) - _MOST_NAMES
    if more > 1:
        names[_MOST_NAMES:] = [f"{more} more"]
    return ", ".join(names)


def _bytes(held: int | None) -> str:
    return "unknown" if held is None else f"{held / 1024:.4g} KiB"
