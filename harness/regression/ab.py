"""Measure two revisions of the same implementations side by side, and compare each case.

What imports the other revision is in :mod:`harness.regression.side_by_side`, which needs torch.

There are three passes. The first measures the exact metrics, of base and head one after the other,
on the same inputs, in one or two processes. The second times the cases that are right in both, base
and head in turn. The third times the suspects again, in fresh processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cases import Planned, Sweep
from harness.records import Budget, Case, Measurement, Record, Status
from harness.records.refusal import NotComparableError, NotMeasuredError, Refusal
from harness.records.text import count
from harness.regression.baseline import CONFIRMING, time_again
from harness.regression.changes import (
    Change,
    Comparison,
)
from harness.regression.compare import compare_records
from harness.regression.latency_judge import (
    SCREENING_IN_TURN,
    UNEVEN_IN_TURN_RATIO,
    Shift,
    judge_all,
    screen_in_turn,
)
from harness.regression.revision import (
    Checkout,
    file_of,
    is_unchanged,
    repository_of,
)
from harness.run import START_S, TIMINGS, EndedError, Fleet, Job, plan

if TYPE_CHECKING:
    from harness.cases.inputs import Inputs
    from harness.measure import Sampled
    from harness.run import CaseRunner, Judged
    from implementations.contract import Implementation

BASE = "base@"
"""Prefix that marks a target as one of the base revision."""
_LATENCY = (Measurement.LATENCY,)
_CONFIRMING = replace(CONFIRMING, uneven_ratio=UNEVEN_IN_TURN_RATIO)

# --- requests, answered in a worker that imports both revisions side by side ---------------------


def missing_in_base(
    runner: CaseRunner, options: tuple[Checkout, tuple[str, ...]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the targets that a base revision lacks, and those that it cannot import, and why.

    Args:
        runner: of the worker.
        options: files of the base revision, and the targets.
    """
    import implementations
    from harness.regression.side_by_side import AbsentError, side_by_side

    checkout, targets = options
    lacks: dict[str, str] = {}
    broken: dict[str, str] = {}
    for target in targets:
        try:
            side_by_side(checkout).find(target)
        except AbsentError as error:
            lacks[target] = str(error)
        except implementations.TargetError as error:
            broken[target] = str(error)
    return lacks, broken


def run_base_case(runner: CaseRunner, job: Job) -> Record:
    """Run a case of the base revision, whose files are the job's options, to its record."""
    from harness.regression.side_by_side import side_by_side

    def find(target: str) -> Implementation:
        return side_by_side(job.options).find(target.removeprefix(BASE))

    return runner.run(job.case, job.measurements, job.budget, find)


def time_against_base(runner: CaseRunner, job: Job) -> Record:
    """Verify a case and time it in turn with the same target of the base.

    The options of the job are the files of the base, and whether it comes first: whether it is
    imported, prepared and warmed up before head.
    """
    import implementations
    from harness.regression.side_by_side import side_by_side
    from harness.run import bind, function_of, time_case

    checkout, is_base_first = job.options
    base_of = side_by_side(checkout).find
    if is_base_first:
        base_of(job.case.implementation)

    def time(judged: Judged, inputs: Inputs, *arguments: Any, **more: Any) -> Sampled:
        case = judged.case
        base = base_of(case.implementation)
        base = replace(base, function=function_of(base, case.mode, keep=True))
        bind(base.function, case, inputs.copies().tensors)()  # compiles it before the timing
        more |= {"reference": base, "reference_first": is_base_first}
        return time_case(judged, inputs, *arguments, **more)

    return runner.run(job.case, job.measurements, job.budget, implementations.find, time)


def found_in_either(target: str, checkout: Checkout) -> Implementation:
    """Return a target of head, or of the base by its prefix; both are imported in either case."""
    import implementations
    from harness.regression.side_by_side import side_by_side

    name = target.removeprefix(BASE)
    base, head = side_by_side(checkout).find(name), implementations.find(name)
    return head if name == target else base


def of_base(case: Case) -> Case:
    """Return the case of the base revision."""
    return replace(case, implementation=BASE + case.implementation)


# --- which cases both revisions have -------------------------------------------------------------


def repository_of_sweep(sweep: Sweep) -> Path:
    """Return the repository of all implementations of a sweep.

    Raises:
        Refusal: an implementation is in no repository, or they are in several.
    """
    found: dict[Path, str] = {}
    for target in _targets(sweep):
        if (file := file_of(target)) is not None:
            found.setdefault(repository_of(file, target), target)
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        raise Refusal(
            f"{one} is in the repository {first} and {other} in {second}, but --base names a "
            "revision of one repository; compare them one after the other, with -i"
        )
    if not found:
        raise Refusal(f"{', '.join(_targets(sweep))}: no such module; see `list`")
    return next(iter(found))


def pair_up(
    sweep: Sweep, fleet: Fleet, checkout: Checkout, name: str
) -> tuple[tuple[Planned, ...], dict[str, str]]:
    """Return the cases of a sweep, and why the base lacks some of their implementations.

    Args:
        sweep: of the working copy.
        fleet: a worker process looks the implementations up.
        checkout: files of the base.
        name: of the base, for messages.

    Raises:
        NotComparableError: the base has none of them.
        Refusal: the base cannot be imported.
        Refusal: a name does not exist in the working copy, or not on this machine.
    """
    planned = plan(sweep, fleet)
    targets = tuple(dict.fromkeys(row.case.implementation for row in planned))
    try:
        lacks, broken = fleet.call(missing_in_base, (checkout, targets), START_S)
    except EndedError as ended:
        raise Refusal(f"{name}: importing it {ended}") from None
    if broken:
        raise Refusal("\n".join(f"{name}: {why}" for why in broken.values()))
    if lacks.keys() == {*targets}:
        example, why = next(iter(lacks.items()))
        raise NotComparableError(
            f"the working copy and {name} have nothing in common: {example}: {why}"
        )
    return planned, lacks


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
    expect: Callable[[int], None] = lambda number: None
    """Called with the number of records of the first two passes."""
    on_record: Callable[[Record], None] = lambda record: None
    """Called with each of these records."""
    say: Callable[[str], None] = lambda line: None
    """Called with each line of progress of the third pass."""
    count: Callable[[Sequence[Case]], Iterator[tuple[Case, int | str]]] | None = None
    """Counts the instructions of cases of head and, by the prefix, of the base; None: nothing."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Record]:
        for record in self.fleet.run(jobs, self.timeout_s):
            self.on_record(record)
            yield record

    def base_job(self, case: Case, measurements: tuple[Measurement, ...]) -> Job:
        budget, files = SCREENING_IN_TURN, self.checkout
        return Job(of_base(case), measurements, budget, function=run_base_case, options=files)

    def in_turn(self, case: Case, process: int, budget: Budget = _CONFIRMING) -> Job:
        """Base and head swap roles in two of five processes: what favours one shows in three."""
        options = self.checkout, process % 2 == 0
        return Job(case, _LATENCY, budget, function=time_against_base, options=options)


def ab(
    planned: Sequence[Planned],
    lacks: Collection[str],
    bench: Bench,
    names: tuple[str, str],
) -> Comparison:
    """Measure cases of both revisions, and compare each.

    Args:
        planned: the cases, none twice.
        lacks: implementations that the base does not have; of these head alone is measured.
        bench: measures the cases.
        names: of base and head, for messages.

    Raises:
        NotComparableError: nothing may be compared.
        NotMeasuredError: nothing was measured.
        HarnessError: the harness itself failed.
    """
    before, after = _measure_exactly(planned, lacks, bench)
    records = (*after.values(), *before.values())
    if not any(record.status.is_measured for record in records):
        why = f"{records[0].case.id}: {records[0].status}: {records[0].reason}"
        raise NotMeasuredError(f"no case was measured, so nothing can be compared ({why})")
    timed = [
        row.case
        for row in planned
        if row.case in before and Measurement.LATENCY in row.measurements
    ]
    latencies = _compare_latencies(timed, before, after, bench)
    notes = _count_instructions(before, after, bench)
    if is_unchanged(bench.checkout):
        notes.append("the working copy equals the base: all differences are noise")
    if any(Measurement.COLD in row.measurements for row in planned):
        notes.append("cold latencies are not compared")
    if untimed := sum(case.id not in latencies for case in timed):
        why = "neither right nor inaccurate in both"
        notes.append(f"latency of {count(untimed, 'case')} is not compared: {why}")
    return compare_records(before, after, latencies, names, notes)


def _measure_exactly(
    planned: Sequence[Planned], lacks: Collection[str], bench: Bench
) -> tuple[dict[Case, Record], dict[Case, Record]]:
    """Measure everything but times; return the records of base and head, by the case of head."""
    jobs: list[Job] = []
    for row in planned:
        untimed = tuple(wanted for wanted in row.measurements if wanted not in TIMINGS)
        if row.case.implementation not in lacks:
            jobs.append(bench.base_job(row.case, untimed))
        jobs.append(Job(row.case, untimed, SCREENING_IN_TURN))
    bench.expect(len(jobs) + sum(Measurement.LATENCY in row.measurements for row in planned))
    before: dict[Case, Record] = {}
    after: dict[Case, Record] = {}
    for record in bench.run(jobs):
        name = record.case.implementation
        case = replace(record.case, implementation=name.removeprefix(BASE))
        records = before if name.startswith(BASE) else after
        records[case] = replace(record, case=case)
    return before, after


def _count_instructions(
    before: dict[Case, Record], after: dict[Case, Record], bench: Bench
) -> list[str]:
    """Add counts of instructions to the records of cases measured in both, if they are asked for.

    Return notes on what was not counted.
    """
    pairs = ((case, old, after[case]) for case, old in before.items())
    both = [case for case, *records in pairs if all(one.status.is_measured for one in records)]
    if bench.count is None or not both:
        return []
    bench.say(f"counting the instructions of {count(len(both), 'case')}, before and now")
    counts = dict(bench.count([one for case in both for one in (of_base(case), case)]))
    missing: Counter[str] = Counter()
    for case in both:
        old, new = counts[of_base(case)], counts[case]
        if isinstance(old, int) and isinstance(new, int):
            before[case] = replace(before[case], instructions=old)
            after[case] = replace(after[case], instructions=new)
        else:
            missing[new if isinstance(new, str) else str(old)] += 1
    return [
        f"instructions of {count(number, 'case')} are not compared: {why}"
        for why, number in missing.items()
    ]


def _compare_latencies(
    wanted: Sequence[Case], before: dict[Case, Record], after: dict[Case, Record], bench: Bench
) -> dict[str, Change]:
    """Compare the latency of the cases that are right, or inaccurate, in both.

    Return changes by the case's id.

    The record of a case that is wrong only after its timing replaces the one in ``after``, and in
    ``before`` if the base is wrong after its timing, too.
    """
    usable = {Status.OK, Status.INACCURATE}
    alike = [
        case
        for case in wanted
        if before[case].status is after[case].status and after[case].status in usable
    ]
    bench.expect(len(before) + len(after) + len(alike))
    screened: dict[Case, Shift | Change] = {}
    for record in bench.run([bench.in_turn(case, 1, SCREENING_IN_TURN) for case in alike]):
        if record.status is Status.WRONG:
            after[record.case] = record
        else:
            screened[record.case] = screen_in_turn(record)
    for case in wanted:
        # where head is wrong after its timing, the base may be wrong, too: time it alone
        if before[case].status in usable and after[case].latency is not None:
            job = bench.base_job(case, _LATENCY)
            for record in bench.fleet.run([job], bench.timeout_s):
                before[case] = replace(record, case=case)

    def confirm(suspects: Sequence[Shift]) -> dict[str, list[float]] | str:
        return time_again(suspects, bench.in_turn, bench.make_fleet, bench.say, bench.timeout_s)

    return judge_all(screened.values(), confirm)
