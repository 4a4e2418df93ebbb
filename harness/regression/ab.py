"""Measure two revisions of the same implementations side by side, and compare each case.

What imports the other revision is in :mod:`harness.regression.side_by_side`, which needs torch.

There are three passes. The first measures the exact metrics, of base and head one after the other,
on the same inputs, in one or two processes. The second times the cases that are right in both, base
and head in turn. The third times the suspects again, in fresh processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cases import Planned, Sweep
from harness.records import Budget, Case, Measurement, Record, Status
from harness.records.text import count, in_words
from harness.regression.baseline import CONFIRMING, time_again
from harness.regression.changes import (
    Change,
    ChangeKind,
    Comparison,
    change_of,
    latency_change,
    worst_first,
)
from harness.regression.compare import NotComparableError, NotMeasuredError, changes_of
from harness.regression.latency_judge import (
    SCREENING_IN_TURN,
    UNEVEN_IN_TURN_RATIO,
    Shift,
    is_everywhere,
    judge_all,
    screen_in_turn,
)
from harness.regression.revision import (
    Checkout,
    RevisionError,
    file_of,
    is_unchanged,
    repository_of,
)
from harness.run.fleet import EndedError, Fleet
from harness.run.plan import plan
from harness.run.worker import START_S, TIMINGS, Job

if TYPE_CHECKING:
    from harness.cases.inputs import Inputs
    from harness.measure.latency import Sampled
    from harness.run.attempt import Judged
    from harness.run.case import CaseRunner
    from implementations.contract import Implementation

BASE = "base@"
"""Prefix that marks a target as one of the base revision."""
_OUT_OF_TIME = "the time was up"
_LATENCY = (Measurement.LATENCY,)
_CONFIRMING = replace(CONFIRMING, uneven_ratio=UNEVEN_IN_TURN_RATIO)

# --- requests, answered in a worker that imports both revisions side by side ---------------------


def missing_in_base(
    runner: CaseRunner, options: tuple[Checkout, tuple[str, ...]]
) -> dict[str, tuple[ChangeKind | None, str]]:
    """Return the targets of the base that cannot be compared, and why.

    A target that cannot be imported has no kind of change.

    Args:
        runner: of the worker.
        options: files of the base revision, and the targets.
    """
    import implementations
    from harness.regression.side_by_side import side_by_side

    checkout, targets = options
    missing = {}
    for target in targets:
        try:
            side_by_side(checkout).find(target)
        except implementations.TargetError as error:
            missing[target] = getattr(error, "kind", None), str(error)
    return missing


def run_base_case(runner: CaseRunner, job: Job) -> Record:
    """Run a case of the base revision, whose files are the job's options, to its record."""
    from harness.regression.side_by_side import side_by_side

    def find(target: str) -> Implementation:
        return side_by_side(job.options).find(target.removeprefix(BASE))

    return runner.run(job.case, job.measurements, job.budget, find)


def time_against_base(runner: CaseRunner, job: Job) -> Record:
    """Verify a case and time it in turn with the same target of the base."""
    import implementations
    from harness.regression.side_by_side import side_by_side
    from harness.run.call import bind, function_of
    from harness.run.timing import time_case

    def time(judged: Judged, inputs: Inputs, *arguments: Any, **more: Any) -> Sampled:
        case = judged.case
        base = side_by_side(job.options).find(case.implementation)
        base = replace(base, function=function_of(base, case.mode, keep=True))
        bind(base.function, case, inputs.copies().tensors)()  # compiles it before the timing
        return time_case(judged, inputs, *arguments, reference=base, **more)

    return runner.run(job.case, job.measurements, job.budget, implementations.find, time)


# --- which cases both revisions have -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairing:
    """The cases of a sweep, sorted by whether they can be compared."""

    pairs: tuple[Planned, ...]
    unpaired: tuple[tuple[Planned, Change], ...] = ()
    """Cases that are new or not comparable, and why."""


def repository_of_sweep(sweep: Sweep) -> Path:
    """Return the repository of all implementations of a sweep.

    Raises:
        RevisionError: an implementation is in no repository, or they are in several.
    """
    found: dict[Path, str] = {}
    for target in _targets(sweep):
        if (file := file_of(target)) is not None:
            found.setdefault(repository_of(file, target), target)
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        raise RevisionError(
            f"{one} is in the repository {first} and {other} in {second}, but --base names a "
            "revision of one repository; compare them one after the other, with -i"
        )
    if not found:
        raise RevisionError(f"{', '.join(_targets(sweep))}: no such module; see `list`")
    return next(iter(found))


def pair_up(sweep: Sweep, fleet: Fleet, checkout: Checkout, name: str) -> Pairing:
    """Plan the cases of a sweep for both revisions.

    Args:
        sweep: of the working copy.
        fleet: a worker process looks the implementations up.
        checkout: files of the base.
        name: of the base, for messages.

    Raises:
        RevisionError: the base cannot be imported.
        SweepError: a name does not exist in the working copy, or not on this machine.
    """
    cases = plan(sweep, fleet)
    targets = tuple(dict.fromkeys(planned.case.implementation for planned in cases))
    try:
        missing = fleet.call(missing_in_base, (checkout, targets), START_S)
    except EndedError as ended:
        raise RevisionError(f"{name}: importing it {ended}") from None
    pairs, unpaired = [], []
    for planned in cases:
        if planned.case.implementation not in missing:
            pairs.append(planned)
            continue
        kind, why = missing[planned.case.implementation]
        if kind is None:
            raise RevisionError(f"{name}: {why}")
        unpaired.append((planned, Change(planned.case, kind, f"not in {name}: {why}")))
    return Pairing(tuple(pairs), tuple(unpaired))


def _targets(sweep: Sweep) -> tuple[str, ...]:
    return tuple(sorted({name for grid in sweep.grids for name in grid.implementations}))


# --- the three passes ----------------------------------------------------------------------------


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

    def run(self, jobs: Sequence[Job]) -> Iterator[Record]:
        for record in self.fleet.run(jobs, self.timeout_s, self.stop_at):
            self.on_record(record)
            yield record

    def base_job(self, case: Case, measurements: tuple[Measurement, ...]) -> Job:
        base = replace(case, implementation=BASE + case.implementation)
        budget, files = SCREENING_IN_TURN, self.checkout
        return Job(base, measurements, budget, function=run_base_case, options=files)

    def in_turn(self, case: Case, budget: Budget = SCREENING_IN_TURN) -> Job:
        return Job(case, _LATENCY, budget, function=time_against_base, options=self.checkout)


def ab(pairing: Pairing, bench: Bench, *, baseline_name: str, head_name: str) -> Comparison:
    """Measure the pairs and compare each.

    Args:
        pairing: the cases to compare, no case twice; and those to list, which cannot be compared.
        bench: measures the cases.
        baseline_name: for messages.
        head_name: for messages.

    Raises:
        NotComparableError: there is no pair.
        NotMeasuredError: nothing was measured.
        HarnessError: the harness itself failed.
    """
    if not pairing.pairs:
        example = [f": {lone.case.id}: {lone.reason}" for _, lone in pairing.unpaired[:1]]
        raise NotComparableError(
            f"{head_name} and {baseline_name} have nothing in common{''.join(example)}"
        )
    before, after = _measure_exactly(pairing, bench)
    records = (*after.values(), *before.values())
    if not any(record.status.is_measured for record in records):
        why = _OUT_OF_TIME
        if records:
            why = f"{records[0].case.id}: {records[0].status}: {records[0].reason}"
        raise NotMeasuredError(f"no case was measured, so nothing can be compared ({why})")
    latencies, notes = _compare_latencies(pairing.pairs, before, after, bench)
    planned = (*pairing.pairs, *(planned for planned, _ in pairing.unpaired))
    if any(Measurement.COLD in one.measurements for one in planned):
        notes.insert(0, "cold latencies are not compared")
    if is_unchanged(bench.checkout):
        notes.insert(0, "the working copy equals the base: all differences are noise")
    changes = [
        change_of(changes_of(before[case], after[case], latencies.get(case.id)))
        if case in before and case in after
        else Change(case, ChangeKind.INCONCLUSIVE, f"not measured: {_OUT_OF_TIME}")
        for case in (planned.case for planned in pairing.pairs)
    ]
    changes += [_with_status(lone, after.get(lone.case)) for _, lone in pairing.unpaired]
    return Comparison(
        changes=worst_first(changes), baseline=baseline_name, head=head_name, notes=tuple(notes)
    )


def _untimed(planned: Planned) -> tuple[Measurement, ...]:
    return tuple(wanted for wanted in planned.measurements if wanted not in TIMINGS)


def _measure_exactly(
    pairing: Pairing, bench: Bench
) -> tuple[dict[Case, Record], dict[Case, Record]]:
    """Measure everything but times; return the records of base and head, by the case of head."""
    jobs: list[Job] = []
    case_of_base: dict[Case, Case] = {}
    for planned in pairing.pairs:
        base = bench.base_job(planned.case, _untimed(planned))
        case_of_base[base.case] = planned.case
        jobs += [base, Job(planned.case, _untimed(planned), SCREENING_IN_TURN)]
    jobs += [
        Job(planned.case, _untimed(planned), SCREENING_IN_TURN) for planned, _ in pairing.unpaired
    ]
    timed = sum(Measurement.LATENCY in planned.measurements for planned in pairing.pairs)
    bench.expect(len(jobs) + timed)
    before: dict[Case, Record] = {}
    after: dict[Case, Record] = {}
    for record in bench.run(jobs):
        case = case_of_base.get(record.case)
        if case is None:
            after[record.case] = record
        else:
            before[case] = replace(record, case=case)
    return before, after


def _compare_latencies(
    pairs: Sequence[Planned], before: dict[Case, Record], after: dict[Case, Record], bench: Bench
) -> tuple[dict[str, Change], list[str]]:
    """Compare the latency of the cases that are right in both; return changes by id, and notes.

    The record of a case that is wrong only after its timing replaces the one in ``after``, and in
    ``before`` if the base is wrong after its timing, too.
    """
    wanted = [
        planned.case
        for planned in pairs
        if Measurement.LATENCY in planned.measurements
        and planned.case in before
        and planned.case in after
    ]
    right = [case for case in wanted if before[case].status is after[case].status is Status.OK]
    bench.expect(len(before) + len(after) + len(right))
    screened: dict[Case, Shift | Change] = {
        case: latency_change(case, ChangeKind.INCONCLUSIVE, f"not timed: {_OUT_OF_TIME}")
        for case in right
    }
    for record in bench.run([bench.in_turn(case) for case in right]):
        if record.status is Status.WRONG:
            after[record.case] = record
            del screened[record.case]
        else:
            screened[record.case] = screen_in_turn(record)
    for case in wanted:
        # where head is wrong after its timing, the base may be wrong, too: time it alone
        if before[case].status is Status.OK and after[case].latency is not None:
            job = bench.base_job(case, _LATENCY)
            for record in bench.fleet.run([job], bench.timeout_s):
                before[case] = replace(record, case=case)
    shifts = [shift for shift in screened.values() if isinstance(shift, Shift)]
    changes = {case.id: found for case, found in screened.items() if isinstance(found, Change)}
    notes = []
    suspects = [shift.case for shift in shifts if shift.is_suspect]
    if is_everywhere(suspects, [shift.case for shift in shifts]):
        notes.append(
            f"{len(suspects)} of {count(len(shifts), 'case')} were suspect at first sight, in "
            "several implementations: what they share changed, or the machine did; all were timed "
            "again in turn with the base, which cancels changes of the machine"
        )
    wrong_in_both = sum(
        after[case].status.is_measured and before[case].status is after[case].status
        for case in wanted
        if case not in screened
    )
    if wrong_in_both:
        cases = count(wrong_in_both, "case")
        notes.append(f"latency of {cases} is not compared: right in neither")

    confirm = partial(
        time_again,
        job=partial(bench.in_turn, budget=_CONFIRMING),
        make_fleet=bench.make_fleet,
        say=bench.say,
        timeout_s=bench.timeout_s,
        stop_at=bench.stop_at,
    )
    return changes | judge_all(shifts, confirm), notes


def _with_status(lone: Change, record: Record | None) -> Change:
    if record is None:
        return lone
    why = f": {record.reason}" if record.reason else ""
    return replace(lone, reason=f"{lone.reason}; now {in_words(record.status)}{why}")
