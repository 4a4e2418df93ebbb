"""Two results files, case by case: what became of each.

Nothing here measures or reads a clock: who asks hands in what confirms a suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from harness.records import Case, Record
from harness.records.refusal import Refusal
from harness.regression.changes import ChangeKind, Comparison
from harness.regression.findings import Finding, latency_finding, worst_first
from harness.regression.latency_test import (
    BASELINE_PROCESSES,
    Shift,
    examine,
    has_machine_changed,
    latency_change,
    process_ratios,
)
from harness.regression.notes import notes_on
from harness.regression.one_case import change_between, findings_of, only_in
from harness.store import Results

__all__ = [
    "Confirm",
    "DuplicateCaseError",
    "NotComparableError",
    "NotMeasuredError",
    "compare",
]

Confirm = Callable[[Sequence[Case]], Mapping[str, Sequence[float]] | str]
"""Times cases again. Answered for each id by the ratio to the reference in each of some processes,
or by why that cannot be done."""


class NotComparableError(Refusal):
    """Nothing that both hold may be compared."""

    exit_code = 4


class NotMeasuredError(Refusal):
    """There is nothing to compare, or nothing to compare it with."""

    exit_code = 3


class DuplicateCaseError(Refusal):
    """A file holds a case twice, and does not say which is meant."""


def compare(
    baseline: Results,
    head: Results,
    *,
    baseline_name: str,
    head_name: str,
    confirm: Confirm | None = None,
    least_processes: int = BASELINE_PROCESSES,
) -> Comparison:
    """Say of each case what became of it between two runs.

    Args:
        baseline: what was.
        head: what is.
        baseline_name: for messages.
        head_name: for messages.
        confirm: times suspects again; without it they stay unsure.
        least_processes: that the baseline must have timed a case in, for its latency to be judged.

    Raises:
        NotMeasuredError: one of them has no measured case.
        NotComparableError: see there.
        DuplicateCaseError: see there.
    """
    old, new = _by_id(baseline, baseline_name), _by_id(head, head_name)
    _refuse_unmeasured(old, baseline_name)
    _refuse_unmeasured(new, head_name)
    both = [(old[each], new[each]) for each in old if each in new]
    if not any(first.status.is_measured and second.status.is_measured for first, second in both):
        raise NotComparableError(
            f"{baseline_name} and {head_name} have {_cases(len(both))} in common, none measured in "
            f"both ({next(iter(old))} is in the first, {next(iter(new))} in the second): compare "
            "runs of one sweep on one kind of device"
        )
    latencies, notes = _latencies(both, confirm, least_processes)
    findings = [findings_of(*each, latencies.get(each[0].case.id)) for each in both]
    if all(each.kind is ChangeKind.NOT_COMPARABLE for found in findings for each in found):
        raise NotComparableError(
            f"nothing that {baseline_name} and {head_name} have in common may be compared: "
            f"{both[0][0].case.id}: {findings[0][0].reason}"
        )
    changes = [
        change_between(first.case, found) for (first, _), found in zip(both, findings, strict=True)
    ]
    changes += [only_in(old[each], ChangeKind.GONE, "baseline") for each in old if each not in new]
    changes += [only_in(new[each], ChangeKind.NEW, "run") for each in new if each not in old]
    return Comparison(
        changes=worst_first(changes),
        baseline=baseline_name,
        head=head_name,
        notes=(*notes, *notes_on(baseline, head, old, new, least_processes)),
    )


def _by_id(results: Results, name: str) -> dict[str, Record]:
    counts = Counter(each.case.id for each in results.records)
    twice = [each for each, count in counts.items() if count > 1]
    if twice:
        raise DuplicateCaseError(
            f"{name}: holds {_cases(len(twice))} more than once, such as {twice[0]}; "
            "leave one record of each"
        )
    return {each.case.id: each for each in results.records}


def _refuse_unmeasured(records: Mapping[str, Record], name: str) -> None:
    if any(each.status.is_measured for each in records.values()):
        return
    if not records:
        raise NotMeasuredError(f"{name}: holds no case at all; run the sweep again")
    counts = Counter(each.status for each in records.values())
    ended = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    raise NotMeasuredError(
        f"{name}: no case in it was measured ({ended}), so that nothing can be compared; see what "
        "ended them and run the sweep again"
    )


def _latencies(
    both: Sequence[tuple[Record, Record]], confirm: Confirm | None, least_processes: int
) -> tuple[dict[str, Finding], list[str]]:
    """Judge the latencies that are of one machine, and say what holds for all of them."""
    found: dict[str, Finding] = {}
    shifts: list[Shift] = []
    for before, after in both:
        # what was wrong says nothing about how long what is right may take
        if before.status is not after.status:
            continue
        elsewhere = before.environment != after.environment and after.latency is not None
        examined = (
            _of_another_machine(before, after)
            if elsewhere
            else examine(before, after, least_processes)
        )
        if isinstance(examined, Finding):
            found[before.case.id] = examined
        elif examined is not None and examined.unsteady:
            found[before.case.id] = latency_change(examined, examined.unsteady)
        elif examined is not None:
            shifts.append(examined)
    suspects = [each for each in shifts if each.is_suspect]
    notes = []
    if noisy := sum(each.noise is not None and not each.is_suspect for each in shifts):
        notes.append(f"latency of {_cases(noisy)} is too noisy for any but a large change to show")
    asked = suspects
    if changed := has_machine_changed(shifts):
        asked = [each for each in suspects if each.is_far]
        notes.append(
            f"latency is ambiguous: {len(suspects)} of {len(shifts)} cases are suspect, and not of "
            "one implementation alone: the machine changed, or code that they share; "
            f"{_cases(len(asked))} moved by more than a machine explains and may fail; measure "
            "again, and if it stays so record the baseline again"
        )
    names = {each.case.id for each in asked}
    confirmed: Mapping[str, Sequence[float]] | str = "suspected, and not confirmed"
    if asked and confirm is not None:
        confirmed = confirm([each.case for each in asked])
    for each in shifts:
        name = each.case.id
        answer: Sequence[float] | str | None = None
        if name in names:
            answer = confirmed if isinstance(confirmed, str) else confirmed.get(name, ())
        elif changed:
            answer = "not judged, since too many cases moved at once"
        found[name] = latency_change(each, answer, has_machine_changed=changed)
    return found, notes


def _of_another_machine(before: Record, after: Record) -> Finding | None:
    """Tell a latency that is not compared; None if it was not timed before."""
    old, new = before.latency, after.latency
    if old is None or new is None:
        return None
    why = "it is of another machine or other software"
    ratios = [process_ratios(each) for each in (old, new)]
    if all(ratios) and old.reference == new.reference:
        first, second = (median(each) for each in ratios)
        why += f": {first:.3f} of the time of {old.reference} there, {second:.3f} here"
    return latency_finding(ChangeKind.NOT_COMPARABLE, why, None)


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"
