"""Measure two revisions of the same implementations side by side, and compare each case.

There are three passes. The first measures the exact metrics, of base and head one after the other,
on the same inputs, in one or two processes. The second times the cases that are right in both, base
and head in turn. The third times the suspects again, in fresh processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from harness.records import Case, Measurement, Record, Status
from harness.records.text import count
from harness.regression.ab.latency import (
    SCREENING,
    UNEVEN_RATIO,
    Look,
    confirmed_change,
    look_at,
)
from harness.regression.ab.messages import RunBaseCase, TimeAgainstBase
from harness.regression.ab.revision import BASE, Checkout
from harness.regression.changes import (
    Change,
    ChangeKind,
    Comparison,
    Finding,
    change_of,
    inconclusive_latency,
    worst_first,
)
from harness.regression.compare import NotComparableError, NotMeasuredError, findings_of
from harness.regression.confirm import CONFIRMING, time_again
from harness.regression.latency_test import is_everywhere
from harness.run.fleet import Fleet
from harness.run.messages import TIMINGS, RunCase

__all__ = ["Bench", "PairedCase", "UnpairedCase", "ab"]

_OUT_OF_TIME = "the time was up"
_LATENCY = (Measurement.LATENCY,)
_CONFIRMING = replace(CONFIRMING, uneven_ratio=UNEVEN_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCase:
    """A case that both revisions have."""

    case: Case
    measurements: tuple[Measurement, ...]

    @property
    def base_case(self) -> Case:
        return replace(self.case, implementation=BASE + self.case.implementation)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedCase:
    """A case that cannot be compared."""

    case: Case
    kind: ChangeKind
    """NEW, GONE or NOT_COMPARABLE."""
    reason: str
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The processes that measure both revisions, and their limits."""

    fleet: Fleet
    """Already started; runs the first two passes."""
    make_fleet: Callable[[], Fleet]
    """Starts a fresh process, for the third pass."""
    checkout: Checkout
    """Files of the base."""
    timeout_s: float
    """For one case in one process."""
    stop_at: float = inf
    """No case starts after this, by the monotonic clock."""
    expect: Callable[[int], None] = lambda number: None
    """Called with the number of records of the first two passes."""
    on_record: Callable[[Record], None] = lambda record: None
    """Called with each of these records."""
    say: Callable[[str], None] = lambda line: None
    """Called with each line of progress of the third pass."""


def ab(
    pairs: Sequence[PairedCase],
    bench: Bench,
    *,
    baseline_name: str,
    head_name: str,
    unpaired: Sequence[UnpairedCase] = (),
    notes: Sequence[str] = (),
) -> Comparison:
    """Measure ``pairs`` and compare each.

    Args:
        pairs: the cases to compare; no case twice.
        bench: measures the cases.
        baseline_name: for messages.
        head_name: for messages.
        unpaired: cases to list, which cannot be compared.
        notes: added to those of the comparison.

    Raises:
        NotComparableError: there is no pair.
        NotMeasuredError: nothing was measured.
        HarnessError: the harness itself failed.
    """
    if not pairs:
        example = f": {unpaired[0].case.id}: {unpaired[0].reason}" if unpaired else ""
        raise NotComparableError(f"{head_name} and {baseline_name} have nothing in common{example}")
    before, after = _measure_exactly(pairs, unpaired, bench)
    _refuse_unmeasured((*after.values(), *before.values()))
    latencies, more_notes = _compare_latencies(pairs, before, after, bench)
    changes = [_change_of_pair(each.case, before, after, latencies) for each in pairs]
    changes += [_change_of_unpaired(each, after.get(each.case)) for each in unpaired]
    return Comparison(
        changes=worst_first(changes),
        baseline=baseline_name,
        head=head_name,
        notes=(*notes, *more_notes),
    )


def _measure_exactly(
    pairs: Sequence[PairedCase], unpaired: Sequence[UnpairedCase], bench: Bench
) -> tuple[dict[Case, Record], dict[Case, Record]]:
    """Measure everything but times; return the records of base and head, by the case of head."""
    jobs: list[RunCase] = []
    for pair in pairs:
        exact = _untimed(pair.measurements)
        jobs.append(RunBaseCase(pair.base_case, exact, SCREENING, bench.checkout))
        jobs.append(RunCase(pair.case, exact, SCREENING))
    jobs += [
        RunCase(each.case, _untimed(each.measurements), SCREENING)
        for each in unpaired
        if each.kind is not ChangeKind.GONE
    ]
    bench.expect(len(jobs) + sum(Measurement.LATENCY in each.measurements for each in pairs))
    case_of_base = {each.base_case: each.case for each in pairs}
    before: dict[Case, Record] = {}
    after: dict[Case, Record] = {}
    for record in bench.fleet.run(jobs, bench.timeout_s, bench.stop_at):
        bench.on_record(record)
        case = case_of_base.get(record.case)
        if case is None:
            after[record.case] = record
        else:
            before[case] = replace(record, case=case)
    return before, after


def _untimed(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return tuple(each for each in measurements if each not in TIMINGS)


def _refuse_unmeasured(records: Sequence[Record]) -> None:
    if any(each.status.is_measured for each in records):
        return
    why = _OUT_OF_TIME
    if records:
        why = f"{records[0].case.id}: {records[0].status}: {records[0].reason}"
    raise NotMeasuredError(f"no case was measured, so nothing can be compared ({why})")


def _compare_latencies(
    pairs: Sequence[PairedCase], before: dict[Case, Record], after: dict[Case, Record], bench: Bench
) -> tuple[dict[Case, Finding], list[str]]:
    """Compare the latency of the cases that are right in both; return findings and notes.

    The record of a case that is wrong only after its timing replaces the one in ``after``, and in
    ``before`` if the base is wrong after its timing, too.
    """
    wanted = {
        pair.case: pair
        for pair in pairs
        if Measurement.LATENCY in pair.measurements and pair.case in before and pair.case in after
    }
    screened = _screen(wanted, before, after, bench)
    _check_base_after_timing(wanted, before, after, bench)
    looks = {case: look for case, look in screened.items() if isinstance(look, Look)}
    suspects = [case for case, look in looks.items() if look.is_suspect and not look.unsteady]
    confirmed: Mapping[str, Sequence[float]] | str = {}
    if suspects:
        jobs = [TimeAgainstBase(case, _LATENCY, _CONFIRMING, bench.checkout) for case in suspects]
        confirmed = time_again(
            jobs,
            bench.make_fleet,
            bench.say,
            bench.timeout_s,
            is_refuted=lambda case, ratios: looks[case].is_refuted(ratios),
            stop_at=bench.stop_at,
        )
    findings = {case: look for case, look in screened.items() if isinstance(look, Finding)}
    for case, look in looks.items():
        ratios = confirmed if isinstance(confirmed, str) else confirmed.get(case.id, ())
        findings[case] = confirmed_change(look, ratios if look.is_suspect else None)
    wrong_in_both = sum(
        after[case].status.is_measured and before[case].status is after[case].status
        for case in wanted.keys() - findings.keys()
    )
    return findings, list(_notes(list(looks), suspects, wrong_in_both))


def _screen(
    pairs: Mapping[Case, PairedCase],
    before: Mapping[Case, Record],
    after: dict[Case, Record],
    bench: Bench,
) -> dict[Case, Look | Finding]:
    """Time the cases that are right in both; put those that are then wrong into ``after``."""
    right = [case for case in pairs if before[case].status is after[case].status is Status.OK]
    bench.expect(len(before) + len(after) + len(right))
    screened: dict[Case, Look | Finding] = {
        case: inconclusive_latency(f"not timed: {_OUT_OF_TIME}") for case in right
    }
    jobs = [TimeAgainstBase(case, _LATENCY, SCREENING, bench.checkout) for case in right]
    for record in bench.fleet.run(jobs, bench.timeout_s, bench.stop_at):
        bench.on_record(record)
        if record.status is Status.WRONG:
            after[record.case] = record
            del screened[record.case]
        else:
            screened[record.case] = look_at(record)
    return screened


def _check_base_after_timing(
    pairs: Mapping[Case, PairedCase],
    before: dict[Case, Record],
    after: Mapping[Case, Record],
    bench: Bench,
) -> None:
    """Time the base alone where head is wrong after its timing: the base may be wrong, too."""
    for case, pair in pairs.items():
        if before[case].status is Status.OK and after[case].latency is not None:
            job = RunBaseCase(pair.base_case, _LATENCY, SCREENING, bench.checkout)
            for record in bench.fleet.run([job], bench.timeout_s):
                before[case] = replace(record, case=case)


def _notes(timed: Sequence[Case], suspects: Sequence[Case], wrong_in_both: int) -> Iterator[str]:
    if is_everywhere(suspects, timed):
        yield (
            f"{len(suspects)} of {count(len(timed), 'case')} were suspect at first sight, in "
            "several implementations: what they share changed, or the machine did; all were timed "
            "again in turn with the base, which cancels changes of the machine"
        )
    if wrong_in_both:
        yield f"latency of {count(wrong_in_both, 'case')} is not compared: right in neither"


def _change_of_pair(
    case: Case,
    before: Mapping[Case, Record],
    after: Mapping[Case, Record],
    latencies: Mapping[Case, Finding],
) -> tuple[Change, float]:
    if case not in before or case not in after:
        why = f"not measured: {_OUT_OF_TIME}"
        return Change(case=case, kind=ChangeKind.INCONCLUSIVE, reason=why), 0.0
    return change_of(case, findings_of(before[case], after[case], latencies.get(case)))


def _change_of_unpaired(unpaired: UnpairedCase, record: Record | None) -> tuple[Change, float]:
    now = "" if record is None else f"; now {record.status.replace('_', ' ')}"
    if record is not None and record.reason:
        now += f": {record.reason}"
    change = Change(case=unpaired.case, kind=unpaired.kind, reason=unpaired.reason + now)
    return change, 0.0
