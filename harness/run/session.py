"""Run a whole sweep to a results file: measure the missing cases, journal, store.

The records stay on disk while the run lasts, in its journal and in the results file that it
continues, so that its memory does not grow with their samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Protocol

from harness.cases import EVERY, PEERS, Planned, Sweep, expand, in_shard
from harness.records import (
    Budget,
    Case,
    Environment,
    Measurement,
    MeasurementWarning,
    Mode,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.records.refusal import NotComparableError, Refusal, refusing
from harness.run.fleet import Job, WorkerInfo
from harness.run.instructions import count_instructions, unavailable
from harness.store import (
    Journal,
    Results,
    header_of,
    located_entries,
    prepare,
    read,
    read_journal,
    records_at,
    records_of,
    writing,
)


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
    stop_at: float = float("inf")
    """No further case starts after this, by the same clock."""

    @property
    def journal(self) -> Path:
        return self.out.with_suffix(".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcome:
    """The result of a session."""

    results: Results
    """Of a finished run without samples, which ``path`` holds."""
    path: Path
    """The parquet file, or the journal if cases are left."""
    left: int
    """Cases that were not started before the time budget was spent."""
    run: Run
    earlier: int = 0
    """Cases that were measured before the run was continued."""

    @property
    def measured(self) -> int:
        return sum(record.status.is_measured for record in self.results.records)

    @property
    def failed(self) -> int:
        """Cases that should have run and did not."""
        return sum(record.status.is_failure for record in self.results.records)


def run_session(
    session: Session,
    fleet: Machines,
    on_record: Callable[[Record], None],
    on_start: Callable[[int], None] = lambda missing: None,
    on_note: Callable[[str], None] = lambda note: None,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> SessionOutcome:
    """Measure every case that is not in the journal yet, and store the journal as parquet.

    If cases are left, or this is interrupted, the journal stays and the run can be continued.

    Args:
        session: what to run.
        fleet: runs the cases.
        on_record: called with each record once it is on disk.
        on_start: called with the number of cases to measure.
        on_note: called with what the user must know, in one line.
        on_count: called with the number of cases whose instructions are counted, and that of all
            to count, at the start and after each.

    Raises:
        Refusal: the results file exists, and the session does not continue it.
        NotComparableError: the run was begun on another machine or with other software.
        StoreError: a file cannot be read or written.
        HarnessError: the harness itself failed.
    """
    _refuse_existing_output(session)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(session.journal))  # locks out other runs
        stack.callback(journal.drop_if_empty)
        if journal.note:
            on_note(journal.note)
        kept = KeptRecords(session.out, journal, session.planned)
        here = {node.environment.fingerprint: node.environment for node in fleet.nodes}
        if kept.environments and not here.keys() & kept.environments.keys():
            raise NotComparableError(
                f"{session.out} was begun on another machine or with other software, so its "
                "latencies and new ones would not be comparable; choose another --out"
            )
        earlier, sweep = len(kept.measured), session.sweep
        budget = Budget(
            limit_s=sweep.seconds_per_case,
            max_epochs=sweep.max_epochs,
            min_epochs=min(sweep.min_epochs, sweep.max_epochs),
            processes=sweep.processes,
        )
        missing = missing_jobs(session.planned, budget, fleet.nodes, kept.measured)
        run = _begun(session, [*here.values()])
        kept.begin(run, here.values())
        on_start(len(missing))
        left, useful_s, has_ended_process = len(missing), 0.0, False
        for record in fleet.run(missing, sweep.timeout_s, session.stop_at):
            kept.add(record)
            left -= 1
            if cost := record.cost:
                useful_s += cost.implementation_s + cost.oracle_s + cost.sampling_s
            # how long an ended process had spent in its case is unknown
            has_ended_process |= record.status in {Status.TIMEOUT, Status.CRASHED}
            on_record(record)
        counts = {} if left else _counts(session, kept.in_order(), on_note, on_count)
        wall_s, overhead = monotonic() - session.began, None
        if useful_s and not has_ended_process:
            overhead = max(1 - useful_s / wall_s, 0.0)
        run = replace(run, wall_s=wall_s, overhead_ratio=overhead)
        if left:
            results = read_journal(session.journal)
        else:
            with writing(session.out, (*kept.runs, run), {**kept.environments, **here}) as writer:
                for record in kept.in_order():
                    writer.add(_counted(record, counts.get(record.case)))
            with refusing(session.journal, "removed"):
                session.journal.unlink()
            results = read(session.out, samples=False)
        return SessionOutcome(
            results=results,
            path=session.journal if left else session.out,
            left=left,
            run=run,
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
        raise Refusal(f"{session.out} is a folder; choose another --out")
    for path in () if session.resume else (session.out, session.journal):
        if path.exists():
            raise Refusal(f"{path} exists; continue it with --resume, or choose another --out")


def _counts(
    session: Session,
    records: Iterable[Record],
    on_note: Callable[[str], None],
    on_count: Callable[[int, int], None],
) -> dict[Case, int | str]:
    """Count the instructions of the cases that ask for it and have no count from before."""
    planned = {row.case for row in session.planned if Measurement.INSTRUCTIONS in row.measurements}
    cases = [
        record.case
        for record in (records if planned else ())  # to read them takes time
        if record.case in planned and record.status.is_measured and record.instructions is None
    ]
    if cases and (why := unavailable()):
        on_note(f"instructions are not counted: {why}")
        return {}
    counts: dict[Case, int | str] = {}
    if cases:
        on_count(0, len(cases))
        for case, counted in count_instructions(cases, session.sweep.timeout_s):
            counts[case] = counted
            on_count(len(counts), len(cases))
    return counts


def _counted(record: Record, counted: int | str | None) -> Record:
    """Add to a record the instructions of a call, or a warning that says why there are none."""
    if counted is None:
        return record
    if isinstance(counted, int):
        return replace(record, instructions=counted)
    warning = MeasurementWarning(kind=WarningKind.NOT_COUNTED, advice=counted)
    return replace(record, warnings=(*record.warnings, warning))


class KeptRecords:
    """Where in the journal of a run the record of each case and environment is."""

    def __init__(self, out: Path, journal: Journal, planned: Sequence[Planned]) -> None:
        """Look through the files of a run, and write nothing.

        Both files may hold records, and neither all of them: a finished run was being continued.

        Args:
            out: the results file; it need not exist.
            journal: of the run; it may be empty.
            planned: all cases of the run.

        Raises:
            StoreError: a file cannot be read.
        """
        self._out, self._journal = out, journal
        self._indices = {row.case: index for index, row in enumerate(planned)}
        self._offsets: dict[tuple[Case, str], int] = {}
        entries: list[Run | Environment] = []
        for offset, entry in located_entries(journal.path):
            if isinstance(entry, Record):
                self._offsets[entry.case, entry.environment] = offset
            else:
                entries.append(entry)
        self._in_journal = set(map(_identity, entries))
        self.measured: set[tuple[Case, str]] = {*self._offsets}
        """The cases that have a record, each with the environment that it was measured in."""
        if out.exists():
            header = header_of(out)
            stored = {*map(_identity, header.runs)}
            new = (entry for entry in entries if _identity(entry) not in stored)
            entries = [*header.runs, *header.environments.values(), *new]
            self.measured |= {(record.case, record.environment) for record in records_of(out)}
        self.runs = [entry for entry in entries if isinstance(entry, Run)]
        """The earlier invocations, in order."""
        self.environments = {
            entry.fingerprint: entry for entry in entries if isinstance(entry, Environment)
        }
        """Their environments, by fingerprint."""

    def begin(self, run: Run, environments: Iterable[Environment]) -> None:
        """Write to the journal what only the results file holds, and then the start of the run.

        Raises:
            StoreError: a file cannot be read or written.
        """
        earlier: list[Run | Environment] = [*self.runs, *self.environments.values()]
        for entry in earlier:
            if _identity(entry) not in self._in_journal:
                self._journal.add(entry)
        for record in records_of(self._out) if self._out.exists() else ():
            if (record.case, record.environment) not in self._offsets:
                self.add(record)
        self._journal.add(run)
        for environment in environments:
            self._journal.add(environment)

    def add(self, record: Record) -> None:
        """Append a record to the journal.

        Raises:
            StoreError: the disk is full, or the journal cannot be written any more.
        """
        self._offsets[record.case, record.environment] = self._journal.add(record)

    def in_order(self) -> Iterator[Record]:
        """Yield all records in the order of the plan; first those that are not planned any more.

        Raises:
            StoreError: the journal cannot be read.
        """
        keys = sorted(self._offsets, key=lambda key: self._indices.get(key[0], -1))
        return records_at(self._journal.path, (self._offsets[key] for key in keys))


def _identity(entry: Run | Environment) -> Run | str:
    """Return an entry without what the end of a run adds, to find it in the journal."""
    if isinstance(entry, Environment):
        return entry.fingerprint
    return replace(entry, wall_s=None, overhead_ratio=None)


# --- which cases a run has, and which machine runs which ---------------------------------------


class Machines(Protocol):
    """What runs the cases: one machine, or those of a Ray cluster."""

    @property
    def info(self) -> WorkerInfo:
        """What exists there; with several machines, on any of them."""

    @property
    def nodes(self) -> Sequence[WorkerInfo]:
        """What exists on each machine."""

    def unresolved(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Return why targets cannot be found: a message for each of those that cannot."""

    def run(self, jobs: Iterable[Job], timeout_s: float, stop_at: float) -> Iterator[Record]:
        """Yield a record for each job as it is done."""


def plan(
    sweep: Sweep, fleet: Machines, shard: tuple[int, int] | None = None
) -> tuple[Planned, ...]:
    """Return the cases of a sweep that a shard, or the whole run, has on the machines of ``fleet``.

    Raises:
        Refusal: a name does not exist there.
    """
    prepare()  # while the worker still imports torch
    info = fleet.info
    refuse_unresolved(sweep, lambda name: fleet.unresolved([name]))
    planned = cases_on(sweep, info)
    return tuple(row for row in planned if shard is None or in_shard(row.case, *shard))


def refuse_unresolved(sweep: Sweep, unresolved: Callable[[str], Iterable[str]]) -> None:
    """Refuse a sweep if ``unresolved`` returns why one of its implementations cannot be found.

    Raises:
        Refusal: names each of them, and where it is written.
    """
    names = sorted(sweep.values_of("implementations").keys() - {EVERY, PEERS})
    sweep.refuse(("implementations", why) for name in names for why in unresolved(name))


def cases_on(sweep: Sweep, info: WorkerInfo) -> tuple[Planned, ...]:
    """Return the cases of a sweep, whose implementations have been found, on one machine.

    Raises:
        Refusal: another name of the sweep does not exist on the machine.
    """
    return expand(
        sweep,
        implementations=info.implementations,
        names=info.names,
        devices={**dict.fromkeys(info.device_counts), **info.unavailable},
        peers=info.peers,
    )


def missing_jobs(
    planned: Sequence[Planned],
    budget: Budget,
    nodes: Sequence[WorkerInfo],
    measured: Collection[tuple[Case, str]],
) -> list[Job]:
    """Return the jobs that are left of a run.

    Args:
        planned: all cases of the run.
        budget: of each case.
        nodes: the machines, several of which may have the same environment.
        measured: cases that the run has measured already, each with its environment.
    """
    here = {node.environment.fingerprint for node in nodes}
    done = {case for case, _ in measured}
    begun: dict[Case, str] = {}  # a scenario that was begun is continued in its environment
    if len(here) > 1:
        begun = {_scenario(case): name for case, name in measured if name in here}
    return [
        Job(
            row.case,
            row.measurements,
            budget,
            environment=begun.get(_scenario(row.case)) if begun else None,
        )
        for row in planned
        if row.case not in done
    ]


def _scenario(case: Case) -> Case:
    """Return what cases have in common that are candidates for the same choice."""
    return replace(case, implementation="", mode=Mode.EAGER)


class JobQueue:
    """Jobs to hand out: the cases of one scenario go to machines of one environment."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)
        self._environments = {
            _scenario(job.case): job.environment for job in self._jobs if job.environment
        }

    def __len__(self) -> int:
        """Return how many jobs have not been handed out."""
        return len(self._jobs)

    def take(self, environment: str) -> Job | None:
        """Return the next job for a machine of an environment; None if there is none."""
        for job in self._jobs:
            if self._environments.setdefault(_scenario(job.case), environment) == environment:
                self._jobs.remove(job)
                return job
        return None

    def give_back(self, job: Job) -> None:
        """Take back a job that a machine did not finish; it comes next."""
        self._jobs.appendleft(job)

    def leave(self, environment: str) -> None:
        """Let other environments have what was begun in one that has no machine any more."""
        self._environments = {
            scenario: own for scenario, own in self._environments.items() if own != environment
        }
