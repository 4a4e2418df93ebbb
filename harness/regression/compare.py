"""Compare two results files case by case.

Nothing here measures or reads a clock: the caller passes a function that times suspects again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from harness.records import Record
from harness.records.refusal import Refusal
from harness.records.speed import speed_text
from harness.records.text import count
from harness.regression.changes import (
    Change,
    ChangeKind,
    Comparison,
    Finding,
    Metric,
    change_of,
    latency_finding,
    worst_first,
)
from harness.regression.exact import exact_findings
from harness.regression.latency_test import (
    BASELINE_PROCESSES,
    Shift,
    examine,
    has_machine_changed,
    latency_change,
    process_ratios,
)
from harness.regression.text import RECORD_BASELINE, notes_on, status_text
from harness.store import Results

__all__ = [
    "Confirm",
    "DuplicateCaseError",
    "NotComparableError",
    "NotMeasuredError",
    "compare",
    "findings_of",
]

Confirm = Callable[[Sequence[Shift]], Mapping[str, Sequence[float]] | str]
"""Times suspects again. Returns for each case's id the ratio to the reference in each fresh
process, up to the one that refutes it; or why that cannot be done."""


class NotComparableError(Refusal):
    """The runs have nothing in common that may be compared."""

    exit_code = 4


class NotMeasuredError(Refusal):
    """A run or a baseline holds no measured case."""

    exit_code = 3


class DuplicateCaseError(Refusal):
    """A file holds a case twice, so it is unknown which record counts."""


def compare(
    baseline: Results,
    head: Results,
    *,
    baseline_name: str,
    head_name: str,
    confirm: Confirm | None = None,
    least_processes: int = BASELINE_PROCESSES,
    advice: str = RECORD_BASELINE,
) -> Comparison:
    """Return how each case changed between two runs.

    Args:
        baseline: the earlier run.
        head: the later run.
        baseline_name: for messages.
        head_name: for messages.
        confirm: times suspects again; without it they are inconclusive.
        least_processes: a latency is judged only if the baseline timed the case in as many.
        advice: what to do if it timed cases in fewer.

    Raises:
        NotMeasuredError: a run has no measured case.
        NotComparableError: they have nothing in common that may be compared.
        DuplicateCaseError: a run holds a case twice.
    """
    old, new = _by_id(baseline, baseline_name), _by_id(head, head_name)
    _refuse_unmeasured(old, baseline_name)
    _refuse_unmeasured(new, head_name)
    both = [(old[name], new[name]) for name in old if name in new]
    if not any(first.status.is_measured and second.status.is_measured for first, second in both):
        raise NotComparableError(
            f"{baseline_name} and {head_name} have {count(len(both), 'case')} in common, none of "
            f"them measured in both ({next(iter(old))} is in the first, {next(iter(new))} in the "
            "second): compare runs of one sweep on one kind of device"
        )
    latencies, notes = _latencies(both, confirm, least_processes)
    findings = [findings_of(first, second, latencies.get(first.case.id)) for first, second in both]
    if all(
        finding.kind is ChangeKind.NOT_COMPARABLE for of_case in findings for finding in of_case
    ):
        raise NotComparableError(
            f"nothing that {baseline_name} and {head_name} have in common may be compared: "
            f"{both[0][0].case.id}: {findings[0][0].reason}"
        )
    changes = [
        change_of(first.case, of_case) for (first, _), of_case in zip(both, findings, strict=True)
    ]
    changes += [_only_in(old[name], ChangeKind.GONE, "baseline") for name in old if name not in new]
    changes += [_only_in(new[name], ChangeKind.NEW, "run") for name in new if name not in old]
    return Comparison(
        changes=worst_first(changes),
        baseline=baseline_name,
        head=head_name,
        notes=(*notes, *notes_on(baseline, head, old, new, least_processes, advice)),
    )


def findings_of(before: Record, after: Record, latency: Finding | None) -> list[Finding]:
    """Return the findings about a case that is in both runs; at least one."""
    findings = [*exact_findings(before, after), *([latency] if latency else [])]
    if findings:
        return findings
    why = f"{status_text(before.status)} in both, and nothing else of it may be compared"
    return [Finding(kind=ChangeKind.NOT_COMPARABLE, metric=Metric.STATUS, reason=why)]


def _only_in(record: Record, kind: ChangeKind, where: str) -> tuple[Change, float]:
    """Return the change, and its severity, of a case that one of the runs lacks."""
    reason = f"in the {where} only, {status_text(record.status)} there"
    if record.reason:
        reason += f": {record.reason}"
    return Change(case=record.case, kind=kind, reason=reason), 0.0


def _by_id(results: Results, name: str) -> dict[str, Record]:
    counts = Counter(record.case.id for record in results.records)
    duplicates = [case for case, number in counts.items() if number > 1]
    if duplicates:
        raise DuplicateCaseError(
            f"{name}: holds {count(len(duplicates), 'case')} more than once, such as "
            f"{duplicates[0]}; leave one record of each"
        )
    return {record.case.id: record for record in results.records}


def _refuse_unmeasured(records: Mapping[str, Record], name: str) -> None:
    if any(record.status.is_measured for record in records.values()):
        return
    if not records:
        raise NotMeasuredError(f"{name}: holds no case; run the sweep again")
    counts = Counter(record.status for record in records.values())
    statuses = ", ".join(f"{number} {status_text(status)}" for status, number in counts.items())
    raise NotMeasuredError(
        f"{name}: no case in it was measured ({statuses}), so nothing can be compared; see the "
        "reasons in its records and run the sweep again"
    )


def _latencies(
    both: Sequence[tuple[Record, Record]], confirm: Confirm | None, least_processes: int
) -> tuple[dict[str, Finding], list[str]]:
    """Judge the latencies; return the findings by id of the case, and notes on all of them."""
    findings: dict[str, Finding] = {}
    shifts: list[Shift] = []
    for before, after in both:
        # the times of a wrong and of a right result are not comparable
        if before.status is not after.status:
            continue
        elsewhere = before.environment != after.environment and after.latency is not None
        examined = (
            _of_another_machine(before, after)
            if elsewhere
            else examine(before, after, least_processes)
        )
        if isinstance(examined, Finding):
            findings[before.case.id] = examined
        elif examined is not None and examined.unsteady:
            findings[before.case.id] = latency_change(examined, examined.unsteady)
        elif examined is not None:
            shifts.append(examined)
    suspects = [shift for shift in shifts if shift.is_suspect]
    notes = []
    if noisy := sum(shift.noise is not None and not shift.is_suspect for shift in shifts):
        notes.append(f"latency of {count(noisy, 'case')} is too noisy to show a small change")
    to_confirm = suspects
    if changed := has_machine_changed(shifts):
        to_confirm = [shift for shift in suspects if shift.is_far]
        notes.append(
            f"latency is ambiguous: {len(suspects)} of {count(len(shifts), 'case')} are suspect, "
            "of several implementations: the machine changed, or code that they share; "
            f"{count(len(to_confirm), 'case')} moved by more than a change of the machine explains "
            "and may fail; measure again, and if the result is the same, record a new baseline"
        )
    names = {shift.case.id for shift in to_confirm}
    confirmed: Mapping[str, Sequence[float]] | str = "suspected, but not confirmed"
    if to_confirm and confirm is not None:
        confirmed = confirm(to_confirm)
    for shift in shifts:
        name = shift.case.id
        answer: Sequence[float] | str | None = None
        if name in names:
            answer = confirmed if isinstance(confirmed, str) else confirmed.get(name, ())
        elif changed:
            answer = "not judged, since too many cases moved at once"
        findings[name] = latency_change(shift, answer, has_machine_changed=changed)
    return findings, notes


def _of_another_machine(before: Record, after: Record) -> Finding | None:
    """Return the finding that a latency is not comparable; None if it was not timed in both."""
    old, new = before.latency, after.latency
    if old is None or new is None:
        return None
    why = "measured on another machine or with other software"
    old_ratios, new_ratios = process_ratios(old), process_ratios(new)
    if old_ratios and new_ratios and old.reference == new.reference:
        why += (
            f": {speed_text(1 / median(old_ratios), 3)} the speed of {old.reference} there, "
            f"{speed_text(1 / median(new_ratios), 3)} here"
        )
    return latency_finding(ChangeKind.NOT_COMPARABLE, why)
