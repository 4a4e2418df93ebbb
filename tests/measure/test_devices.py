"""The clocks of the devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from harness.measure import devices as cpu
from harness.measure.devices import CpuDevice, CudaDevice, device_of
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


@pytest.mark.parametrize(
    ("kind", "threads", "clock"),
    [
        ("cpu", 1, Clock.THREAD_CPU),
        ("cpu", 4, Clock.WALL),
        ("cuda", 4, Clock.CUDA_EVENT),
    ],
)
def test_the_kind_and_the_threads_decide_the_clock(kind: str, threads: int, clock: Clock) -> None:
    assert device_of(kind, threads).clock is clock


def test_readings_are_in_seconds(clocks: Callable[[int, int], None]) -> None:
    clocks(2_000_000, 0)
    one, several = CpuDevice(), CpuDevice(threads=2)
    clocks(2_000_000, 500_000)
    reading = one.time(lambda: None, 1)
    assert (reading.wall_s, reading.cpu_s) == (2e-3, 5e-4)
    reading = several.time(lambda: None, 1)
    assert (reading.wall_s, reading.cpu_s, reading.process_s) == (2e-3, None, None)


def test_the_cost_of_the_clock_is_subtracted(clocks: Callable[[int, int], None]) -> None:
    clocks(100, 300)
    device = CpuDevice()  # finds that a reading costs 300 ns
    clocks(100, 1300)
    assert device.time(lambda: None, 1).cpu_s == pytest.approx(1e-6)


def test_a_clock_that_steps_back_gives_negative_readings(
    clocks: Callable[[int, int], None],
) -> None:
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


def test_the_resolution_of_a_fine_clock_is_the_smallest_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = itertools.cycle([60, 61, 75])
    monkeypatch.setattr(cpu, "thread_time_ns", itertools.accumulate(steps).__next__)
    assert CpuDevice().resolution_s() == pytest.approx(1e-9)


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
