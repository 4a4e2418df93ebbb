"""Several processes and environments: records merged into one, and which case runs where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from factories.fake_device import CALL_S, FakeDevice, LocalFleet, latency_of, measure, payer

from harness.cases import Planned
from harness.measure import median_estimate
from harness.records import (
    Budget,
    Case,
    Latency,
    Measurement,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.run import Job, JobQueue, is_enough, merged, missing_jobs

CASE = Case(implementation="native", shape=(4, 8))
BUDGET = Budget(target_ratio=0.01)
FOUR = Budget(min_epochs=4, max_epochs=4, limit_s=1e9)
AGREE, DISAGREE = (1.2,) * 7, (1.0, 1.1, 1.3, 1.1, 1.1, 1.1, 1.1)


def latency(factor: float = 1.0, **changes: Any) -> Latency:
    """Return the latency of a subject that takes ``factor`` times as long as its reference."""
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    return replace(latency_of(measure(device, budget=FOUR)), **changes)


def record(status: Status = Status.OK, *warnings: WarningKind, **changes: Any) -> Record:
    given = tuple(MeasurementWarning(kind=kind, advice="") for kind in warnings)
    return Record(case=CASE, environment="here", status=status, warnings=given, **changes)


def timed(*factors: float, field: str = "latency") -> list[Record]:
    return [record(**{field: latency(factor)}) for factor in factors]


def latency_in(found: Record, field: str = "latency") -> Latency:
    joined = getattr(found, field)
    assert isinstance(joined, Latency)
    return joined


def kinds(found: Record) -> list[WarningKind]:
    return [warning.kind for warning in found.warnings]


# --- how many processes run a case, and what their records are merged to -------------------------


@pytest.mark.parametrize(
    ("records", "processes"),
    [
        (timed(*AGREE), 5),
        (timed(*DISAGREE), 7),
        ([record()] * 7, 1),
    ],
)
def test_processes_are_added_until_five_or_more_agree(
    records: list[Record], processes: int
) -> None:
    budget = Budget(processes=7)
    numbers = (number for number in range(8) if is_enough(records[:number], budget))
    assert next(numbers) == processes


def test_samples_are_concatenated_and_epochs_are_numbered_on() -> None:
    one, other = timed(1.0, 2.0)
    assert merged([one], BUDGET) is one
    found = latency_in(merged([one, record(), other], BUDGET))  # one process has no latency
    assert (found.processes, found.process_of_epoch) == (2, (0, 0, 0, 0, 1, 1, 1, 1))
    arms = zip(latency_in(one).arms, latency_in(other).arms, found.arms, strict=True)
    for first, second, both in arms:
        assert both.wall_s == first.wall_s + second.wall_s
        assert both.epochs == first.epochs + tuple(4 + epoch for epoch in second.epochs)


@pytest.mark.parametrize("field", ["latency", "cold"])
def test_estimates_are_across_processes_and_a_wide_interval_has_a_warning(field: str) -> None:
    record = merged(timed(1.0, 1.1, 1.3, field=field), BUDGET)
    found = latency_in(record, field)
    expected = median_estimate([1.0, 1.1, 1.3])
    assert found.reference_ratio is not None
    assert found.reference_ratio.low == pytest.approx(expected.low)
    assert found.per_call_s.value == pytest.approx(2.2e-6)
    assert (found.processes, found.converged) == (3, False)
    assert kinds(record) == [WarningKind.NOT_CONVERGED]


@pytest.mark.parametrize(
    ("processes", "is_valid"),
    [
        ([(0.5, True), (0.5, False)], False),  # work was left over in one
        ([(1.0, True), (1.1, False), (0.97, True), (0.95, True), (1.02, True)], True),
        ([(1.2, False), (1.21, False), (1.19, False), (1.2, False)], False),
    ],
)
def test_a_time_is_too_fast_if_it_is_so_across_processes(
    processes: list[tuple[float, bool]], is_valid: bool
) -> None:
    latencies = [latency(ceiling_ratio=ratio, is_valid=valid) for ratio, valid in processes]
    found = merged([record(latency=one) for one in latencies], BUDGET)
    assert latency_in(found).is_valid is is_valid


@pytest.mark.parametrize(
    ("better", "worse"),
    [(Status.OUT_OF_GUARANTEE, Status.WRONG), (Status.WRONG, Status.CRASHED)],
)
def test_the_worst_status_of_any_process_decides(better: Status, worse: Status) -> None:
    first, second = record(better), record(worse, reason="what happened")
    assert merged([first, second, first], BUDGET) is second


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        (WarningKind.NOISY, WarningKind.NOISY, [WarningKind.NOISY]),
        (WarningKind.NOISY, WarningKind.PAGE_FAULTS, [WarningKind.NOISY, WarningKind.PAGE_FAULTS]),
        (WarningKind.NOT_CONVERGED, WarningKind.NOT_CONVERGED, []),  # all together are narrow
    ],
)
def test_a_warning_is_kept_once_if_it_is_still_true(
    one: WarningKind, other: WarningKind, kept: list[WarningKind]
) -> None:
    warned = [record(Status.OK, kind, latency=latency(1.2)) for kind in (one, one, one, one, other)]
    assert kinds(merged(warned, BUDGET)) == kept


def test_calls_are_uneven_if_they_are_so_over_all_processes() -> None:
    paying = latency_of(measure(payer(4, 8 * CALL_S), budget=FOUR))
    found = merged([record(latency=paying)] * 5, BUDGET)
    assert latency_in(found).uneven_ratio == pytest.approx(3.0, rel=0.1)
    assert kinds(found) == [WarningKind.UNEVEN]


# --- which case runs in which environment --------------------------------------------------------

CASES = [
    Case(implementation=name, shape=(rows, 8)) for rows in (1, 2) for name in ("native", "two_pass")
]
INFO = LocalFleet().info
NODES = (INFO, replace(INFO, environment=replace(INFO.environment, cpu="Other")))
HERE, OTHER = (node.environment.fingerprint for node in NODES)


def jobs(*measured: tuple[Case, str]) -> list[Job]:
    planned = [Planned(case, (Measurement.ERRORS,)) for case in CASES]
    return missing_jobs(planned, Budget(), NODES, measured)


def test_a_scenario_that_was_begun_is_continued_in_its_environment() -> None:
    left = [*zip(CASES[1:], (OTHER, None, None), strict=True)]
    assert [(job.case, job.environment) for job in jobs((CASES[0], OTHER))] == left


def test_the_cases_of_a_scenario_go_to_one_environment() -> None:
    queue = JobQueue(jobs())
    taken = [queue.take(name) for name in (HERE, OTHER, HERE)]
    assert [job and job.case for job in taken] == [CASES[0], CASES[2], CASES[1]]
    assert queue.take(HERE) is None  # the last case belongs to the other
    assert len(queue) == 1


def test_a_case_of_a_node_that_died_comes_next_there_or_else_elsewhere() -> None:
    queue = JobQueue(jobs())
    job = queue.take(HERE)
    assert job
    queue.give_back(job)
    assert queue.take(HERE) is job
    queue.give_back(job)
    queue.leave(HERE)
    assert queue.take(OTHER) is job
