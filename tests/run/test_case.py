"""From a case to its record: what is measured of it, and what that costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, measured

from harness.measure.cpu import CpuDevice
from harness.measure.device import Reading
from harness.measure.environment import compiler
from harness.records import (
    Allocation,
    ArmRole,
    Cache,
    Case,
    Direction,
    Measurement,
    MeasurementWarning,
    Mode,
    Status,
    WarningKind,
)
from harness.run import case as module
from harness.run.case import CaseRunner
from harness.run.timing import time_case

ALL_OF_IT = {"errors", "latency", "cold", "memory"}
needs_compiler = pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")


# --- what is measured ----------------------------------------------------------------------------


def test_a_good_case_is_ok_and_has_all_that_was_asked(runner: CaseRunner) -> None:
    record = runner.run(CASE, tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (Status.OK, "")
    assert (record.case, record.environment) == (CASE, "here")
    assert measured(record) == ALL_OF_IT


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((), {"errors"}),
        (ERRORS, {"errors"}),
        ((Measurement.MEMORY,), {"errors", "memory"}),
        ((Measurement.LATENCY,), {"errors", "latency"}),
        ((Measurement.COLD,), {"errors", "cold"}),
    ],
    ids=["nothing", "errors", "memory", "latency", "cold"],
)
def test_errors_are_always_measured_and_the_rest_as_asked(
    runner: CaseRunner, asked: tuple[Measurement, ...], found: set[str]
) -> None:
    assert measured(runner.run(CASE, asked, ONE_EPOCH)) == found


@pytest.mark.parametrize("direction", Direction)
def test_every_direction_is_measured(runner: CaseRunner, direction: Direction) -> None:
    case = replace(CASE, implementation="two_pass", direction=direction)
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.errors is not None
    assert record.memory is not None
    forward = direction is Direction.FORWARD
    names = [each.output for each in record.errors.outputs]
    assert names == (["y"] if forward else ["y", "dx", "dweight", "dbias"])
    assert (record.memory.saved_bytes is None) is forward


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_an_empty_tensor_is_measured_like_any_other(
    runner: CaseRunner, shape: tuple[int, ...], direction: Direction
) -> None:
    case = Case(implementation="two_pass", shape=shape, direction=direction)
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.OK
    assert measured(record) == ALL_OF_IT


def test_the_reference_and_a_copy_are_timed_beside_the_case(runner: CaseRunner) -> None:
    case = replace(CASE, implementation="two_pass")
    latency = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH).latency
    assert latency is not None
    assert [(each.role, each.name) for each in latency.arms] == [
        (ArmRole.SUBJECT, "two_pass"),
        (ArmRole.REFERENCE, "native"),
        (ArmRole.CEILING, latency.arms[-1].name),
    ]
    assert latency.arms[-1].name in {"torch copy_", "numpy copyto"}
    assert latency.cache is Cache.WARM
    assert latency.allocation is Allocation.DEFAULT
    assert latency.compile_s is None


def test_on_the_cpu_cold_inputs_are_others_each_time(runner: CaseRunner) -> None:
    cold = runner.run(CASE, (Measurement.COLD,), ONE_EPOCH).cold
    assert cold is not None
    assert cold.cache is Cache.ROTATE


def test_memory_that_cannot_be_counted_is_none_with_the_reason_and_not_zero(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "kineto_available", lambda: False)
    record = runner.run(CASE, (Measurement.MEMORY,), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.memory is None
    (warning,) = record.warnings
    assert warning.kind is WarningKind.NOT_COUNTED
    assert "Kineto" in warning.advice


def test_warnings_about_warm_and_cold_times_are_kept_both_and_told_apart(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warning_about(*arguments: Any, cache: Cache, **more: Any) -> Any:
        warning = MeasurementWarning(kind=WarningKind.NOISY, advice=str(cache))
        return replace(time_case(*arguments, cache=cache, **more), warnings=(warning,))

    monkeypatch.setattr(module, "time_case", warning_about)
    record = runner.run(CASE, (Measurement.LATENCY, Measurement.COLD), ONE_EPOCH)
    assert [each.advice for each in record.warnings] == ["warm", "cold: rotate"]


def test_a_clock_that_gives_nothing_leaves_no_latency_and_a_warning(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "time", lambda *_: Reading(-1.0, -1.0))
    record = runner.run(CASE, (Measurement.LATENCY,), ONE_EPOCH)
    assert (record.status, record.latency) == (Status.OK, None)
    assert [each.kind for each in record.warnings] == [WarningKind.TOO_FEW_SAMPLES]


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_compiled_case_says_what_compiling_took(runner: CaseRunner) -> None:
    case = replace(CASE, mode=Mode.COMPILED)
    record = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.latency is not None
    assert record.latency.compile_s is not None
    assert record.latency.compile_s > 0


# --- what it costs -------------------------------------------------------------------------------


def test_the_parts_of_the_cost_are_within_the_whole(runner: CaseRunner) -> None:
    cost = runner.run(CASE, tuple(Measurement), ONE_EPOCH).cost
    assert cost is not None
    assert min(cost.implementation_s, cost.oracle_s, cost.sampling_s) > 0
    assert cost.implementation_s + cost.oracle_s + cost.sampling_s <= cost.total_s


def test_what_was_not_done_costs_nothing(runner: CaseRunner) -> None:
    cost = runner.run(CASE, ERRORS, ONE_EPOCH).cost
    assert cost is not None
    assert cost.sampling_s == 0


def test_a_case_that_was_refused_has_its_cost_too(
    runner: CaseRunner, implementation: Known
) -> None:
    cost = runner.run(implementation(forward_only=True, case=BACKWARD), ERRORS, ONE_EPOCH).cost
    assert cost is not None
    assert cost.total_s > 0
    assert (cost.implementation_s, cost.oracle_s, cost.sampling_s) == (0, 0, 0)


def test_the_exact_result_is_paid_for_once(runner: CaseRunner) -> None:
    costs = [
        runner.run(replace(CASE, implementation=name), ERRORS, ONE_EPOCH).cost
        for name in ("native", "two_pass")
    ]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].oracle_s > 0
    assert costs[1].oracle_s == 0
