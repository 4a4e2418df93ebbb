"""Facts about the CPU and its machine are read, and None if they cannot be read."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from harness.measure import devices as cpu
from harness.measure.devices import CpuDevice
from harness.records import Allocation, Budget, Case, DeviceState, Measurement, Status
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
