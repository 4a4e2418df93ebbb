"""Which case runs in which environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fake_device import LocalFleet

from harness.cases import Planned
from harness.records import Budget, Case, Environment, Gpu, Measurement
from harness.run.plan import JobQueue, missing_jobs
from harness.run.worker import Job, WorkerInfo

GPU = Gpu(name="X", uuid="1", memory_bytes=1, power_limit_w=None, compute_capability="9.0")
CASES = [
    Case(implementation=name, shape=(rows, 8)) for rows in (1, 2) for name in ("native", "two_pass")
]


def node(**changes: object) -> WorkerInfo:
    info = LocalFleet().info
    return replace(info, environment=replace(info.environment, **changes))  # type: ignore[arg-type]


def name(node: WorkerInfo) -> str:
    return node.environment.fingerprint


HERE, SAME_KIND, OTHER = node(gpus=(GPU,)), node(gpus=(replace(GPU, uuid="2"),)), node(cpu="Other")
NODES = (HERE, SAME_KIND, OTHER)


def jobs(
    nodes: Sequence[WorkerInfo] = NODES,
    earlier: tuple[Case, Environment] | None = None,
    cases: Sequence[Case] = CASES,
    *,
    per_environment: bool = False,
) -> list[Job]:
    planned = [Planned(case, (Measurement.ERRORS,)) for case in cases]
    environments = {earlier[1].fingerprint: earlier[1]} if earlier else {}
    return missing_jobs(
        planned,
        Budget(),
        nodes,
        [(earlier[0], *environments)] if earlier else [],
        environments,
        per_environment=per_environment,
    )


def test_a_kind_leaves_out_the_serial_numbers_of_gpus() -> None:
    assert name(HERE) != name(SAME_KIND)
    assert HERE.environment.kind == SAME_KIND.environment.kind != OTHER.environment.kind


def test_each_case_runs_once_anywhere() -> None:
    found = jobs()
    assert [each.case for each in found] == CASES
    assert {each.environments for each in found} == {frozenset(map(name, NODES))}


def test_each_case_runs_once_per_kind() -> None:
    found = jobs(per_environment=True)
    assert [each.case for each in found] == CASES * 2
    assert [each.environments for each in found[::4]] == [
        {name(HERE), name(SAME_KIND)},
        {name(OTHER)},
    ]


def test_a_kind_without_the_device_of_a_case_does_not_run_it() -> None:
    with_gpu = replace(OTHER, device_counts={"cpu": 1, "cuda": 1})
    case = replace(CASES[0], device="cuda")
    (found,) = jobs((HERE, with_gpu), cases=[case], per_environment=True)
    assert found.environments == {name(OTHER)}


def test_a_finished_case_is_left_out_in_its_kind_only() -> None:
    earlier = CASES[0], SAME_KIND.environment
    assert [each.case for each in jobs(earlier=earlier)] == CASES[1:]
    found = jobs(earlier=earlier, per_environment=True)
    assert [each.case for each in found] == [*CASES[1:], *CASES]


def test_a_scenario_that_was_begun_is_continued_in_its_environment() -> None:
    found = jobs(earlier=(CASES[0], OTHER.environment))
    assert [each.environments == {name(OTHER)} for each in found] == [True, False, False]


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
    placement.give_back(job, name(HERE))
    assert placement.take(name(HERE)) is job
    placement.give_back(job, name(HERE))
    placement.leave(name(HERE))
    assert placement.take(name(OTHER)) is job
    assert len(placement) == 3
