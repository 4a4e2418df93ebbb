"""Which cases a run has on its machines, and which machine runs which case.

Latencies are compared only between equal environments. The cases of a scenario, which differ in
implementation and mode only, therefore run in one environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from harness.cases import EVERY, PEERS, Planned, Sweep, SweepError, expand, in_shard, mistake_lines
from harness.records import Budget, Case, Mode, Record
from harness.run.worker import Job, WorkerInfo
from harness.store import prepare


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
        SweepError: a name does not exist there.
    """
    prepare()  # while the worker still imports torch
    info = fleet.info
    refuse_unresolved(sweep, lambda name: fleet.unresolved([name]))
    planned = cases_on(sweep, info)
    if shard is None:
        return planned
    return tuple(row for row in planned if in_shard(row.case, *shard))


def refuse_unresolved(sweep: Sweep, unresolved: Callable[[str], Iterable[str]]) -> None:
    """Refuse a sweep if ``unresolved`` returns why one of its implementations cannot be found.

    Raises:
        SweepError: names each of them, and where it is written.
    """
    where = {name: written for written, name in reversed([*sweep.written("implementations")])}
    names = sorted(where.keys() - {EVERY, PEERS})
    if mistakes := [(where[name], why) for name in names for why in unresolved(name)]:
        raise SweepError("\n".join(mistake_lines(mistakes)))


def cases_on(sweep: Sweep, info: WorkerInfo) -> tuple[Planned, ...]:
    """Return the cases of a sweep, whose implementations have been found, on one machine.

    Raises:
        SweepError: another name of the sweep does not exist on the machine.
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
