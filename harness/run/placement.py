"""Which case runs in which environment, where there are several machines.

Latencies are compared only between equal environments. The cases of a scenario, which differ in
implementation and mode only, therefore run in one environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from harness.records import Budget, Case, Environment, Mode
from harness.run.messages import RunCase, WorkerInfo
from harness.sweep import Planned

__all__ = ["Placement", "missing_jobs"]


def missing_jobs(
    planned: Sequence[Planned],
    budget: Budget,
    nodes: Sequence[WorkerInfo],
    measured: Collection[tuple[Case, str]],
    environments: Mapping[str, Environment],
    *,
    per_environment: bool,
) -> list[RunCase]:
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
    kind_of = {name: each.kind if per_environment else "" for name, each in known.items()}
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
            for device in {each.case.device for each in planned}
        }
        for each in planned:
            case = each.case
            where = able[case.device]
            if (case, kind) in done or (per_environment and not where):
                continue
            if begun:
                where = begun.get((_scenario(case), kind), where)
            jobs.append(RunCase(case, each.measurements, budget, environments=where))
    return jobs


def _scenario(case: Case) -> Case:
    """Return what cases have in common that are candidates for the same choice."""
    return replace(case, implementation="", mode=Mode.EAGER)


class Placement:
    """Jobs to hand out: the cases of one scenario go to machines of one environment."""

    def __init__(self, jobs: Iterable[RunCase]) -> None:
        groups: dict[tuple[Case, frozenset[str]], deque[RunCase]] = {}
        for job in jobs:
            groups.setdefault((_scenario(job.case), job.environments), deque()).append(job)
        self._waiting: dict[frozenset[str], deque[deque[RunCase]]] = {}
        for (_, environments), group in groups.items():
            self._waiting.setdefault(environments, deque()).append(group)
        self._begun: dict[str, deque[RunCase]] = {}

    def __len__(self) -> int:
        """Return how many jobs have not been handed out."""
        groups = [
            *self._begun.values(),
            *(each for queue in self._waiting.values() for each in queue),
        ]
        return sum(map(len, groups))

    def take(self, environment: str) -> RunCase | None:
        """Return the next job for a machine of an environment; None if there is none."""
        if not self._begun.get(environment):
            for environments, groups in self._waiting.items():
                if groups and environment in environments:
                    self._begun[environment] = groups.popleft()
                    break
            else:
                return None
        return self._begun[environment].popleft()

    def give_back(self, job: RunCase, environment: str) -> None:
        """Take back a job that a machine of an environment did not finish; it comes next there."""
        self._begun.setdefault(environment, deque()).appendleft(job)

    def leave(self, environment: str) -> None:
        """Let other environments have what was begun in one that has no machine any more."""
        rest = self._begun.pop(environment, None)
        if rest:
            self._waiting.setdefault(rest[0].environments, deque()).appendleft(rest)
