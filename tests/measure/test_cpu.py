"""The CPU as a device: facts about its machine, and its clocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from harness.measure import CpuDevice, device_of
from harness.records import Clock

DEVICES = "harness.measure.devices"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which the CPU's caches, its governor and the power supplies are looked for."""
    for name in ("caches", "governor", "supplies"):
        monkeypatch.setattr(f"{DEVICES}._{name.upper()}", tmp_path / name)
    (tmp_path / "governor").write_text("powersave\n")
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


# --- its machine ---------------------------------------------------------------------------------


def test_the_cache_size_is_that_of_the_largest_cache_or_64_mib(folder: Path) -> None:
    assert CpuDevice().cache_bytes() == 64 << 20
    for number, size in enumerate(["48K", "32K", "2048K", "36M"]):
        write(folder / f"caches/index{number}/size", f"{size}\n")
    assert CpuDevice().cache_bytes() == 36 << 20


@pytest.mark.parametrize(
    ("online", "on_battery"),
    [(["1"], False), (["0"], True), (["0", "1"], False), ([""], None), ([], None)],
)
def test_a_machine_runs_on_battery_if_no_mains_is_online(
    folder: Path, online: list[str], on_battery: bool | None
) -> None:
    write(folder / "supplies/BAT0/type", "Battery\n")
    for number, state in enumerate(online):
        write(folder / f"supplies/AC{number}/type", "Mains\n")
        write(folder / f"supplies/AC{number}/online", f"{state}\n")
    condition = CpuDevice().condition()
    assert (condition.on_battery, condition.governor) == (on_battery, "powersave")


# --- its clocks ----------------------------------------------------------------------------------


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Have the wall clock and the thread's CPU clock move by so many nanoseconds per reading."""

    def replace(wall_step: int, cpu_step: int) -> None:
        for name, step in (("perf_counter_ns", wall_step), ("thread_time_ns", cpu_step)):
            monkeypatch.setattr(f"{DEVICES}.{name}", itertools.count(1_000_000, step).__next__)

    return replace


@pytest.mark.parametrize(
    ("kind", "threads", "clock"),
    [("cpu", 1, Clock.THREAD_CPU), ("cpu", 4, Clock.WALL), ("cuda", 4, Clock.CUDA_EVENT)],
)
def test_the_kind_and_the_threads_decide_the_clock(kind: str, threads: int, clock: Clock) -> None:
    assert device_of(kind, threads).clock is clock


@pytest.mark.parametrize(
    ("steps", "wall_s", "cpu_s"),
    [
        ((2_000_000, 500_300), 2e-3, 5e-4),
        ((-100, -250), -1e-7, -5.5e-7),  # no sample, for whoever takes them
    ],
)
def test_readings_are_in_seconds_without_the_cost_of_the_clock(
    clocks: Callable[[int, int], None], steps: tuple[int, int], wall_s: float, cpu_s: float
) -> None:
    clocks(100, 300)  # a reading costs 300 ns
    devices = CpuDevice(), CpuDevice(threads=2)
    clocks(*steps)
    one, several = (device.time(lambda: None, 1) for device in devices)
    assert (one.wall_s, one.cpu_s) == (pytest.approx(wall_s), pytest.approx(cpu_s))
    assert (several.wall_s, several.cpu_s) == (pytest.approx(wall_s), None)
    assert several.process_s is None


def test_work_of_another_thread_is_in_the_time_of_the_process() -> None:
    data = bytes(8 << 20)  # milliseconds of hashing, in which the calling thread waits
    with ThreadPoolExecutor(1) as pool:
        reading = CpuDevice().time(lambda: pool.submit(sha256, data).result(), 1)
    assert reading.process_s > 2 * reading.cpu_s


@pytest.mark.parametrize("step", [1, 40, 15_000_000])
def test_the_step_of_a_coarse_clock_is_its_resolution(
    clocks: Callable[[int, int], None], step: int
) -> None:
    device, several = CpuDevice(), CpuDevice(threads=2)
    clocks(step, 7)
    assert several.resolution_s == pytest.approx(step / 1e9)
    clocks(7, step)
    assert device.resolution_s == pytest.approx(step / 1e9)
