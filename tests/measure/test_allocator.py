"""The system's memory management stays out of the timings."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from harness.measure.devices import CpuDevice
from harness.measure.memory import fault_in, use_steady_allocation
from harness.records import Allocation, Budget, Case, Direction, Measurement, Record, Status
from harness.run import case as module
from harness.run.case import CaseRunner

# a float32 tensor of 38 MB: above 32 MiB glibc always maps memory afresh; a longer call would not
# be warmed up on a busy machine. It is not verified, which would take most of the time
TIME_A_LARGE_CASE = """
import json, sys
from harness.measure.memory import use_steady_allocation
from harness.records import Allocation, Budget, Case, Direction, Measurement, Status
from harness.run import attempt
from harness.run.case import CaseRunner

attempt.judge = lambda outputs, case, *_: attempt.Judged(
    case=case, status=Status.OK, outputs=outputs
)
allocation = use_steady_allocation() if sys.argv[1] == "steady" else Allocation.DEFAULT
runner = CaseRunner("", allocation)
case = Case(implementation="native", shape=(2304, 4096))
budget = Budget(limit_s=1.0, min_epochs=1, max_epochs=1)
latency = runner.run(case, [Measurement.LATENCY], budget).latency
json.dump([latency.allocation, latency.minor_faults_ratio], sys.stdout)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_only_steady_allocation_takes_less_than_one_page_fault_per_call() -> None:
    faults = {}
    for allocation in (Allocation.DEFAULT, Allocation.STEADY):
        done = subprocess.run(  # a fresh process: the setting cannot be undone
            [sys.executable, "-c", TIME_A_LARGE_CASE, allocation],
            capture_output=True,
            text=True,
            check=True,
        )
        found, faults[allocation] = json.loads(done.stdout)
        assert found == allocation
    assert faults[Allocation.DEFAULT] > 100  # pages of up to 64 KiB
    assert faults[Allocation.STEADY] < 1


CASE = Case(implementation="native", shape=(16, 32))
HELD_BYTES = 8 * 16 * 32 * 4  # copies of x, as many as a forward needs at most


@pytest.fixture
def faulted_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the bytes to fault in, in order, instead."""
    asked: list[int] = []
    monkeypatch.setattr(module, "fault_in", asked.append)
    return asked


def run(runner: CaseRunner, case: Case, *asked: Measurement) -> Record:
    return runner.run(case, asked, Budget(limit_s=0.0, min_epochs=1, max_epochs=1))


def test_memory_is_faulted_in_once_before_the_timing(faulted_in: list[int]) -> None:
    runner = CaseRunner("", Allocation.STEADY)
    for measurement in (Measurement.LATENCY, Measurement.COLD):
        run(runner, CASE, measurement)
    run(runner, replace(CASE, shape=(8, 32)), Measurement.LATENCY)
    assert faulted_in == [HELD_BYTES]
    run(runner, replace(CASE, shape=(32, 32)), Measurement.LATENCY)
    assert faulted_in == [HELD_BYTES, 2 * HELD_BYTES]
    run(runner, replace(CASE, direction=Direction.BACKWARD), Measurement.LATENCY)
    run(runner, replace(CASE, shape=(32, 32), direction=Direction.BACKWARD), Measurement.LATENCY)
    assert faulted_in == [HELD_BYTES, 2 * HELD_BYTES, 4 * HELD_BYTES]


@pytest.mark.parametrize(
    ("allocation", "asked"),
    [
        (Allocation.DEFAULT, Measurement.LATENCY),
        (Allocation.STEADY, Measurement.ERRORS),
        (Allocation.STEADY, Measurement.MEMORY),
    ],
)
def test_nothing_is_faulted_in_without_steady_allocation_or_timing(
    faulted_in: list[int], allocation: Allocation, asked: Measurement
) -> None:
    run(CaseRunner("", allocation), CASE, asked)
    assert faulted_in == []


@pytest.mark.usefixtures("faulted_in")
def test_memory_that_the_allocator_holds_counts_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = CaseRunner("", Allocation.STEADY)
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 1 << 30)
    run(runner, CASE, Measurement.LATENCY)
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda _: 4 * 1024)  # the rest of what it needs
    assert run(runner, CASE).status is Status.OK
    bigger = run(runner, replace(CASE, shape=(32, 32)))
    assert bigger.status is Status.OUT_OF_MEMORY


def test_another_libc_keeps_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert use_steady_allocation() is Allocation.DEFAULT


def test_fault_in_writes_to_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []

    def full(size: int, *, dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.full((size,), 7, dtype=dtype))
        return made[-1]

    monkeypatch.setattr(torch, "empty", full)
    fault_in(1000)
    (written,) = made
    assert written.tolist() == [0] * 1000
