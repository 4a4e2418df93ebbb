"""A whole sweep to a results file: plan, measure what is missing, journal, compact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from harness.run.fleet import Fleet
from harness.run.instructions import count_instructions
from harness.run.messages import RunCase, WorkerInfo
from harness.store import Journal, Results, prepare, read, read_journal, write
from harness.sweep import EVERY, PEERS, Planned, Sweep, SweepError, expand, in_shard, mistake_lines

__all__ = [
    "ForeignRunError",
    "OutputExistsError",
    "Session",
    "SessionOutcome",
    "cases_of",
    "plan",
    "run_session",
]


class OutputExistsError(Refusal):
    """The results file is there already, and was not asked to be continued."""


class ForeignRunError(Refusal):
    """The run to be continued was begun on another machine or with other software."""

    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What to run and where to put it."""

    planned: tuple[Planned, ...]
    sweep: Sweep
    out: Path
    """The parquet file; the journal lies beside it while the run lasts."""
    command: str
    """For the record of the run."""
    resume: bool = False
    began: float
    """When the program started, by the monotonic clock: what it has cost so far counts too."""
    instructions: bool = False
    """Whether instructions are counted, in the end and all in one process."""
    stop_at: float = float("inf")
    """No further case starts after this, by the same clock."""

    @property
    def journal(self) -> Path:
        return self.out.with_suffix(".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcome:
    """What came of a session."""

    results: Results
    path: Path
    """The parquet file; the journal if cases are left."""
    left: int
    """Cases that were not started, because the time budget was spent."""
    run: Run
    earlier: int = 0
    """Cases that had been measured before this run continued."""

    @property
    def measured(self) -> int:
        return sum(each.status.is_measured for each in self.results.records)

    @property
    def failed(self) -> int:
        """Cases that should have run and did not."""
        return sum(each.status.is_failure for each in self.results.records)


def plan(sweep: Sweep, fleet: Fleet, shard: tuple[int, int] | None = None) -> tuple[Planned, ...]:
    """Return the cases of a sweep, given what exists on the machine of ``fleet``.

    Raises:
        SweepError: a name does not exist there.
    """
    prepare()  # while the worker still imports torch
    info = fleet.info
    places = {name: place for place, name in reversed([*sweep.written("implementations")])}
    unresolved = [
        (places[name], why)
        for name in sorted(places.keys() - {EVERY, PEERS})
        for why in fleet.unresolved([name])
    ]
    if unresolved:
        raise SweepError("\n".join(mistake_lines(unresolved)))
    planned = cases_of(sweep, info, info.implementations, info.peers)
    if shard is None:
        return planned
    return tuple(each for each in planned if in_shard(each.case, *shard))


def cases_of(
    sweep: Sweep,
    info: WorkerInfo,
    everything: Mapping[str, Collection[str]],
    peers: Mapping[str, Collection[str]],
) -> tuple[Planned, ...]:
    """Return the cases of a sweep on one machine.

    Args:
        sweep: its implementations must have been found before.
        info: what exists on the machine.
        everything: what "all" stands for, each with the kinds of device it is written for.
        peers: what "peers" stands for, likewise.

    Raises:
        SweepError: a name of another kind does not exist there.
    """
    devices = {
        kind: info.unavailable.get(kind) for kind in (*info.device_counts, *info.unavailable)
    }
    return expand(
        sweep,
        implementations=everything,
        distributions=info.distributions,
        layouts=info.layouts,
        grad_outputs=info.grad_outputs,
        parameters=info.parameters,
        devices=devices,
        peers=peers,
    )


def run_session(
    session: Session,
    fleet: Fleet,
    on_record: Callable[[Record], None],
    on_start: Callable[[int], None] = lambda missing: None,
) -> SessionOutcome:
    """Measure every case that is not in the journal yet, and compact it to parquet.

    ``on_start`` is told how many are to be measured. Each record is on disk before ``on_record``
    hears of it. When cases are left, or this is
    interrupted, the journal stays and the run can be resumed.

    Raises:
        OutputExistsError: see there.
        ForeignRunError: see there.
        StoreError: a file cannot be read or written.
        HarnessError: the harness itself failed.
    """
    _refuse_what_is_there(session)
    with Journal(session.journal) as journal:  # none but this run writes there from here on
        try:
            return _run(session, fleet, journal, on_record, on_start)
        finally:
            journal.drop_if_empty()


def _run(
    session: Session,
    fleet: Fleet,
    journal: Journal,
    on_record: Callable[[Record], None],
    on_start: Callable[[int], None],
) -> SessionOutcome:
    earlier = _earlier(session)
    environment = fleet.info.environment
    if earlier.environments and environment.fingerprint not in earlier.environments:
        raise ForeignRunError(
            f"{session.out} was begun on another machine or with other software, so its latencies "
            "and new ones would not be comparable; choose another --out"
        )
    done = {each.case for each in earlier.records}
    missing = [each for each in session.planned if each.case not in done]
    run = Run(
        name=session.out.stem,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=session.command,
        planned=len(session.planned),
        version=version("layernorm-bench"),
        environment=environment.fingerprint,
        git_commit=environment.git_commit,
        git_dirty=environment.git_dirty,
    )
    fresh: list[Record] = []
    if not _holds_anything(session.journal):  # of a finished run only the parquet is left
        kept: list[Run | Environment | Record] = [*earlier.runs, *earlier.environments.values()]
        for entry in (*kept, *earlier.records):
            journal.add(entry)
    journal.add(run)
    journal.add(environment)
    on_start(len(missing))
    for record in _measure(session, fleet, missing):
        journal.add(record)
        fresh.append(record)
        on_record(record)
    left, before = len(missing) - len(fresh), len(earlier.records)
    if session.instructions and not left:
        fresh = list(_counted(fresh, session.sweep.timeout_s))
    run = _finished(run, session, fresh)
    order = {each.case: place for place, each in enumerate(session.planned)}
    records = sorted((*earlier.records, *fresh), key=lambda each: order.get(each.case, -1))
    results = Results(
        records=tuple(records),
        runs=(*earlier.runs, run),
        environments={**earlier.environments, environment.fingerprint: environment},
    )
    if left:
        return SessionOutcome(
            results=results, path=session.journal, left=left, run=run, earlier=before
        )
    write(results, session.out)
    session.journal.unlink()
    return SessionOutcome(results=results, path=session.out, left=0, run=run, earlier=before)


def _refuse_what_is_there(session: Session) -> None:
    if session.out.is_dir():
        raise OutputExistsError(f"{session.out} is a folder; choose another --out")
    for path in () if session.resume else (session.out, session.journal):
        if path.exists():
            raise OutputExistsError(
                f"{path} exists; continue it with --resume, or choose another --out"
            )


def _earlier(session: Session) -> Results:
    """Return what an interrupted or finished run of this name has measured."""
    if _holds_anything(session.journal):
        return read_journal(session.journal)
    if session.out.exists():
        return read(session.out)
    return Results(records=(), runs=(), environments={})


def _holds_anything(journal: Path) -> bool:
    return journal.exists() and journal.stat().st_size > 0


def _measure(session: Session, fleet: Fleet, missing: Sequence[Planned]) -> Iterator[Record]:
    sweep = session.sweep
    budget = Budget(
        limit_s=sweep.seconds_per_case,
        max_epochs=sweep.max_epochs,
        min_epochs=min(sweep.min_epochs, sweep.max_epochs),
        processes=sweep.processes,
    )
    jobs = [RunCase(each.case, each.measurements, budget) for each in missing]
    yield from fleet.run(jobs, sweep.timeout_s, session.stop_at)


def _counted(records: Sequence[Record], timeout_s: float) -> Iterator[Record]:
    """Add to each record the instructions of its call, or a measurement warning that says why there are none."""
    measured = [each.case for each in records if each.status.is_measured]
    found = dict(count_instructions(measured, timeout_s))
    for record in records:
        counted = found.get(record.case)
        if isinstance(counted, int):
            yield replace(record, instructions=counted)
        elif counted is None:
            yield record
        else:
            warning = MeasurementWarning(kind=WarningKind.NOT_COUNTED, advice=counted)
            yield replace(record, warnings=(*record.warnings, warning))


def _finished(run: Run, session: Session, fresh: Sequence[Record]) -> Run:
    """Add to a run what it cost, and which share of that was the harness's own."""
    wall_s = monotonic() - session.began
    costs = [each.cost for each in fresh if each.cost is not None]
    useful_s = sum(each.implementation_s + each.oracle_s + each.sampling_s for each in costs)
    ended = any(each.status in {Status.TIMEOUT, Status.CRASHED} for each in fresh)
    # what a process that was ended had spent on its case is unknown, and so is the share
    overhead = None if ended or not costs else max(1 - useful_s / wall_s, 0.0)
    return replace(run, wall_s=wall_s, overhead_ratio=overhead)
