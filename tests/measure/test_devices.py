"""Devices: what their clocks measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from harness.measure import cpu
from harness.measure.cpu import CpuDevice
from harness.measure.cuda import CudaDevice
from harness.measure.devices import device_of
from harness.records import Clock


def ticking(step: int) -> Callable[[], int]:
    """A clock in nanoseconds that moves by ``step`` at each reading."""
    return itertools.count(1_000_000, step).__next__


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Replace the wall clock and the thread's CPU clock."""

    def replace(wall_step: int, cpu_step: int) -> None:
        monkeypatch.setattr(cpu, "perf_counter_ns", ticking(wall_step))
        monkeypatch.setattr(cpu, "thread_time_ns", ticking(cpu_step))

    return replace


# --- the CPU -------------------------------------------------------------------------------------


def test_a_call_is_made_as_often_as_asked() -> None:
    calls: list[None] = []
    CpuDevice().time(lambda: calls.append(None), 7)
    assert len(calls) == 7


def test_one_thread_is_timed_by_its_cpu_clock_and_by_the_wall() -> None:
    reading = CpuDevice(threads=1).time(lambda: sum(range(100)), 10)
    assert CpuDevice(threads=1).clock is Clock.THREAD_CPU
    assert reading.wall_s > 0
    assert reading.cpu_s is not None


def test_several_threads_are_timed_by_the_wall_alone() -> None:
    device = CpuDevice(threads=2)
    assert device.clock is Clock.WALL
    assert device.time(lambda: None, 1).cpu_s is None


def test_readings_are_in_seconds(clocks: Callable[[int, int], None]) -> None:
    clocks(2_000_000, 0)
    device = CpuDevice()
    clocks(2_000_000, 500_000)
    reading = device.time(lambda: None, 1)
    assert reading.wall_s == 2e-3
    assert reading.cpu_s == 5e-4


def test_what_the_clock_itself_costs_is_taken_off(clocks: Callable[[int, int], None]) -> None:
    clocks(100, 300)
    device = CpuDevice()  # finds that a reading costs 300 ns
    clocks(100, 1300)
    assert device.time(lambda: None, 1).cpu_s == pytest.approx(1e-6)


def test_a_clock_that_steps_back_is_given_as_it_is(clocks: Callable[[int, int], None]) -> None:
    clocks(100, 300)
    device = CpuDevice()
    clocks(-100, -250)
    reading = device.time(lambda: None, 1)
    assert reading.wall_s < 0
    assert reading.cpu_s is not None
    assert reading.cpu_s < 0  # no sample, for whoever takes them


@pytest.mark.parametrize("step", [1, 40, 15_000_000])
def test_the_step_of_a_coarse_clock_is_its_resolution(
    clocks: Callable[[int, int], None], step: int
) -> None:
    clocks(1, 1)
    device, several = CpuDevice(), CpuDevice(threads=2)
    clocks(step, 7)
    assert several.resolution_s() == pytest.approx(step / 1e9)
    clocks(7, step)
    assert device.resolution_s() == pytest.approx(step / 1e9)


def test_a_clock_whose_reading_varies_resolves_as_little_as_it_varies_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = itertools.cycle([60, 61, 75])
    monkeypatch.setattr(cpu, "thread_time_ns", itertools.accumulate(steps).__next__)
    assert CpuDevice().resolution_s() == pytest.approx(1e-9)


def test_nothing_runs_by_itself_that_could_be_issued_or_replayed() -> None:
    device = CpuDevice()
    assert device.time(lambda: None, 1).launch_s is None
    assert device.replayed(lambda: lambda: None) is None


# --- CUDA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "is_available", "why"),
    [(None, False, "built without CUDA"), ("12.4", False, "no CUDA device"), ("12.4", True, None)],
)
def test_cuda_that_cannot_be_used_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, is_available: bool, why: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    found = CudaDevice().unavailable()
    assert found is None if why is None else why in (found or "")


# --- by name -------------------------------------------------------------------------------------


def test_the_threads_of_a_case_decide_its_clock() -> None:
    assert device_of("cpu", 1).clock is Clock.THREAD_CPU
    assert device_of("cpu", 4).clock is Clock.WALL
    assert device_of("cuda", 4).clock is Clock.CUDA_EVENT
