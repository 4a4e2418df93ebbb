"""What `check` measures: how a baseline is recorded, and how suspects are timed again.

A recording is ten passes over all cases. Each pass is a new process with another order of the
cases, and a run with its own journal, so that an interrupted recording can be continued. A baseline
holds one recording or several, made hours apart: they show how much hours differ. It keeps one
value per epoch instead of the raw samples: only that value is compared, and the file stays small
enough to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from random import Random
from shutil import rmtree
from time import monotonic

from harness.cases import Grid, Planned, Sweep
from harness.measure import epoch_values, median_quantile
from harness.records import Budget, Case, Environment, Latency, Measurement, Record, WarningKind
from harness.records.refusal import NotMeasuredError, Refusal, refusing
from harness.records.text import count, grouped
from harness.regression.latency_judge import (
    BASELINE_PROCESSES,
    CONFIRMING_PROCESSES,
    NOISY_SPREAD,
    Confirm,
    Shift,
    process_ratios,
)
from harness.run import TIMINGS, Fleet, Job, Session, merged, run_session
from harness.store import Results, read, write

EPOCHS = 12  # trade-off: more epochs in one process do not narrow the spread between processes
LIMIT_S = 10.0  # trade-off: enough for calls of 50 ms; short calls take a third of a second
CONFIRMING = Budget(min_epochs=EPOCHS, max_epochs=EPOCHS, limit_s=LIMIT_S)

_SWEEP = Sweep(seconds_per_case=LIMIT_S, min_epochs=EPOCHS, max_epochs=EPOCHS)
# A case whose processes spread by NOISY_SPREAD counts as noisy. The target is the width of the
# interval at that spread: a narrower one would call steady cases unconverged.
_MERGING = Budget(
    target_ratio=median_quantile(BASELINE_PROCESSES) * NOISY_SPREAD / BASELINE_PROCESSES**0.5
)


def records_left(wanted: Results, out: Path) -> int:
    """Return how many records are left until ``out`` is recorded: the first pass has all cases."""
    measured = [record for record in wanted.records if record.status.is_measured]
    timed = sum(not TIMINGS.isdisjoint(_measured_of(record)) for record in measured)
    left = [number for number in range(BASELINE_PROCESSES) if not _pass(out, number).exists()]
    return len(left) * timed + (len(wanted.records) - timed if 0 in left else 0)


def _pass(out: Path, number: int) -> Path:
    """Return the file that keeps a pass until all passes are done."""
    return out.with_name(f"{out.stem}.recording") / f"process{number + 1}.parquet"


def record_baseline(
    wanted: Results,
    out: Path,
    *,
    make_fleet: Callable[[], Fleet],
    command: str,
    on_record: Callable[[Record], None],
) -> Results:
    """Measure the cases of a run in as many processes as a baseline needs, and write it to ``out``.

    A recording that was interrupted is continued. Where ``out`` holds recordings of the same cases,
    commit and machine, this one is added to them.

    Args:
        wanted: the run whose cases are measured, each with the measurements that it holds.
        out: the baseline; another one there is replaced when everything is measured.
        make_fleet: starts a worker process.
        command: stored with the run.
        on_record: called with each record once it is on disk.

    Raises:
        NotMeasuredError: the run holds no case, or none could be measured.
        Refusal: an interrupted recording is of other cases, or of another commit.
        NotComparableError: the recording was begun on another machine.
        StoreError: a file cannot be read or written.
        HarnessError: the harness itself failed.
    """
    if not wanted.records:
        raise NotMeasuredError("the run holds no case to record a baseline of")
    folder = _pass(out, 0).parent
    planned = [Planned(record.case, _measured_of(record)) for record in wanted.records]
    passes: list[Results] = []
    for number in range(BASELINE_PROCESSES):
        path = _pass(out, number)
        if not path.exists():
            order = list(planned)
            Random(number).shuffle(order)
            session = Session(
                planned=tuple(order),
                sweep=_SWEEP,
                out=path,
                command=command,
                resume=True,
                began=monotonic(),
            )
            with make_fleet() as fleet:
                run_session(session, fleet, on_record)
        passes.append(read(path))
        if number == 0:
            first = passes[0].records
            if not any(record.status.is_measured for record in first):
                _discard(folder)
                raise NotMeasuredError(
                    f"no case could be measured, such as {first[0].case.id}: {first[0].reason}; "
                    "nothing was written"
                )
            planned = _timed(planned, passes[0])
            if not planned:
                break
    results = _joined(passes, wanted, out, folder)
    if out.exists():
        results = _added(read(out), results)
    write(results, out)
    _discard(folder)
    return results


def _discard(folder: Path) -> None:
    """Remove the passes of a recording, all at once: some would be taken for passes of the next."""
    done = folder.with_suffix(".recorded")
    with refusing(folder, "removed"):
        rmtree(done, ignore_errors=True)  # what a killed process has left
        folder.rename(done)
        rmtree(done)


def refuse_unacceptable(head: Results, baseline: Results | None) -> None:
    """Refuse a run that cannot replace a baseline.

    Raises:
        NotMeasuredError: no case of the run was measured.
        Refusal: the run was cut short, or it could not judge latencies that the baseline
            can judge.
    """
    if why := head.why_unfinished:
        raise Refusal(f"a run that was cut short cannot be a baseline: {why}; finish it first")
    if not any(record.status.is_measured for record in head.records):
        raise NotMeasuredError("no case of the run was measured, so it cannot be a baseline")
    timed = {record.case.id for record in head.records if record.latency is not None}
    judged = _well_timed(baseline) if baseline else set()
    lost = (judged & timed) - _well_timed(head)
    if lost:
        raise Refusal(
            f"the baseline timed {count(len(lost), 'case')} in {BASELINE_PROCESSES} processes or "
            "more, but the run in fewer, which are too few to judge latency by; make a new "
            "baseline with --record-baseline"
        )


def _measured_of(record: Record) -> tuple[Measurement, ...]:
    """Return what to measure of a case: what its record holds, or the default if it failed."""
    if not record.status.is_measured:
        return tuple(Grid().measure)
    return tuple(name for name in Measurement if getattr(record, name) is not None)


def _timed(planned: Sequence[Planned], first: Results) -> list[Planned]:
    """Return the measurements that differ between processes, of cases that the first pass ran."""
    measured = {record.case for record in first.records if record.status.is_measured}
    timed = [
        Planned(plan.case, tuple(one for one in plan.measurements if one in TIMINGS))
        for plan in planned
        if plan.case in measured
    ]
    return [plan for plan in timed if plan.measurements]


def _joined(passes: Sequence[Results], wanted: Results, out: Path, folder: Path) -> Results:
    """Return the records of all passes as one run."""
    runs = [results.runs[-1] for results in passes]
    origins = {(run.environment, run.git_commit, run.version) for run in runs}
    cases = {record.case for record in wanted.records}
    if len(origins) > 1 or cases != {record.case for record in passes[0].records}:
        raise Refusal(
            f"{folder}: its processes measured other cases, or on several commits or machines; "
            "delete it and record again"
        )
    parts = grouped((record.case, record) for results in passes for record in results.records)
    run = replace(
        runs[0],
        name=out.stem,
        planned=len(parts),
        wall_s=fsum(run.wall_s or 0.0 for run in runs),
        overhead_ratio=None,
    )
    return Results(
        records=tuple(condensed(merged_processes(parts[one.case])) for one in wanted.records),
        runs=(run,),
        environments=passes[0].environments,
    )


def _added(old: Results, new: Results) -> Results:
    """Return a baseline with one more recording, or this one alone if they are not alike."""
    if new.runs[0] in old.runs:  # killed before the passes were removed
        return old

    def what(results: Results) -> tuple[object, ...]:
        origins = {(run.environment, run.git_commit, run.version) for run in results.runs}
        return origins, {record.case for record in results.records}

    latencies = [record.latency for record in old.records if record.latency is not None]
    is_accepted_run = any(latency.processes % BASELINE_PROCESSES for latency in latencies)
    if is_accepted_run or what(old) != what(new):
        return new
    before = {record.case: record for record in old.records}
    records = tuple(merged([before[record.case], record], _MERGING) for record in new.records)
    return replace(new, records=records, runs=(*old.runs, *new.runs))


def merged_processes(parts: Sequence[Record]) -> Record:
    """Merge the records of one case.

    The warning that it is noisy is kept only if more than half of the processes had it, because a
    disturbance of fewer moves no median.
    """
    joined = merged(parts, _MERGING)
    disturbed = sum(
        any(warning.kind is WarningKind.NOISY for warning in part.warnings) for part in parts
    )
    if 2 * disturbed > len(parts):
        return joined
    kept = tuple(warning for warning in joined.warnings if warning.kind is not WarningKind.NOISY)
    return replace(joined, warnings=kept)


def condensed(record: Record) -> Record:
    """Return a record with one sample per epoch: the value that is compared."""

    def short(timing: Latency | None) -> Latency | None:
        if timing is None:
            return None
        mean = timing.uneven_ratio is not None
        arms = tuple(
            replace(
                arm,
                wall_s=tuple(epoch_values(arm, cpu=False, mean=mean)),
                cpu_s=arm.cpu_s and tuple(epoch_values(arm, cpu=True, mean=mean)),
                epochs=tuple(sorted(set(arm.epochs))),
            )
            for arm in timing.arms
        )
        return replace(timing, arms=arms)

    return replace(record, latency=short(record.latency), cold=short(record.cold))


def _well_timed(results: Results) -> set[str]:
    """Return the ids of the cases that were timed in enough processes for a baseline."""
    return {
        record.case.id
        for record in results.records
        if record.latency is not None and record.latency.processes >= BASELINE_PROCESSES
    }


# --- suspects ------------------------------------------------------------------------------------


def confirm_here(
    head: Results, make_fleet: Callable[[], Fleet], say: Callable[[str], None]
) -> Confirm:
    """Return a function that times suspects again, if this machine measured the run ``head``.

    The other arguments are passed to ``time_again``.
    """

    def confirm(suspects: Sequence[Shift]) -> Mapping[str, Sequence[float]] | str:
        cases = {shift.case for shift in suspects}
        environments = {record.environment for record in head.records if record.case in cases}

        def why_not(here: Environment) -> str | None:
            if environments != {here.fingerprint}:
                return "the run was measured on another machine, or with other software"
            run = head.runs[-1] if head.runs else None
            if run is None or run.git_commit is None or here.git_commit is None:
                return None
            if run.git_commit != here.git_commit:
                is_out = f"{here.git_commit[:12]} is checked out"
                return f"the run was of commit {run.git_commit[:12]}, but {is_out}"
            if run.git_dirty and not here.git_dirty:
                return f"the run was of changes to commit {run.git_commit[:12]} that are gone"
            return None

        def job(case: Case, process: int) -> Job:
            return Job(case, (Measurement.LATENCY,), CONFIRMING)

        return time_again(suspects, job, make_fleet, say, Sweep().timeout_s, why_not=why_not)

    return confirm


def time_again(
    suspects: Sequence[Shift],
    job: Callable[[Case, int], Job],
    make_fleet: Callable[[], Fleet],
    say: Callable[[str], None],
    timeout_s: float,
    *,
    why_not: Callable[[Environment], str | None] = lambda here: None,
) -> dict[str, list[float]] | str:
    """Return the ratio of each case in each fresh process, or why there are none.

    A process ends before the next one starts, and each times the cases in another order, so that
    the ratios include what differs between processes and between minutes. A refuted case is not
    timed again.

    Args:
        suspects: what was found at first sight.
        job: returns what a process, counted from 1, is asked to time.
        make_fleet: starts a worker process.
        say: called with each line of progress.
        timeout_s: for one case in one process.
        why_not: called with the environment of each process; returns why it cannot confirm, or
            None.
    """
    left = list(suspects)
    ratios: dict[str, list[float]] = {shift.case.id: [] for shift in suspects}
    for number in range(1, CONFIRMING_PROCESSES + 1):
        if not left:
            break
        with make_fleet() as fleet:
            if why := why_not(fleet.info.environment):
                return f"it cannot be confirmed here: {why}"
            cases = count(len(left), "suspect")
            say(f"timing {cases} again, process {number} of at most {CONFIRMING_PROCESSES}")
            Random(number).shuffle(left)
            jobs = [job(shift.case, number) for shift in left]
            for record in fleet.run(jobs, timeout_s):
                ratios[record.case.id] += process_ratios(record.latency)
        left = [shift for shift in left if not shift.is_refuted(ratios[shift.case.id])]
    return ratios
