"""Two revisions of the same implementations, measured side by side: what became of each case.

First what is exact, base and head one after the other on the same inputs in one process. Then the
latency of what is right in both, in turn. Then the suspects again, in fresh processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from harness.records import Budget, Case, Measurement, Record, Status
from harness.regression.ab.latency import SCREENING, Look, judge, look_at
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

__all__ = ["Bench", "Lone", "Pair", "ab"]

_OUT_OF_TIME = "the time was up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case that both revisions have."""

    case: Case
    measurements: tuple[Measurement, ...]

    @property
    def base_case(self) -> Case:
        return replace(self.case, implementation=BASE + self.case.implementation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """A case that has nothing to be compared with."""

    case: Case
    kind: ChangeKind
    """NEW, GONE or INCOMPARABLE."""
    reason: str
    """Why, in words."""
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where it is measured, and for how long."""

    fleet: Fleet
    """Of the first look; it is running."""
    make_fleet: Callable[[], Fleet]
    """Starts a fresh process, for suspects."""
    timeout_s: float
    """For one case in one process."""
    stop_at: float = inf
    """No case starts after this, by the monotonic clock."""
    expect: Callable[[int], None] = lambda number: None
    """Hears how many records there will be before the suspects."""
    on_record: Callable[[Record], None] = lambda record: None
    """Hears of each of them."""
    say: Callable[[str], None] = lambda line: None
    """Hears of progress with the suspects."""


def ab(
    pairs: Sequence[Pair],
    bench: Bench,
    *,
    baseline_name: str,
    head_name: str,
    checkout: Checkout,
    lone: Sequence[Lone] = (),
    notes: Sequence[str] = (),
) -> Comparison:
    """Measure ``pairs`` and say what became of each.

    Args:
        pairs: what to compare; no case twice.
        bench: where.
        baseline_name: for messages.
        head_name: for messages.
        checkout: files of the base.
        lone: what is in one of the two, and is told beside the pairs.
        notes: what is to be told beside the rest.

    Raises:
        NotComparableError: there is no pair.
        NotMeasuredError: nothing was measured.
        HarnessError: the harness itself failed.
    """
    if not pairs:
        such = f": {lone[0].case.id}: {lone[0].reason}" if lone else ""
        raise NotComparableError(f"{head_name} and {baseline_name} have nothing in common{such}")
    before, after = _exact(pairs, lone, bench, checkout)
    _refuse_unmeasured((*after.values(), *before.values()))
    latencies, more = _latencies(pairs, before, after, bench, checkout)
    changes = [_of_pair(each.case, before, after, latencies) for each in pairs]
    changes += [_of_lone(each, after.get(each.case)) for each in lone]
    return Comparison(
        changes=worst_first(changes),
        baseline=baseline_name,
        head=head_name,
        notes=(*notes, *more),
    )


def _exact(
    pairs: Sequence[Pair], lone: Sequence[Lone], bench: Bench, checkout: Checkout
) -> tuple[dict[Case, Record], dict[Case, Record]]:
    """Measure what needs no clock; return the records of the base and of head."""
    jobs = list(_exact_jobs(pairs, lone, checkout))
    timed = sum(Measurement.LATENCY in each.measurements for each in pairs)
    bench.expect(len(jobs) + timed)
    of_base = {each.base_case: each.case for each in pairs}
    before: dict[Case, Record] = {}
    after: dict[Case, Record] = {}
    for record in bench.fleet.run(jobs, bench.timeout_s, bench.stop_at):
        bench.on_record(record)
        case = of_base.get(record.case)
        if case is None:
            after[record.case] = record
        else:
            before[case] = replace(record, case=case)
    return before, after


def _exact_jobs(
    pairs: Sequence[Pair], lone: Sequence[Lone], checkout: Checkout
) -> Iterator[RunCase]:
    for pair in pairs:
        exact = _untimed(pair.measurements)
        yield RunBaseCase(pair.base_case, exact, SCREENING, checkout)
        yield RunCase(pair.case, exact, SCREENING)
    for one in lone:
        if one.kind is not ChangeKind.GONE:
            yield RunCase(one.case, _untimed(one.measurements), SCREENING)


def _untimed(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return tuple(each for each in measurements if each not in TIMINGS)


def _refuse_unmeasured(records: Sequence[Record]) -> None:
    if any(each.status.is_measured for each in records):
        return
    why = _OUT_OF_TIME
    if records:
        why = f"{records[0].case.id}: {records[0].status}: {records[0].reason}"
    raise NotMeasuredError(f"no case was measured, so that nothing can be compared ({why})")


def _latencies(
    pairs: Sequence[Pair],
    before: dict[Case, Record],
    after: dict[Case, Record],
    bench: Bench,
    checkout: Checkout,
) -> tuple[dict[Case, Finding], list[str]]:
    """Judge the latency of what is right in both, and say what holds for all of it.

    What turns out to be wrong after it was timed takes the place of what was right before.
    """
    asked = {
        each.case: each
        for each in pairs
        if Measurement.LATENCY in each.measurements and each.case in before and each.case in after
    }
    seen = _first_look(asked, before, after, bench, checkout)
    _ask_base_too(asked, before, after, bench, checkout)
    looks = {case: look for case, look in seen.items() if isinstance(look, Look)}
    suspects = [case for case, look in looks.items() if look.is_suspect and not look.unsteady]
    confirmed: Mapping[str, Sequence[float]] | str = {}
    if suspects:
        jobs = [_timing(asked[case], checkout, CONFIRMING) for case in suspects]
        confirmed = time_again(
            jobs, bench.make_fleet, bench.say, bench.timeout_s, stop_at=bench.stop_at
        )
    found = {case: look for case, look in seen.items() if isinstance(look, Finding)}
    for case, look in looks.items():
        answer = confirmed if isinstance(confirmed, str) else confirmed.get(case.id, ())
        found[case] = judge(look, answer if look.is_suspect else None)
    wrong = sum(
        after[case].status.is_measured and before[case].status is after[case].status
        for case in asked.keys() - found.keys()
    )
    return found, list(_notes(list(looks), suspects, wrong))


def _first_look(
    asked: Mapping[Case, Pair],
    before: Mapping[Case, Record],
    after: dict[Case, Record],
    bench: Bench,
    checkout: Checkout,
) -> dict[Case, Look | Finding]:
    """Time what is right in both, beside its base."""
    wanted = [case for case in asked if before[case].status is after[case].status is Status.OK]
    bench.expect(len(before) + len(after) + len(wanted))
    found: dict[Case, Look | Finding] = {
        case: inconclusive_latency(f"not timed: {_OUT_OF_TIME}") for case in wanted
    }
    jobs = [_timing(asked[case], checkout, SCREENING) for case in wanted]
    for record in bench.fleet.run(jobs, bench.timeout_s, bench.stop_at):
        bench.on_record(record)
        if record.status is Status.WRONG:
            after[record.case] = record
            del found[record.case]
        else:
            found[record.case] = look_at(record)
    return found


def _timing(pair: Pair, checkout: Checkout, budget: Budget) -> TimeAgainstBase:
    return TimeAgainstBase(pair.case, (Measurement.LATENCY,), budget, checkout)


def _ask_base_too(
    pairs: Mapping[Case, Pair],
    before: dict[Case, Record],
    after: Mapping[Case, Record],
    bench: Bench,
    checkout: Checkout,
) -> None:
    """Time the base alone where head was wrong after it was timed: it may have been always so."""
    late = [
        case
        for case in pairs
        if before[case].status is Status.OK and after[case].latency is not None
    ]
    for case in late:
        job = RunBaseCase(pairs[case].base_case, (Measurement.LATENCY,), SCREENING, checkout)
        for record in bench.fleet.run([job], bench.timeout_s):
            before[case] = replace(record, case=case)


def _notes(timed: Sequence[Case], suspects: Sequence[Case], wrong: int) -> Iterator[str]:
    if is_everywhere(suspects, timed):
        yield (
            f"{len(suspects)} of {_cases(len(timed))} were suspect at first sight, and not of one "
            "implementation alone: what they share changed, or the machine did; all were timed "
            "again, and beside each other, which a change of the machine does not show in"
        )
    if wrong:
        yield f"latency of {_cases(wrong)} is not compared: right in neither"


def _of_pair(
    case: Case,
    before: Mapping[Case, Record],
    after: Mapping[Case, Record],
    latencies: Mapping[Case, Finding],
) -> tuple[Change, float]:
    if case not in before or case not in after:
        why = f"not measured: {_OUT_OF_TIME}"
        return Change(case=case, kind=ChangeKind.INCONCLUSIVE, reason=why), 0.0
    return change_of(case, findings_of(before[case], after[case], latencies.get(case)))


def _of_lone(lone: Lone, record: Record | None) -> tuple[Change, float]:
    now = "" if record is None else f"; now {record.status.replace('_', ' ')}"
    if record is not None and record.reason:
        now += f": {record.reason}"
    return Change(case=lone.case, kind=lone.kind, reason=lone.reason + now), 0.0


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"
