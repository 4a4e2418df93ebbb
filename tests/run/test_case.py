"""A case is run to its record, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, good, measured
from torch import Tensor

from harness.measure import CpuDevice, compiler
from harness.records import (
    Cache,
    Case,
    Measurement,
    MeasurementWarning,
    Mode,
    Status,
    WarningKind,
)
from harness.run import CaseRunner, time_case
from implementations import UnsupportedError

ALL_OF_IT = {"errors", "latency", "cold", "memory"}
HALF = replace(CASE, dtype="float16", param_dtype="float16", distribution="offset_1e6")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: change(good(*arguments))


# --- what is measured ----------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [(), *((measurement,) for measurement in Measurement)], ids=str)
def test_errors_are_always_measured_and_the_rest_if_asked_for(
    runner: CaseRunner, asked: tuple[Measurement, ...]
) -> None:
    assert measured(runner.run(CASE, asked, ONE_EPOCH)) == {"errors", *asked}


def test_a_timing_knows_its_cache_and_warnings_about_cold_times_are_marked(
    runner: CaseRunner,
) -> None:
    def warning_about(*arguments: Any, cache: Cache, **more: Any) -> Any:
        warning = MeasurementWarning(kind=WarningKind.NOISY, advice=str(cache))
        sampled = time_case(*arguments, cache=cache, **more)
        latency = None if cache is Cache.WARM else sampled.latency  # its clock stood still
        return replace(sampled, latency=latency, warnings=(warning,))

    timings = (Measurement.LATENCY, Measurement.COLD)
    record = runner.run(CASE, timings, ONE_EPOCH, time=warning_about)
    assert [warning.advice for warning in record.warnings] == ["warm", "cold: rotate"]
    assert (record.status, record.latency) == (Status.OK, None)
    assert record.cold is not None
    assert record.cold.cache is Cache.ROTATE


@needs_compiler
def test_the_time_of_compiling_is_that_of_the_first_call_beyond_the_second(
    runner: CaseRunner, implementation: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def compiles_in_its_first_call(*arguments: Any) -> torch.Tensor:
        calls.append(None)
        return good(*arguments)

    # the first call takes five seconds, each later one takes one
    clock = "harness.run.attempt.perf_counter"
    monkeypatch.setattr(clock, lambda: len(calls) + 4.0 * bool(calls))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiles_in_its_first_call)
    case = implementation(raises(AssertionError()), replace(CASE, mode=Mode.COMPILED))
    latency = runner.run(case, (Measurement.LATENCY,), ONE_EPOCH).latency
    assert latency is not None
    assert latency.compile_s == 4.0


def test_the_parts_of_the_cost_are_within_the_whole_and_equal_inputs_cost_once(
    runner: CaseRunner,
) -> None:
    cost = runner.run(CASE, tuple(Measurement), ONE_EPOCH).cost
    assert cost is not None
    assert min(cost.implementation_s, cost.oracle_s, cost.sampling_s) > 0
    assert cost.implementation_s + cost.oracle_s + cost.sampling_s <= cost.total_s
    again = runner.run(replace(CASE, implementation="two_pass"), ERRORS, ONE_EPOCH).cost
    assert again is not None
    assert again.oracle_s == 0


# --- how a case can end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "status", "why", "kept"),
    [
        (good, Status.OK, "", ALL_OF_IT),
        (changed(lambda y: y * 1.01), Status.WRONG, "", ALL_OF_IT),
        (changed(lambda y: y * torch.nan), Status.WRONG, "512 of 512 elements", ALL_OF_IT),
        (changed(lambda y: y[:3]), Status.WRONG, "[3, 32]", set()),
        (raises(UnsupportedError("odd rows")), Status.UNSUPPORTED, "odd rows", set()),
        (raises(RuntimeError("tired")), Status.ERROR, "RuntimeError: tired", set()),
    ],
)
def test_how_an_implementation_behaves_is_the_status_of_its_case_alone(
    runner: CaseRunner,
    implementation: Known,
    function: Callable[..., Any],
    status: Status,
    why: str,
    kept: set[str],
) -> None:
    record = runner.run(implementation(function), tuple(Measurement), ONE_EPOCH)
    assert record.status is status
    assert why in record.reason
    assert measured(record) == kept
    assert runner.run(CASE, ERRORS, ONE_EPOCH).status is Status.OK


@pytest.mark.parametrize(
    ("declared", "case", "why"),
    [
        ({}, HALF, "65504"),  # the largest float16
        ({"devices": frozenset({"cuda"})}, CASE, "cpu"),
        ({"forward_only": True}, BACKWARD, "gradient"),
        ({"forward_only": True}, CASE, None),
        ({"outside_torch": True}, replace(CASE, mode=Mode.COMPILED), "outside torch"),
    ],
)
def test_a_case_that_cannot_run_by_its_declaration_or_dtype_is_unsupported(
    runner: CaseRunner, implementation: Known, declared: dict[str, Any], case: Case, why: str | None
) -> None:
    record = runner.run(implementation(case=case, **declared), tuple(Measurement), ONE_EPOCH)
    assert record.status is (Status.UNSUPPORTED if why else Status.OK)
    assert (why or "") in record.reason
    assert measured(record) == (set() if why else ALL_OF_IT)


def test_compiling_without_a_compiler_is_unsupported(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "nothing-here")
    record = runner.run(replace(CASE, mode=Mode.COMPILED), ERRORS, ONE_EPOCH)
    assert record.status is Status.UNSUPPORTED
    assert "g++" in record.reason


def test_a_case_that_does_not_fit_into_memory_is_not_started(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 3 << 30)
    case = replace(CASE, shape=(1 << 15, 1 << 15))  # would take gigabytes, and long
    record = runner.run(case, ERRORS, ONE_EPOCH)
    assert record.status is Status.OUT_OF_MEMORY
    assert "40 GiB" in record.reason


def test_an_implementation_that_fails_after_the_timing_keeps_earlier_measurements(
    runner: CaseRunner, implementation: Known
) -> None:
    tired: list[None] = []

    def tires(*arguments: Any) -> Tensor:
        if tired:
            raise RuntimeError("tired")
        return good(*arguments)

    def tiring(*arguments: Any, **more: Any) -> Any:
        sampled = time_case(*arguments, **more)
        tired.append(None)
        return sampled

    record = runner.run(implementation(tires), tuple(Measurement), ONE_EPOCH, time=tiring)
    assert (record.status, record.reason) == (Status.ERROR, "RuntimeError: tired")
    assert measured(record) == {"errors", "latency"}
