"""The status and the contents of a record, for every way in which a case can end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, good, measured
from torch import Tensor

import implementations
from harness.measure.devices import CpuDevice
from harness.records import (
    Case,
    Measurement,
    Mode,
    Status,
)
from harness.run import attempt
from harness.run import case as module
from harness.run.case import CaseRunner
from harness.run.timing import time_case

ALL_OF_IT = {"errors", "latency", "cold", "memory"}


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
