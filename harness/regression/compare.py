"""Compare two results files case by case.

Nothing here measures or reads a clock: the caller passes a function that times suspects again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import expm1
from statistics import median
from typing import Any

from harness.records import Record
from harness.records.refusal import NotComparableError, NotMeasuredError, Refusal
from harness.records.text import count, in_words, percent_text
from harness.regression.changes import (
    Change,
    ChangeKind,
    Comparison,
    change_of,
    counts_shown,
    exact_changes,
    latency_change,
    worst_first,
)
from harness.regression.comparable import why_not_counted, why_not_timed
from harness.regression.latency_judge import (
    BASELINE_PROCESSES,
    CONFIRMING_PROCESSES,
    FAR,
    Confirm,
    Shift,
    has_machine_changed,
    judge_all,
    process_ratios,
    screen_against_baseline,
    with_recordings,
)
from harness.store import Results

RECORD_BASELINE = (
    "record a baseline of as many with `layernorm-bench check RUN --baseline FILE "
    "--record-baseline`"
)


def compare(
    baseline: Results,
    head: Results,
    names: tuple[str, str],
    *,
    confirm: Confirm | None = None,
    least_processes: int = BASELINE_PROCESSES,
    advice: str = RECORD_BASELINE,
) -> Comparison:
    """Return how each case changed between two runs.

    Args:
        baseline: the earlier run.
        head: the later run.
        names: of the two, for messages.
        confirm: times suspects again; without it they are inconclusive.
        least_processes: a latency is judged only if the baseline timed the case in as many.
        advice: what to do if it timed cases in fewer.

    Raises:
        NotMeasuredError: a run has no measured case.
        NotComparableError: they have nothing in common that may be compared.
        Refusal: a run holds a case twice.
    """
    old, new = _by_id(baseline, names[0]), _by_id(head, names[1])
    of_times, of_counts = _aligned(old, new, baseline, head)
    both = [(old[name], new[name]) for name in old if name in new]
    if not any(first.status.is_measured and second.status.is_measured for first, second in both):
        raise NotComparableError(
            f"{names[0]} and {names[1]} have no case in common that was measured in both "
            f"({next(iter(old))} is in the first, {next(iter(new))} in the second): compare runs "
            "of one sweep on one kind of device"
        )
    latencies, shifts, notes = _latencies(both, confirm, least_processes, advice)
    counted = [
        first.instructions
        for first, second in both
        if first.instructions and second.instructions and first.case.id not in of_counts
    ]
    notes = [
        *_what_shows(shifts, counted, both),
        *_notes_of_environments(of_times, of_counts),
        *notes,
    ]
    return compare_records(old, new, latencies, names, notes, of_counts)


def compare_records(
    old: Mapping[Any, Record],
    new: Mapping[Any, Record],
    latencies: Mapping[str, Change],
    names: tuple[str, str],
    notes: Sequence[str],
    not_counted: Collection[str] = (),
) -> Comparison:
    """Return how each case changed, whose latencies are judged already.

    Args:
        old: records before; the keys are cases or their ids.
        new: records now, likewise.
        latencies: how latencies changed, by the case's id.
        names: of the two files or revisions.
        notes: on all cases.
        not_counted: cases whose counts of instructions are not comparable.

    Raises:
        NotComparableError: nothing of the cases in both may be compared.
    """
    of_metrics = []
    for first, second in ((old[name], new[name]) for name in old if name in new):
        latency = latencies.get(first.case.id)
        exact = exact_changes(first, second, counts=first.case.id not in not_counted)
        is_counted = any(one.metric == "instructions" and one.kind.is_judged for one in exact)
        if is_counted and latency is not None and latency.kind is ChangeKind.INCONCLUSIVE:
            reason = f"{latency.reason}; the instructions decide"
            latency = replace(latency, kind=ChangeKind.UNCHANGED, reason=reason)
        changes = [*exact, *([latency] if latency else [])]
        why = f"{in_words(first.status)} in both, and nothing else of it may be compared"
        nothing = Change(first.case, ChangeKind.NOT_COMPARABLE, why, "status")
        of_metrics.append(changes or [nothing])
    every = [change for changes in of_metrics for change in changes]
    if every and all(change.kind is ChangeKind.NOT_COMPARABLE for change in every):
        raise NotComparableError(
            f"nothing that {' and '.join(names)} have in common may be compared: "
            f"{every[0].case.id}: {every[0].reason}"
        )
    changes = list(map(change_of, of_metrics))
    for records, others, kind, where in (
        (old, new, ChangeKind.GONE, names[0]),
        (new, old, ChangeKind.NEW, names[1]),
    ):
        for record in (records[name] for name in records if name not in others):
            why = f": {record.reason}" if record.reason else ""
            reason = f"in {where} only, {in_words(record.status)} there{why}"
            changes.append(Change(record.case, kind, reason))
    return Comparison(
        changes=worst_first(changes), baseline=names[0], head=names[1], notes=tuple(notes)
    )


def compare_as_stored(before: Results, after: Results, names: tuple[str, str]) -> Comparison:
    """Compare two runs by what they hold; ``names`` are those of their files.

    Raises:
        Refusal: the runs have nothing in common, or nothing was measured.
    """
    new = {record.case.id: process_ratios(record.latency) for record in after.records}

    def confirm(suspects: Sequence[Shift]) -> Mapping[str, Sequence[float]]:
        timed = [one.case.id for one in suspects if len(one.before) >= CONFIRMING_PROCESSES]
        return {name: new[name] for name in timed}

    return compare(before, after, names, confirm=confirm, least_processes=1)


def refuse_duplicates(results: Results, name: str) -> None:
    """Refuse a file that holds a case twice: readers could not tell the two records apart.

    Raises:
        Refusal: it does.
    """
    counts = Counter(record.case.id for record in results.records)
    duplicates = [case for case, number in counts.items() if number > 1]
    if duplicates:
        raise Refusal(
            f"{name}: holds {count(len(duplicates), 'case')} more than once, such as "
            f"{duplicates[0]}; keep one record of each"
        )


def _by_id(results: Results, name: str) -> dict[str, Record]:
    """Return the records of a run by the id of their case; refuse one without a measured case."""
    refuse_duplicates(results, name)
    if not results.records:
        raise NotMeasuredError(f"{name}: holds no case; run the sweep again")
    if not any(record.status.is_measured for record in results.records):
        statuses = Counter(record.status for record in results.records)
        listed = ", ".join(f"{number} {in_words(status)}" for status, number in statuses.items())
        raise NotMeasuredError(
            f"{name}: no case in it was measured ({listed}), so nothing can be compared; see the "
            "reasons in its records and run the sweep again"
        )
    return {record.case.id: record for record in results.records}


# --- latencies -----------------------------------------------------------------------------------


def _latencies(
    both: Sequence[tuple[Record, Record]],
    confirm: Confirm | None,
    least_processes: int,
    advice: str,
) -> tuple[dict[str, Change], list[Shift], list[str]]:
    """Judge the latencies.

    Return the changes by id of the case, what can be judged at all, and notes.
    """
    changes: dict[str, Change] = {}
    shifts: list[Shift] = []
    few = 0
    for before, after in both:
        # the times of a wrong and of a right result are not comparable
        if before.status is not after.status:
            continue
        screened = screen_against_baseline(before, after)
        if isinstance(screened, Shift) and len(screened.before) < least_processes:
            why = (
                f"the baseline timed it in {count(len(screened.before), 'process', 'processes')}, "
                f"and {least_processes} are needed to know how much processes differ"
            )
            screened = latency_change(before.case, ChangeKind.INCONCLUSIVE, why)
            few += 1
        if isinstance(screened, Shift):
            shifts.append(screened)
        elif screened is not None:
            changes[before.case.id] = screened
    shifts = with_recordings(shifts)
    steady = [shift for shift in shifts if not shift.unsteady]
    suspects = [shift for shift in steady if shift.is_suspect]
    notes = []
    if noisy := sum(bool(shift.noise) and not shift.is_suspect for shift in steady):
        notes.append(f"latency of {count(noisy, 'case')} is too noisy to show a small change")
    if has_machine_changed(steady):
        unjudged = "not judged, since too many cases moved at once"
        shifts = [
            replace(shift, least=max(shift.least, FAR), noise=shift.noise or unjudged)
            for shift in shifts
        ]
        far = sum(shift.is_suspect for shift in shifts)
        notes.append(
            f"latency is ambiguous: {len(suspects)} of {count(len(steady), 'case')} are suspect, "
            "of several implementations: the machine changed, or code that they share; "
            f"{count(far, 'case')} moved by more than a change of the machine explains "
            "and may fail; measure again, and if the result is the same, record a new baseline"
        )
    if few:
        notes.append(
            f"latency of {count(few, 'case')} is not judged, because the baseline has fewer than "
            f"{least_processes} processes; {advice}"
        )
    if any(first.cold is not None and second.cold is not None for first, second in both):
        notes.append("cold latencies are not compared")
    return changes | judge_all(shifts, confirm), steady, notes


# --- environments and notes ----------------------------------------------------------------------


def _aligned(
    old: dict[str, Record], new: Mapping[str, Record], before: Results, after: Results
) -> tuple[dict[str, str], dict[str, str]]:
    """Give records of equal environments the same fingerprint.

    Return why times, and why counts of instructions, are not comparable, by id of the case.
    """
    of_times: dict[str, str] = {}
    of_counts: dict[str, str] = {}
    for name in old.keys() & new.keys():
        first, second = old[name], new[name]
        if first.instructions is not None and second.instructions is None:
            of_counts[name] = "there are none now (is valgrind installed?)"
        if first.environment == second.environment:
            continue
        there = before.environments.get(first.environment)
        here = after.environments.get(second.environment)
        if why := why_not_timed(there, here, first.case):
            of_times[name] = why
        else:
            old[name] = replace(first, environment=second.environment)
        why = why_not_counted(there, here, first.case)
        if why and first.instructions is not None:
            of_counts.setdefault(name, why)
    return of_times, of_counts


def _what_shows(
    shifts: Sequence[Shift], counted: Sequence[int], both: Sequence[tuple[Record, Record]]
) -> Iterator[str]:
    """Say the least slowdown that can fail, unless no time was measured before."""
    if not any(first.latency or first.instructions for first, _ in both):
        return
    parts = []
    if shifts:
        shown = [shift.least_shown for shift in shifts]
        low, middle = (percent_text(expm1(move)) for move in (min(shown), median(shown)))
        cases = count(len(shown), "timed case")
        parts.append(f"{low} at best, and {middle} in the median of {cases}")
    if counted:
        parts.append(f"{counts_shown(counted)} in {count(len(counted), 'counted case')}")
    yield (
        f"the least slowdown that shows: {'; '.join(parts)}"
        if parts
        else "no time and no count of instructions was compared: slowdowns do not show"
    )


def _notes_of_environments(
    of_times: Mapping[str, str], of_counts: Mapping[str, str]
) -> Iterator[str]:
    for why, number in Counter(of_times.values()).items():
        yield (
            f"another machine or other software ({why}): latency of {count(number, 'case')} is not "
            "compared; errors are compared only beyond what another order of the same sums explains"
        )
    for why, number in Counter(of_counts.values()).items():
        yield f"instructions of {count(number, 'case')} are not compared: {why}"
