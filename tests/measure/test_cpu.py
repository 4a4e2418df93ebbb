"""The CPU as a device: facts about its machine, and its clocks."""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.measure import devices as cpu
from harness.measure.devices import CpuDevice, CudaDevice, device_of
from harness.records import Allocation, Budget, Case, Clock, DeviceState, Measurement, Status
from harness.run.case import CaseRunner

Write = Callable[[str, str], None]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Put a file where the CPU's caches, its governor and the power supplies are looked for."""
    places = {"caches": "_CACHES", "governor": "_GOVERNOR", "supplies": "_SUPPLIES"}
    for name, constant in places.items():
        monkeypatch.setattr(cpu, constant, tmp_path / name)

    def make(path: str, content: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    return make


# --- memory and caches ---------------------------------------------------------------------------


def meminfo(monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    def fake_open(path: str) -> StringIO:
        assert path == "/proc/meminfo"
        if content is None:
            raise FileNotFoundError(path)
        return StringIO(content)

    monkeypatch.setattr(cpu, "open", fake_open, raising=False)


@pytest.mark.parametrize(
    ("content", "free_bytes"),
    [
        ("MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n", 2048 * 1024),
        ("MemTotal: 999 kB\n", None),
        (None, None),
    ],
)
def test_free_memory_is_what_the_system_calls_available(
    monkeypatch: pytest.MonkeyPatch, content: str | None, free_bytes: int | None
) -> None:
    meminfo(monkeypatch, content)
    assert CpuDevice().free_bytes() == free_bytes


def test_the_cache_size_is_that_of_the_largest_cache_or_64_mib(write: Write) -> None:
    assert CpuDevice().cache_bytes() == 64 << 20
    for number, size in enumerate(["48K", "32K", "2048K", "36M"]):
        write(f"caches/index{number}/size", f"{size}\n")
    assert CpuDevice().cache_bytes() == 36 << 20


# --- its condition -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("online", "on_battery"),
    [(["1"], False), (["0"], True), (["0", "1"], False), ([""], None), ([], None)],
)
def test_a_machine_runs_on_battery_if_no_mains_is_online(
    write: Write, online: list[str], on_battery: bool | None
) -> None:
    write("supplies/BAT0/type", "Battery\n")
    write("governor", "powersave\n")
    for number, state in enumerate(online):
        write(f"supplies/AC{number}/type", "Mains\n")
        write(f"supplies/AC{number}/online", f"{state}\n")
    condition = CpuDevice().condition()
    assert (condition.on_battery, condition.governor) == (on_battery, "powersave")


@pytest.mark.parametrize(
    ("stat", "steal_s"),
    [
        ("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n", 2.5),
        ("", None),
        ("cpu  1 2 3", None),
        ("intr 1 2 3 4 5 6 7 8 9 10", None),
    ],
)
def test_stolen_time_is_that_of_all_cpus_in_seconds(
    monkeypatch: pytest.MonkeyPatch, stat: str, steal_s: float | None
) -> None:
    monkeypatch.setattr(cpu, "_text", lambda path: stat if path == Path("/proc/stat") else None)
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert CpuDevice().condition().steal_s == steal_s


# --- where little may be read --------------------------------------------------------------------


@pytest.fixture
def _locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid to read or list anything under /proc and /sys."""
    real_open, real_scandir, real_io_open = builtins.open, os.scandir, Path.open

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if str(path).startswith(("/proc", "/sys")):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments, **named)

        return call

    def no_load() -> tuple[float, float, float]:
        raise OSError("Load averages are unobtainable")  # what it says without /proc/loadavg

    monkeypatch.setattr(builtins, "open", guarded(real_open))
    monkeypatch.setattr(os, "scandir", guarded(real_scandir))
    monkeypatch.setattr(Path, "open", guarded(real_io_open))
    monkeypatch.setattr(os, "getloadavg", no_load)


TINY = Case(implementation="native", shape=(4, 8))
ONE_EPOCH = Budget(limit_s=0.0, min_epochs=1, max_epochs=1)


@pytest.mark.usefixtures("_locked")
def test_without_permission_to_read_nothing_is_known_and_a_case_is_measured() -> None:
    device = CpuDevice()
    assert device.condition() == DeviceState()
    assert device.free_bytes() is None
    assert device.cache_bytes() == 64 << 20
    runner = CaseRunner("here", Allocation.DEFAULT)
    record = runner.run(TINY, (Measurement.LATENCY, Measurement.COLD), ONE_EPOCH)
    assert record.status is Status.OK
    assert record.latency is not None
    assert record.cold is not None


# === The clocks of the devices


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
