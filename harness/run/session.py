"""Run a whole sweep to a results file: measure the missing cases, journal, store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from harness.records import (
    Budget,
    Case,
    Environment,
    MeasurementWarning,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.records.refusal import Refusal
from harness.run.instructions import count_instructions
from harness.run.kept import KeptRecords
from harness.run.machines import Machines
from harness.run.outcome import SessionOutcome, in_brief
from harness.run.placement import missing_jobs
from harness.store import Journal, Results, ResultsWriter
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
    kept = KeptRecords(session.out, journal, session.planned)
    here = {each.environment.fingerprint: each.environment for each in fleet.nodes}
    if kept.environments and not here.keys() & kept.environments.keys():
        raise ForeignRunError(
            f"{session.out} was begun on another machine or with other software, so its latencies "
            "and new ones would not be comparable; choose another --out"
        )
    earlier, sweep = len(kept.measured), session.sweep
    missing = missing_jobs(
        session.planned,
        _budget(sweep),
        fleet.nodes,
        kept.measured,
        kept.environments,
        per_environment=session.per_environment,
    )
    run = _begun(session, [*here.values()])
    kept.begin(run, here.values())
    on_start(len(missing))
    fresh, to_count = _Fresh(), list[Case]()
    for record in fleet.run(missing, sweep.timeout_s, session.stop_at):
        kept.add(record)
        fresh.add(record)
        if session.instructions and record.status.is_measured:
            to_count.append(record.case)
        on_record(record)
    left = len(missing) - fresh.count
    counts: dict[Case, int | str] = {}
    if session.instructions and not left:
        counts = dict(count_instructions(to_count, sweep.timeout_s))
    results = Results(
        records=(),
        runs=(*kept.runs, fresh.finished(run, session.began)),
        environments={**kept.environments, **here},
    )
    records = (_counted(record, counts.get(record.case)) for record in kept.in_order())
    shown = in_brief(records if left else _written(records, results, session.out))
    if not left:
        session.journal.unlink()
    return SessionOutcome(
        results=replace(results, records=shown),
        path=session.journal if left else session.out,
        left=left,
        run=results.runs[-1],
        earlier=earlier,
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


def _budget(sweep: Sweep) -> Budget:
    return Budget(
        limit_s=sweep.seconds_per_case,
        max_epochs=sweep.max_epochs,
        min_epochs=min(sweep.min_epochs, sweep.max_epochs),
        processes=sweep.processes,
    )


def _counted(record: Record, counted: int | str | None) -> Record:
    """Add to a record the instructions of a call, or a warning that says why there are none."""
    if counted is None:
        return record
    if isinstance(counted, int):
        return replace(record, instructions=counted)
    warning = MeasurementWarning(kind=WarningKind.NOT_COUNTED, advice=counted)
    return replace(record, warnings=(*record.warnings, warning))


def _written(records: Iterable[Record], results: Results, out: Path) -> Iterator[Record]:
    """Yield records that are being written to a results file, which exists after the last."""
    with ResultsWriter(out, results.runs, results.environments) as writer:
        for record in records:
            writer.add(record)
            yield record


class _Fresh:
    """What is kept in memory of the records that an invocation has made."""

    def __init__(self) -> None:
        self.count = 0
        self._useful_s: float | None = None
        self._last = monotonic()
        self._has_ended_process = False

    def add(self, record: Record) -> None:
        self.count += 1
        if record.cost is not None:
            cost = record.cost
            useful_s = cost.implementation_s + cost.oracle_s + cost.sampling_s
            now, last = monotonic(), self._last
            # of cases that run at the same time, no second counts twice
            self._useful_s = (self._useful_s or 0.0) + min(useful_s, now - last)
            self._last = now
        # how long an ended process had spent in its case is unknown
        self._has_ended_process |= record.status in {Status.TIMEOUT, Status.CRASHED}

    def finished(self, run: Run, began: float) -> Run:
        """Add to a run how long it took, and the share of that time that was overhead."""
        wall_s = monotonic() - began
        overhead = None
        if self._useful_s is not None and not self._has_ended_process:
            overhead = max(1 - self._useful_s / wall_s, 0.0)
        return replace(run, wall_s=wall_s, overhead_ratio=overhead)
