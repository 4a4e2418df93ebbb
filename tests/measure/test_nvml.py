"""NVML: each field is read by itself, and nothing is ever set."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import fields
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pynvml
import pytest
from fake_cuda import UUID, Nvml

from harness.measure import nvml
from harness.measure.nvml import keep_open, read_condition
from harness.records import Condition

QUESTIONS = {
    "nvmlDeviceGetMaxClockInfo": "clock_max_hz",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetCurrentClocks": "throttled_by",
    "nvmlDeviceGetComputeRunningProcesses": "other_processes",
}
FULL = Condition(
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


def test_what_the_gpu_goes_through_is_read_in_base_units(fake: Nvml) -> None:
    assert read_condition(UUID) == FULL


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
def test_the_gpu_is_found_by_its_uuid_as_torch_or_nvml_write_it(fake: Nvml, uuid: str) -> None:
    read_condition(uuid)
    assert fake.asked == [f"GPU-{UUID}"]


def test_a_gpu_that_nvml_does_not_know_tells_nothing(fake: Nvml) -> None:
    assert read_condition("f" * 36) == Condition()
    assert fake.open == 0


def test_without_a_uuid_no_gpu_is_asked(fake: Nvml) -> None:
    assert read_condition(None) == Condition()
    assert fake.asked == []


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_without_nvml_all_is_unknown(fake: Nvml, call: str) -> None:
    fake.fails = {call}
    assert read_condition(UUID) == Condition()
    assert fake.open == 0


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_cannot_be_read_is_none_and_the_rest_is_read(fake: Nvml, question: str) -> None:
    fake.fails = {each for each in fake.answers if each.startswith(question)}
    condition = read_condition(UUID)
    unknown = {
        each.name
        for each in fields(Condition)
        if getattr(condition, each.name) != getattr(FULL, each.name)
    }
    assert unknown == {QUESTIONS[question]}
    assert getattr(condition, QUESTIONS[question]) is None
    assert fake.open == 0


def test_clocks_that_cannot_be_read_are_none(fake: Nvml) -> None:
    fake.fails = {"nvmlDeviceGetClockInfo"}
    condition = read_condition(UUID)
    assert (condition.clock_hz, condition.memory_clock_hz) == (None, None)
    assert condition.clock_max_hz == FULL.clock_max_hz


@pytest.mark.parametrize(
    ("newer", "field", "answer"),
    [
        ("nvmlDeviceGetTemperatureV", "temperature_c", 42.0),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttled_by", ("power brake",)),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "other_processes", 0),
    ],
)
def test_where_binding_or_driver_lacks_a_question_the_older_one_is_asked(
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
def test_a_reason_to_run_slower_is_given_in_words(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
        assert with_reasons(monkeypatch, getattr(pynvml, prefix + name)) == (words,)


def test_several_reasons_are_all_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_reasons(monkeypatch, 0x04 | 0x80) == ("power cap", "power brake")


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


def test_other_processes_are_counted_without_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    others = (os.getpid() + 1, os.getpid() + 2)
    assert with_processes(monkeypatch, os.getpid()) == 0
    assert with_processes(monkeypatch, os.getpid(), *others) == 2


def test_workers_of_the_same_run_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with Popen([sys.executable, "-c", "input()"], stdin=PIPE) as sibling:
        # of the same parent, as a worker would find it
        assert with_processes(monkeypatch, os.getpid(), sibling.pid) == 1
        parent = SimpleNamespace(pid=os.getpid())
        monkeypatch.setattr("harness.measure.nvml.parent_process", lambda: parent)
        assert with_processes(monkeypatch, os.getpid(), sibling.pid) == 0
        assert with_processes(monkeypatch, os.getpid(), sibling.pid, 2**30) == 1
        sibling.communicate(b"\n")


def test_a_process_is_counted_once_for_all_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getpid() + 1
    assert with_processes(monkeypatch, other, os.getpid(), other, os.getpid()) == 1


def test_other_processes_are_unknown_if_this_one_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert with_processes(monkeypatch, os.getpid() + 1) is None
    assert with_processes(monkeypatch) is None


# --- opened, shut and never set ------------------------------------------------------------------


def test_nvml_is_shut_as_often_as_it_was_opened(fake: Nvml) -> None:
    for _ in range(3):
        read_condition(UUID)
    assert (fake.opened, fake.open) == (3, 0)


def test_nvml_is_shut_when_a_reading_fails_unexpectedly(fake: Nvml) -> None:
    fake.answers["nvmlDeviceGetPowerUsage"] = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        read_condition(UUID)
    assert fake.open == 0


def test_nvml_stays_open_for_as_long_as_its_owner_lives(fake: Nvml) -> None:
    class Owner:
        pass

    owner = Owner()
    keep_open(owner)
    read_condition(UUID)
    assert fake.open == 1
    del owner
    gc.collect()
    assert fake.open == 0


def test_without_nvml_nothing_is_kept_open(fake: Nvml) -> None:
    fake.fails = {"nvmlInit"}
    keep_open(fake)
    assert fake.open == 0


def test_nothing_is_ever_set(fake: Nvml) -> None:
    assert "nvmlDeviceSet" not in Path(nvml.__file__).read_text()
    read_condition(UUID)  # in which a question that is none would have failed


def test_an_attempt_to_set_something_would_be_noticed(fake: Nvml) -> None:
    with pytest.raises(AssertionError, match="none of the questions"):
        fake.nvmlDeviceSetPowerManagementLimit("handle", 1)


def test_the_questions_are_those_of_the_binding(fake: Nvml) -> None:
    assert [each for each in fake.answers if not hasattr(pynvml, each)] == []
