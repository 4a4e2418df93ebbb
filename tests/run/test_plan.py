"""Which case runs in which environment."""

from __future__ import annotations

from dataclasses import replace

from factories.fake_device import LocalFleet

from harness.cases import Planned
from harness.records import Budget, Case, Measurement
from harness.run.fleet import Job, WorkerInfo
from harness.run.session import JobQueue, missing_jobs

CASES = [
    Case(implementation=name, shape=(rows, 8)) for rows in (1, 2) for name in ("native", "two_pass")
]


def node(**changes: object) -> WorkerInfo:
    info = LocalFleet().info
    return replace(info, environment=replace(info.environment, **changes))  # type: ignore[arg-type]


def name(node: WorkerInfo) -> str:
    return node.environment.fingerprint


HERE, OTHER = node(), node(cpu="Other")


def jobs(earlier: tuple[Case, str] | None = None) -> list[Job]:
    planned = [Planned(case, (Measurement.ERRORS,)) for case in CASES]
    return missing_jobs(planned, Budget(), (HERE, OTHER), [earlier] if earlier else [])


def test_each_case_runs_once_anywhere() -> None:
    assert [(job.case, job.environment) for job in jobs()] == [(case, None) for case in CASES]


def test_a_scenario_that_was_begun_is_continued_in_its_environment() -> None:
    found = jobs(earlier=(CASES[0], name(OTHER)))
    assert [job.case for job in found] == CASES[1:]
    assert [job.environment for job in found] == [name(OTHER), None, None]


def test_the_cases_of_a_scenario_go_to_one_environment() -> None:
    placement = JobQueue(jobs())
    first, other, second = (placement.take(name(each)) for each in (HERE, OTHER, HERE))
    assert first
    assert second
    assert other
    assert [first.case, second.case, other.case] == [CASES[0], CASES[1], CASES[2]]
    assert placement.take(name(HERE)) is None  # the last case belongs to the other
    assert len(placement) == 1


def test_a_case_of_a_node_that_died_comes_next_there_or_else_elsewhere() -> None:
    placement = JobQueue(jobs())
    job = placement.take(name(HERE))
    assert job
    placement.give_back(job)
    assert placement.take(name(HERE)) is job
    placement.give_back(job)
    placement.leave(name(HERE))
    assert placement.take(name(OTHER)) is job
    assert len(placement) == 3
