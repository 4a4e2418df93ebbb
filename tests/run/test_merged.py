"""Several processes and environments: records merged into one, and which case runs where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from factories.fake_device import CALL_S, FakeDevice, LocalFleet, latency_of, measure, payer

from harness.cases import Planned
from harness.measure.sample_statistics import epoch_values, median_estimate
from harness.records import (
    Budget,
    Case,
    Clock,
    Cost,
    Latency,
    Measurement,
    MeasurementWarning,
    Memory,
    Record,
    Status,
    WarningKind,
)
from harness.run.fleet import Job, WorkerInfo, merged
from harness.run.session import JobQueue, missing_jobs

CASE = Case(implementation="native", shape=(4, 8))
BUDGET = Budget(target_ratio=0.01)
FOUR = Budget(min_epochs=4, max_epochs=4, limit_s=1e9)


def latency(factor: float = 1.0, **changes: Any) -> Latency:
    """Return the latency of a subject that takes ``factor`` times as long as its reference."""
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    return replace(latency_of(measure(device, budget=FOUR)), **changes)


def record(status: Status = Status.OK, **changes: Any) -> Record:
    return Record(case=CASE, environment="here", status=status, **changes)


def timed(*factors: float, **changes: Any) -> list[Record]:
    return [record(latency=latency(factor), **changes) for factor in factors]


def warning(kind: WarningKind, advice: str = "") -> MeasurementWarning:
    return MeasurementWarning(kind=kind, advice=advice)


def latency_in(found: Record) -> Latency:
    assert found.latency is not None
    return found.latency


def kinds(found: Record) -> list[WarningKind]:
    return [warning.kind for warning in found.warnings]


# --- samples and estimates -----------------------------------------------------------------------


def test_samples_are_concatenated_and_epochs_are_numbered_on() -> None:
    one, other = timed(1.0, 2.0)
    assert merged([one], BUDGET) is one
    found = latency_in(merged([one, record(), other], BUDGET))  # one process has no latency
    assert (found.processes, found.process_of_epoch) == (2, (0, 0, 0, 0, 1, 1, 1, 1))
    for first, second, both in zip(
        latency_in(one).arms, latency_in(other).arms, found.arms, strict=True
    ):
        assert (both.role, both.name) == (first.role, first.name)
        assert both.wall_s == first.wall_s + second.wall_s
        assert first.cpu_s is not None
        assert second.cpu_s is not None
        assert both.cpu_s == first.cpu_s + second.cpu_s
        assert both.epochs == first.epochs + tuple(4 + each for each in second.epochs)


@pytest.mark.parametrize("field", ["latency", "cold"])
def test_estimates_are_across_processes(field: str) -> None:
    records = [record(**{field: latency(factor)}) for factor in (1.0, 1.1, 1.3)]
    found = getattr(merged(records, BUDGET), field)
    assert found.processes == 3
    assert found.reference_ratio is not None
    expected = median_estimate([1.0, 1.1, 1.3])
    assert found.reference_ratio.value == pytest.approx(expected.value)
    assert found.reference_ratio.low == pytest.approx(expected.low)
    assert found.per_call_s.value == pytest.approx(2.2e-6)


def test_processes_that_disagree_have_a_wide_interval() -> None:
    records = timed(1.0, 1.1, 1.3)
    assert all(latency_in(record).converged for record in records)
    assert not latency_in(merged(records, BUDGET)).converged
    assert latency_in(merged(timed(*[1.2] * 5), BUDGET)).converged


def test_latencies_without_a_reference_or_cpu_times_are_merged() -> None:
    alone = latency_of(measure(FakeDevice(clock=Clock.CUDA_EVENT), ("subject",), budget=FOUR))
    found = latency_in(merged([record(latency=alone)] * 5, BUDGET))
    assert found.reference_ratio is None
    assert found.converged
    assert all(arm.cpu_s is None for arm in found.arms)
    assert epoch_values(found.arms[0], cpu=False) == pytest.approx([3e-6] * 20)


@pytest.mark.parametrize(
    ("is_valid", "ceiling_ratio", "valid"),
    [((True, False), 0.5, False), ((True, True), 1.5, True)],
    ids=["work left over in one process", "valid in every process"],
)
def test_a_time_is_valid_if_it_is_so_in_every_process(
    is_valid: tuple[bool, ...], ceiling_ratio: float, valid: bool
) -> None:
    records = [
        record(latency=latency(is_valid=each, ceiling_ratio=ceiling_ratio)) for each in is_valid
    ]
    assert latency_in(merged(records, BUDGET)).is_valid is valid


@pytest.mark.parametrize(
    ("ceilings", "valid"), [((1.0, 1.1, 0.97, 0.95, 1.02), True), ((1.2, 1.21, 1.19, 1.2), False)]
)
def test_a_time_is_too_fast_if_it_is_so_across_processes(
    ceilings: tuple[float, ...], valid: bool
) -> None:
    too_fast = warning(WarningKind.FASTER_THAN_COPY)
    records = [
        record(
            latency=latency(ceiling_ratio=each, is_valid=each < 1.05),
            warnings=() if each < 1.05 else (too_fast,),
        )
        for each in ceilings
    ]
    found = merged(records, BUDGET)
    assert latency_in(found).is_valid is valid
    assert (WarningKind.FASTER_THAN_COPY in kinds(found)) is not valid


# --- how a case ended ----------------------------------------------------------------------------

WORSE = [
    (Status.OK, Status.OUT_OF_GUARANTEE),
    (Status.OK, Status.WRONG),
    (Status.OUT_OF_GUARANTEE, Status.WRONG),
    (Status.OK, Status.CRASHED),
    (Status.WRONG, Status.CRASHED),
    (Status.OK, Status.TIMEOUT),
    (Status.OK, Status.ERROR),
    (Status.OK, Status.OUT_OF_MEMORY),
]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("better", "worse"), WORSE)
def test_the_worst_status_of_any_process_decides(better: Status, worse: Status, place: int) -> None:
    records = [record(better)] * 3
    records[place] = record(worse, reason="what happened")
    assert merged(records, BUDGET) is records[place]


# --- warnings ------------------------------------------------------------------------------------


def test_a_warning_of_several_processes_is_kept_once() -> None:
    noisy, faults = warning(WarningKind.NOISY), warning(WarningKind.PAGE_FAULTS)
    records = [
        record(latency=latency(), warnings=(noisy,)),
        record(latency=latency(), warnings=(noisy, faults)),
    ]
    assert kinds(merged(records, Budget(target_ratio=1e9))) == [
        WarningKind.NOISY,
        WarningKind.PAGE_FAULTS,
    ]


def test_an_interval_that_is_narrow_across_processes_has_no_warning() -> None:
    wide = (warning(WarningKind.NOT_CONVERGED, "after 12 epochs"),)
    assert kinds(merged(timed(*[1.2] * 5, warnings=wide), BUDGET)) == []


@pytest.mark.parametrize("cold", [False, True])
def test_an_interval_that_is_wide_across_processes_has_a_warning(cold: bool) -> None:
    factors = (1.0, 1.1, 1.3)
    records = [record(cold=latency(factor)) for factor in factors] if cold else timed(*factors)
    (found,) = merged(records, BUDGET).warnings
    assert found.kind is WarningKind.NOT_CONVERGED
    assert "3 processes" in found.advice


# --- uneven calls --------------------------------------------------------------------------------


def test_calls_that_are_uneven_over_all_processes_are_merged_by_their_mean() -> None:
    paying = latency_of(measure(payer(4, 8 * CALL_S), budget=FOUR))
    found = merged([record(latency=paying)] * 5, BUDGET)
    joined = latency_in(found)
    assert joined.uneven_ratio == pytest.approx(3.0, rel=0.1)
    assert joined.reference_ratio is not None
    assert joined.reference_ratio.value == pytest.approx(3.0, rel=0.1)
    assert WarningKind.UNEVEN in kinds(found)


def test_calls_that_are_uneven_in_one_process_of_five_are_not_uneven() -> None:
    paying = latency_of(measure(payer(16, 16 * CALL_S), budget=BUDGET))
    assert paying.uneven_ratio is not None
    even = [record(latency=latency_of(measure(payer(1, 0.0)))) for _ in range(4)]
    found = merged([record(latency=paying, warnings=(warning(WarningKind.UNEVEN),)), *even], BUDGET)
    assert latency_in(found).uneven_ratio is None
    assert kinds(found) == []


# --- cost ----------------------------------------------------------------------------------------


def test_costs_are_added_and_memory_is_that_of_the_first_process() -> None:
    cost = Cost(total_s=10.0, implementation_s=4.0, oracle_s=3.0, sampling_s=2.0)
    less = Cost(total_s=1.0, implementation_s=0.5, oracle_s=0.0, sampling_s=0.25)
    memory = Memory(
        peak_extra_bytes=1, allocated_bytes=1, allocations=1, saved_bytes=None, minimum_bytes=1
    )
    found = merged([record(cost=cost, memory=memory), record(cost=less), record()], BUDGET)
    assert found.cost == Cost(total_s=11.0, implementation_s=4.5, oracle_s=3.0, sampling_s=2.25)
    assert found.memory == memory


# === Which case runs in which environment


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
