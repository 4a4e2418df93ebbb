"""A case is run to its record, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, good, measured
from torch import Tensor

import implementations
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


# === The status and the contents of a record, for every way in which a case can end


# --- how a case can end --------------------------------------------------------------------------


def test_a_result_beyond_its_bound_is_wrong_and_timed(
    runner: CaseRunner, implementation: Known
) -> None:
    record = runner.run(implementation(lambda *a: good(*a) * 1.01), tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.WRONG
    assert measured(record) == ALL_OF_IT


def test_a_nan_and_a_broken_contract_are_wrong(runner: CaseRunner, implementation: Known) -> None:
    record = runner.run(implementation(lambda *a: good(*a) * float("nan")), ERRORS, ONE_EPOCH)
    assert record.status is Status.WRONG
    assert "512 of 512 elements" in record.reason
    record = runner.run(implementation(lambda *a: good(*a)[:3]), tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.WRONG
    assert "[3, 32]" in record.reason
    assert measured(record) == set()


def test_a_case_beyond_the_declared_bound_is_out_of_guarantee(runner: CaseRunner) -> None:
    case = Case(implementation="one_pass", shape=(8, 64), distribution="offset_1e4")
    record = runner.run(case, ERRORS, ONE_EPOCH)
    assert record.status is Status.OUT_OF_GUARANTEE
    assert "one_pass" in record.reason


HALF = replace(CASE, dtype="float16", param_dtype="float16", distribution="offset_1e6")


@pytest.mark.parametrize(
    ("declared", "case", "why"),
    [
        ({}, HALF, "65504"),  # the largest float16
        ({"dtypes": frozenset({"float64"})}, CASE, "float32"),
        ({"devices": frozenset({"cuda"})}, CASE, "cpu"),
        ({"forward_only": True}, BACKWARD, "gradient"),
    ],
)
def test_a_case_that_cannot_run_by_its_declaration_or_dtype_is_unsupported(
    runner: CaseRunner, implementation: Known, declared: dict[str, Any], case: Case, why: str
) -> None:
    record = runner.run(implementation(case=case, **declared), tuple(Measurement), ONE_EPOCH)
    assert record.status is Status.UNSUPPORTED
    assert why in record.reason
    assert measured(record) == set()


@pytest.mark.parametrize("missing", ["CXX", "PATH"])
def test_compiling_without_a_compiler_is_unsupported(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch, missing: str, tmp_path: Any
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(missing, str(tmp_path / "nothing-here"))
    record = runner.run(replace(CASE, mode=Mode.COMPILED), ERRORS, ONE_EPOCH)
    assert record.status is Status.UNSUPPORTED
    assert "g++" in record.reason


def test_an_unavailable_device_is_unsupported(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "unavailable", lambda _: "it went up in smoke")
    record = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "it went up in smoke")


def test_a_case_that_does_not_fit_into_memory_is_not_started(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 3 << 30)
    case = replace(CASE, shape=(1 << 15, 1 << 15))  # would take gigabytes, and long
    record = runner.run(case, ERRORS, ONE_EPOCH)
    assert record.status is Status.OUT_OF_MEMORY
    assert "40 GiB" in record.reason
    assert "3 GiB" in record.reason
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: None)  # unknown: the case is tried
    assert runner.run(CASE, ERRORS, ONE_EPOCH).status is Status.OK


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (implementations.UnsupportedError("odd rows"), Status.UNSUPPORTED, "odd rows"),
        (MemoryError(), Status.OUT_OF_MEMORY, "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.OUT_OF_MEMORY, "CUDA out of memory"),
        (RuntimeError("first\nsecond"), Status.ERROR, "RuntimeError: first"),
    ],
    ids=repr,
)
def test_an_exception_of_the_implementation_becomes_the_status(
    runner: CaseRunner, implementation: Known, error: Exception, status: Status, reason: str
) -> None:
    record = runner.run(implementation(raises(error)), tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (status, reason)
    assert measured(record) == set()
    assert runner.run(CASE, ERRORS, ONE_EPOCH).status is Status.OK


@pytest.mark.parametrize(
    ("is_timed", "kept"), [(False, {"errors"}), (True, {"errors", "latency"})], ids=["in", "after"]
)
def test_an_implementation_that_fails_in_or_after_the_timing_keeps_earlier_measurements(
    runner: CaseRunner,
    implementation: Known,
    monkeypatch: pytest.MonkeyPatch,
    is_timed: bool,
    kept: set[str],
) -> None:
    tired: list[None] = []

    def tires(*arguments: Any) -> Tensor:
        if tired:
            raise RuntimeError("tired")
        return good(*arguments)

    def tiring(*arguments: Any, **more: Any) -> Any:
        sampled = time_case(*arguments, **more) if is_timed else None
        tired.append(None)
        return sampled or time_case(*arguments, **more)

    monkeypatch.setattr(module, "time_case", tiring)
    record = runner.run(implementation(tires), tuple(Measurement), ONE_EPOCH)
    assert (record.status, record.reason) == (Status.ERROR, "RuntimeError: tired")
    assert measured(record) == kept


def test_ctrl_c_in_the_implementation_ends_the_run(
    runner: CaseRunner, implementation: Known
) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.run(implementation(raises(KeyboardInterrupt())), ERRORS, ONE_EPOCH)


@pytest.mark.parametrize("part", ["measure_errors", "make_inputs", "verdict_of", "time_case"])
def test_an_exception_in_the_harness_propagates(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    owner = attempt if part in {"make_inputs", "verdict_of"} else module
    monkeypatch.setattr(owner, part, raises(RuntimeError("a bug in the harness")))
    with pytest.raises(RuntimeError, match="a bug in the harness"):
        runner.run(CASE, tuple(Measurement), ONE_EPOCH)
