"""Run a whole sweep to a results file: measure the missing cases, journal, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from harness.records import (
    Budget,
    Environment,
    MeasurementWarning,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.records.refusal import Refusal
from harness.run.instructions import count_instructions
from harness.run.machines import Machines
from harness.run.outcome import SessionOutcome
from harness.run.placement import missing_jobs
from harness.store import Journal, Results, read, read_journal, write
from harness.sweep import Planned, Sweep

__all__ = [
    "ForeignRunError",
    "OutputExistsError",
    "Session",
    "run_session",
]


class OutputExistsError(Refusal):
    """The results file exists, and the run was not asked to continue it."""


class ForeignRunError(Refusal):
    """The run to continue was begun on another machine or with other software."""

    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What to run and where to put it."""

    planned: tuple[Planned, ...]
    sweep: Sweep
    out: Path
    """The parquet file; the journal lies beside it while the run lasts."""
    command: str
    """Stored with the run."""
    resume: bool = False
    began: float
    """When the program started, by the monotonic clock: its start-up is part of the cost."""
    instructions: bool = False
    """Whether instructions are counted, after everything else and in one process."""
    stop_at: float = float("inf")
    """No further case starts after this, by the same clock."""
    per_environment: bool = False
    """Whether each case runs once per kind of environment, instead of once."""

    @property
    def journal(self) -> Path:
        return self.out.with_suffix(".jsonl")


def run_session(
    session: Session,
    fleet: Machines,
    on_record: Callable[[Record], None],
    on_start: Callable[[int], None] = lambda missing: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> SessionOutcome:
    """Measure every case that is not in the journal yet, and store the journal as parquet.

    If cases are left, or this is interrupted, the journal stays and the run can be continued.

    Args:
        session: what to run.
        fleet: runs the cases.
        on_record: called with each record once it is on disk.
        on_start: called with the number of cases to measure.
        on_note: called with what the user must know, in one line.

    Raises:
        OutputExistsError: the results file exists, and the session does not continue it.
        ForeignRunError: the run was begun on another machine or with other software.
        StoreError: a file cannot be read or written.
        HarnessError: the harness itself failed.
    """
    _refuse_existing_output(session)
    with Journal(session.journal) as journal:  # locks out other runs
        if journal.note:
            on_note(journal.note)
        try:
            return _run(session, fleet, journal, on_record, on_start)
        finally:
            journal.drop_if_empty()


def _run(
    session: Session,
    fleet: Machines,
    journal: Journal,
    on_record: Callable[[Record], None],
    on_start: Callable[[int], None],
) -> SessionOutcome:
    earlier = _earlier(session)
    here = {each.environment.fingerprint: each.environment for each in fleet.nodes}
    if earlier.environments and not here.keys() & earlier.environments.keys():
        raise ForeignRunError(
            f"{session.out} was begun on another machine or with other software, so its latencies "
            "and new ones would not be comparable; choose another --out"
        )
    sweep = session.sweep
    missing = missing_jobs(
        session.planned,
        _budget(sweep),
        fleet.nodes,
        earlier,
        per_environment=session.per_environment,
    )
    run = _begun(session, [*here.values()])
    fresh: list[Record] = []
    if not _holds_anything(session.journal):  # a finished run has left the parquet file only
        kept: list[Run | Environment | Record] = [*earlier.runs, *earlier.environments.values()]
        for entry in (*kept, *earlier.records):
            journal.add(entry)
    journal.add(run)
    for environment in here.values():
        journal.add(environment)
    on_start(len(missing))
    for record in fleet.run(missing, sweep.timeout_s, session.stop_at):
        journal.add(record)
        fresh.append(record)
        on_record(record)
    left = len(missing) - len(fresh)
    if session.instructions and not left:
        fresh = list(_counted(fresh, sweep.timeout_s))
    run = _finished(run, session, fresh)
    order = {each.case: place for place, each in enumerate(session.planned)}
    records = sorted((*earlier.records, *fresh), key=lambda each: order.get(each.case, -1))
    results = Results(
        records=tuple(records),
        runs=(*earlier.runs, run),
        environments={**earlier.environments, **here},
    )
    if not left:
        write(results, session.out)
        session.journal.unlink()
    return SessionOutcome(
        results=results,
        path=session.journal if left else session.out,
        left=left,
        run=run,
        earlier=len(earlier.records),
    )


def _begun(session: Session, environments: Sequence[Environment]) -> Run:
    first = environments[0]  # all have the same version of the program
    return Run(
        name=session.out.stem,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=session.command,
        planned=len(session.planned),
        version=version("layernorm-bench"),
        environment=first.fingerprint if len(environments) == 1 else None,
        git_commit=first.git_commit,
        git_dirty=first.git_dirty,
    )


def _refuse_existing_output(session: Session) -> None:
    if session.out.is_dir():
        raise OutputExistsError(f"{session.out} is a folder; choose another --out")
    for path in () if session.resume else (session.out, session.journal):
        if path.exists():
            raise OutputExistsError(
                f"{path} exists; continue it with --resume, or choose another --out"
            )


def _earlier(session: Session) -> Results:
    """Return what an interrupted or finished run has stored in these files.

    Both may exist, and neither hold everything: a finished run was being continued.
    """
    nothing = Results(records=(), runs=(), environments={})
    journal = read_journal(session.journal) if _holds_anything(session.journal) else nothing
    stored = read(session.out) if session.out.exists() else nothing
    if not (journal.runs and stored.runs):
        return journal if journal.runs else stored
    records = {(record.case, record.environment): record for record in stored.records}
    records |= {(record.case, record.environment): record for record in journal.records}
    ended = [replace(run, wall_s=None, overhead_ratio=None) for run in stored.runs]
    begun = [replace(run, wall_s=None, overhead_ratio=None) for run in journal.runs]
    runs = [run for run, bare in zip(journal.runs, begun, strict=True) if bare not in ended]
    return Results(
        records=tuple(records.values()),
        runs=(*stored.runs, *runs),
        environments={**stored.environments, **journal.environments},
    )


def _holds_anything(journal: Path) -> bool:
    return journal.exists() and journal.stat().st_size > 0


def _budget(sweep: Sweep) -> Budget:
    return Budget(
        limit_s=sweep.seconds_per_case,
        max_epochs=sweep.max_epochs,
        min_epochs=min(sweep.min_epochs, sweep.max_epochs),
        processes=sweep.processes,
    )


def _counted(records: Sequence[Record], timeout_s: float) -> Iterator[Record]:
    """Add to each record the instructions of a call, or a warning that says why there are none."""
    measured = [each.case for each in records if each.status.is_measured]
    counts = dict(count_instructions(measured, timeout_s))
    for record in records:
        counted = counts.get(record.case)
        if isinstance(counted, int):
            yield replace(record, instructions=counted)
        elif counted is None:
            yield record
        else:
            warning = MeasurementWarning(kind=WarningKind.NOT_COUNTED, advice=counted)
            yield replace(record, warnings=(*record.warnings, warning))


def _finished(run: Run, session: Session, fresh: Sequence[Record]) -> Run:
    """Add to a run how long it took, and the share of that time that was overhead."""
    wall_s = monotonic() - session.began
    costs = [each.cost for each in fresh if each.cost is not None]
    useful_s = sum(each.implementation_s + each.oracle_s + each.sampling_s for each in costs)
    ended = any(each.status in {Status.TIMEOUT, Status.CRASHED} for each in fresh)
    # how long an ended process had spent in its case is unknown
    overhead = None if ended or not costs else max(1 - useful_s / wall_s, 0.0)
    return replace(run, wall_s=wall_s, overhead_ratio=overhead)
