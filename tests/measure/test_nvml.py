"""NVML: each field is read by itself, and nothing is set."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import fields
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pynvml
import pytest
from factories.fake_cuda import UUID, Nvml

from harness.measure.devices import keep_open, read_condition
from harness.records import DeviceState

QUESTIONS = {
    "nvmlDeviceGetMaxClockInfo": "clock_max_hz",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetCurrentClocks": "throttled_by",
    "nvmlDeviceGetComputeRunningProcesses": "other_processes",
    "nvmlDeviceGetClockInfo": "clock_hz memory_clock_hz",
}
FULL = DeviceState(
    clock_hz=1980e6,
    clock_max_hz=1995e6,
    memory_clock_hz=3201e6,
    power_w=350.5,
    power_limit_w=700.0,
    temperature_c=41.0,
    throttled_by=(),
    other_processes=0,
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """One GPU, on which this process computes alone."""
    return Nvml(os.getpid()).installed(monkeypatch)


def with_reasons(monkeypatch: pytest.MonkeyPatch, reasons: int) -> tuple[str, ...] | None:
    Nvml(os.getpid(), reasons=reasons).installed(monkeypatch)
    return read_condition(UUID).throttled_by


def with_processes(monkeypatch: pytest.MonkeyPatch, *processes: int) -> int | None:
    Nvml(*processes).installed(monkeypatch)
    return read_condition(UUID).other_processes


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"], ids=["as in torch", "as in NVML"])
def test_the_condition_of_a_gpu_is_read_in_base_units(fake: Nvml, uuid: str) -> None:
    assert read_condition(uuid) == FULL
    assert fake.asked == [f"GPU-{UUID}"]


@pytest.mark.parametrize(
    ("uuid", "fails"),
    [
        ("f" * 36, set()),
        (None, set()),
        (UUID, {"nvmlInit"}),
        (UUID, {"nvmlDeviceGetHandleByUUID"}),
    ],
    ids=["unknown GPU", "no UUID", "no NVML", "no handle"],
)
def test_a_gpu_that_cannot_be_found_has_no_condition(
    fake: Nvml, uuid: str | None, fails: set[str]
) -> None:
    fake.fails = fails
    assert read_condition(uuid) == DeviceState()
    if "nvmlInit" in fails:
        keep_open(fake)
    assert fake.open == 0


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_field_that_cannot_be_read_is_none_and_the_others_are_read(
    fake: Nvml, question: str
) -> None:
    fake.fails = {answer for answer in fake.answers if answer.startswith(question)}
    condition = read_condition(UUID)
    unknown = {
        field.name
        for field in fields(DeviceState)
        if getattr(condition, field.name) != getattr(FULL, field.name)
    }
    assert unknown == set(QUESTIONS[question].split())
    assert {getattr(condition, field) for field in unknown} == {None}
    assert (fake.opened, fake.open) == (1, 0)


@pytest.mark.parametrize(
    ("newer", "field", "answer"),
    [
        ("nvmlDeviceGetTemperatureV", "temperature_c", 42.0),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttled_by", ("power brake",)),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "other_processes", 0),
    ],
)
def test_a_function_that_is_missing_or_fails_is_replaced_by_its_older_one(
    monkeypatch: pytest.MonkeyPatch, newer: str, field: str, answer: object
) -> None:
    for wanting in ("lacks", "fails"):
        fake = Nvml(os.getpid(), 1)
        setattr(fake, wanting, {newer})
        fake.installed(monkeypatch)
        assert getattr(read_condition(UUID), field) == answer


# --- throttling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SwPowerCap", "power cap"),
        ("HwSlowdown", "hardware slowdown"),
        ("SwThermalSlowdown", "thermal slowdown by the driver"),
        ("HwThermalSlowdown", "thermal slowdown by the hardware"),
        ("HwPowerBrakeSlowdown", "power brake"),
    ],
)
def test_each_reason_for_throttling_has_its_words(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
        assert with_reasons(monkeypatch, getattr(pynvml, prefix + name)) == (words,)


@pytest.mark.parametrize(
    "name",
    ["None", "GpuIdle", "ApplicationsClocksSetting", "SyncBoost", "DisplayClockSetting"],
)
def test_an_idle_gpu_and_a_chosen_clock_are_not_throttling(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reasons = getattr(pynvml, f"nvmlClocksEventReason{name}")
    assert with_reasons(monkeypatch, reasons) == ()
    assert with_reasons(monkeypatch, reasons | 0x04) == ("power cap",)


# --- other processes -----------------------------------------------------------------------------


ME, OTHER = os.getpid(), os.getpid() + 1


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ((ME,), 0),
        ((ME, OTHER, OTHER + 1), 2),
        ((OTHER, ME, OTHER, ME), 1),  # listed once per slice of the GPU
        ((OTHER,), None),  # this process is not listed
        ((), None),
    ],
)
def test_other_processes_are_counted_if_this_one_is_listed(
    monkeypatch: pytest.MonkeyPatch, processes: tuple[int, ...], others: int | None
) -> None:
    assert with_processes(monkeypatch, *processes) == others


def test_workers_of_the_same_run_are_not_counted_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with Popen([sys.executable, "-c", "input()"], stdin=PIPE) as sibling:
        # of the same parent, as a worker would find it
        assert with_processes(monkeypatch, os.getpid(), sibling.pid) == 1
        parent = SimpleNamespace(pid=os.getpid())
        monkeypatch.setattr("harness.measure.devices.parent_process", lambda: parent)
        assert with_processes(monkeypatch, os.getpid(), sibling.pid) == 0
        assert with_processes(monkeypatch, os.getpid(), sibling.pid, 2**30) == 1
        sibling.communicate(b"\n")


# --- opened, shut and never set ------------------------------------------------------------------


def test_nvml_is_shut_when_a_reading_fails_unexpectedly(fake: Nvml) -> None:
    fake.answers["nvmlDeviceGetPowerUsage"] = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        read_condition(UUID)
    assert fake.open == 0


def test_nvml_stays_open_while_its_owner_lives(fake: Nvml) -> None:
    class Owner:
        pass

    owner = Owner()
    keep_open(owner)
    read_condition(UUID)
    assert fake.open == 1
    del owner
    gc.collect()
    assert fake.open == 0


def test_the_fake_has_only_functions_of_the_binding(fake: Nvml) -> None:
    assert [answer for answer in fake.answers if not hasattr(pynvml, answer)] == []
