"""A case is run to its record, with the requested measurements and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import CASE, ERRORS, ONE_EPOCH, Known, good, measured

from harness.measure.devices import CpuDevice, Reading
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
from harness.run import attempt
from harness.run import case as module
from harness.run.case import CaseRunner
from harness.run.timing import time_case

ALL_OF_IT = {"errors", "latency", "cold", "memory"}
needs_compiler = pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")


# --- what is measured ----------------------------------------------------------------------------


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
def test_errors_are_always_measured_and_the_rest_if_asked_for(
    runner: CaseRunner, asked: tuple[Measurement, ...], found: set[str]
) -> None:
    assert measured(runner.run(CASE, asked, ONE_EPOCH)) == found


@pytest.mark.parametrize("shape", [(1, 32), (0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_one_row_and_no_elements_are_measured_too(
    runner: CaseRunner, shape: tuple[int, ...], direction: Direction
) -> None:
    case = Case(implementation="two_pass", shape=shape, direction=direction)
    record = runner.run(case, tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.OK
    assert measured(record) == ALL_OF_IT


def test_the_reference_and_a_copy_are_timed_in_turn_with_the_case(runner: CaseRunner) -> None:
    case = replace(CASE, implementation="two_pass")
    latency = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH).latency
    assert latency is not None
    assert [(arm.role, arm.name) for arm in latency.arms] == [
        (ArmRole.SUBJECT, "two_pass"),
        (ArmRole.REFERENCE, "native"),
        (ArmRole.CEILING, latency.arms[-1].name),
    ]
    assert latency.arms[-1].name in {"torch copy_", "numpy copyto"}
    assert latency.cache is Cache.WARM
    assert latency.allocation is Allocation.DEFAULT
    assert latency.compile_s is None


def test_memory_that_cannot_be_counted_is_none_with_a_warning(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "kineto_available", lambda: False)
    record = runner.run(CASE, (Measurement.MEMORY,), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.memory is None
    (warning,) = record.warnings
    assert warning.kind is WarningKind.MEMORY_NOT_COUNTED
    assert "Kineto" in warning.advice


def test_warnings_about_cold_times_are_marked(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warning_about(*arguments: Any, cache: Cache, **more: Any) -> Any:
        warning = MeasurementWarning(kind=WarningKind.NOISY, advice=str(cache))
        return replace(time_case(*arguments, cache=cache, **more), warnings=(warning,))

    monkeypatch.setattr(module, "time_case", warning_about)
    record = runner.run(CASE, (Measurement.LATENCY, Measurement.COLD), ONE_EPOCH)
    assert [warning.advice for warning in record.warnings] == ["warm", "cold: rotate"]


def test_a_clock_that_runs_backwards_gives_a_warning_and_no_latency(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time(device: CpuDevice, call: Callable[[], object], calls: int) -> Reading:
        for _ in range(calls):
            call()
        return Reading(-1.0, -1.0)

    monkeypatch.setattr(CpuDevice, "time", time)
    record = runner.run(CASE, (Measurement.LATENCY,), ONE_EPOCH)
    assert (record.status, record.latency) == (Status.OK, None)
    assert [warning.kind for warning in record.warnings] == [WarningKind.TOO_FEW_SAMPLES]


@needs_compiler
def test_the_time_of_compiling_is_that_of_the_first_call_beyond_the_second(
    runner: CaseRunner, implementation: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def compiles_in_its_first_call(*arguments: Any) -> torch.Tensor:
        calls.append(None)
        return good(*arguments)

    # the first call takes five seconds, each later one takes one
    monkeypatch.setattr(attempt, "perf_counter", lambda: len(calls) + 4.0 * bool(calls))
    monkeypatch.setattr(attempt, "function_of", lambda implementation, _: implementation.function)
    case = implementation(compiles_in_its_first_call, replace(CASE, mode=Mode.COMPILED))
    latency = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH).latency
    assert latency is not None
    assert latency.compile_s == 4.0


# --- what it costs -------------------------------------------------------------------------------


def test_the_parts_of_the_cost_are_within_the_whole(runner: CaseRunner) -> None:
    cost = runner.run(CASE, tuple(Measurement), ONE_EPOCH).cost
    assert cost is not None
    assert min(cost.implementation_s, cost.oracle_s, cost.sampling_s) > 0
    assert cost.implementation_s + cost.oracle_s + cost.sampling_s <= cost.total_s


def test_exact_results_are_computed_once_for_equal_inputs(runner: CaseRunner) -> None:
    costs = [
        runner.run(replace(CASE, implementation=name), ERRORS, ONE_EPOCH).cost
        for name in ("native", "two_pass")
    ]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].oracle_s > 0
    assert costs[1].oracle_s == 0
    assert costs[0].sampling_s == 0  # nothing was timed
