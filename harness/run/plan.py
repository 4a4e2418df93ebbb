"""Which cases a run has on its machines, and which machine runs which case.

Latencies are compared only between equal environments. The cases of a scenario, which differ in
implementation and mode only, therefore run in one environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from harness.cases import EVERY, PEERS, Planned, Sweep, SweepError, expand, in_shard, mistake_lines
from harness.records import Budget, Case, Environment, Mode, Record
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
    environments: Mapping[str, Environment],
    *,
    per_environment: bool,
) -> list[Job]:
    """Return the jobs that are left of a run, each with the environments that may run it.

    Args:
        planned: all cases of the run.
        budget: of each case.
        nodes: the machines, several of which may have the same environment.
        measured: cases that the run has measured already, each with its environment.
        environments: of these cases, by fingerprint.
        per_environment: whether each case runs once per kind of environment, instead of once.
    """
    here = {node.environment.fingerprint: node for node in nodes}
    known = {**environments, **{name: node.environment for name, node in here.items()}}
    kind_of = {
        name: environment.kind if per_environment else "" for name, environment in known.items()
    }
    done = {(case, kind_of.get(name)) for case, name in measured}
    # a scenario that was begun is continued in its environment
    begun = {
        (_scenario(case), kind_of[name]): frozenset({name})
        for case, name in (measured if len(here) > 1 else ())
        if name in here
    }
    jobs = []
    for kind in dict.fromkeys(kind_of[name] for name in here):
        own = {name: node for name, node in here.items() if kind_of[name] == kind}
        able = {
            device: frozenset(name for name, node in own.items() if device in node.device_counts)
            for device in {row.case.device for row in planned}
        }
        for row in planned:
            case = row.case
            where = able[case.device]
            if (case, kind) in done or (per_environment and not where):
                continue
            if begun:
                where = begun.get((_scenario(case), kind), where)
            jobs.append(Job(case, row.measurements, budget, environments=where))
    return jobs


def _scenario(case: Case) -> Case:
    """Return what cases have in common that are candidates for the same choice."""
    return replace(case, implementation="", mode=Mode.EAGER)


class JobQueue:
    """Jobs to hand out: the cases of one scenario go to machines of one environment."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        groups: dict[tuple[Case, frozenset[str]], deque[Job]] = {}
        for job in jobs:
            groups.setdefault((_scenario(job.case), job.environments), deque()).append(job)
        self._waiting: dict[frozenset[str], deque[deque[Job]]] = {}
        for (_, environments), group in groups.items():
            self._waiting.setdefault(environments, deque()).append(group)
        self._begun: dict[str, deque[Job]] = {}

    def __len__(self) -> int:
        """Return how many jobs have not been handed out."""
        waiting = (group for groups in self._waiting.values() for group in groups)
        return sum(map(len, (*self._begun.values(), *waiting)))

    def take(self, environment: str) -> Job | None:
        """Return the next job for a machine of an environment; None if there is none."""
        if not self._begun.get(environment):
            for environments, groups in self._waiting.items():
                if groups and environment in environments:
                    self._begun[environment] = groups.popleft()
                    break
            else:
                return None
        return self._begun[environment].popleft()

    def give_back(self, job: Job, environment: str) -> None:
        """Take back a job that a machine of an environment did not finish; it comes next there."""
        self._begun.setdefault(environment, deque()).appendleft(job)

    def leave(self, environment: str) -> None:
        """Let other environments have what was begun in one that has no machine any more."""
        rest = self._begun.pop(environment, None)
        if rest:
            self._waiting.setdefault(rest[0].environments, deque()).appendleft(rest)
