"""Work of other threads is in the time, and work left over after a call makes it invalid."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure

from harness.measure.devices import CpuDevice
from harness.measure.latency import Sampled
from harness.records import (
    ArmRole,
    Cache,
    Case,
    Clock,
    Latency,
    Record,
    Status,
    WarningKind,
)
from harness.run.fleet import merged

IDLE = "None"  # the name of the idle call in the fake device


def handing_over(others_s: dict[str, float]) -> Sampled:
    return measure(FakeDevice(others_s=others_s))


def of_arm(latency: Latency, role: ArmRole) -> tuple[float, ...]:
    arm = next(arm for arm in latency.arms if arm.role is role)
    assert arm.cpu_s is not None
    return arm.cpu_s


def advice(sampled: Sampled) -> str | None:
    found = (
        warning.advice for warning in sampled.warnings if warning.kind is WarningKind.OTHER_THREADS
    )
    return next(found, None)


# --- the clock -----------------------------------------------------------------------------------


def test_work_of_another_thread_is_in_the_time_of_the_process() -> None:
    data = bytes(8 << 20)  # milliseconds of hashing, in which the calling thread waits

    with ThreadPoolExecutor(1) as pool:
        reading = CpuDevice().time(lambda: pool.submit(sha256, data).result(), 1)
    assert reading.cpu_s is not None
    assert reading.process_s is not None
    assert reading.process_s > 2 * reading.cpu_s


def test_an_implementation_of_one_thread_is_timed_by_that_thread() -> None:
    sampled = handing_over({})
    latency = latency_of(sampled)
    assert latency.clock is Clock.THREAD_CPU
    assert latency.others_ratio == 0.0
    assert latency.per_call_s.value == pytest.approx(TIMES_S["subject"])
    assert WarningKind.OTHER_THREADS not in kinds(sampled)
    assert latency_of(measure(FakeDevice())).others_ratio is None  # the process is not read


def test_an_implementation_of_several_threads_is_timed_by_the_process() -> None:
    latency = latency_of(handing_over({"subject": 9e-6}))
    assert latency.clock is Clock.PROCESS_CPU
    assert latency.per_call_s.value == pytest.approx(TIMES_S["subject"] + 9e-6)
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(6.0)  # 12 us over 2 us
    assert latency.others_ratio == pytest.approx(0.75)
    # of samples from before it was noticed, too
    for role, seconds in ((ArmRole.SUBJECT, 12e-6), (ArmRole.REFERENCE, 2e-6)):
        samples = of_arm(latency, role)
        assert samples == pytest.approx([seconds] * len(samples))


@pytest.mark.parametrize(
    ("others_s", "cache", "clock"),
    [
        (0.2e-6, Cache.WARM, "thread_cpu"),  # less than a tenth
        (0.5e-6, Cache.WARM, "process_cpu"),
        (4e-6, Cache.FLUSHED, "thread_cpu"),  # less than 5 us in a sample of one call
        (6e-6, Cache.FLUSHED, "process_cpu"),
    ],
)
def test_little_work_of_other_threads_is_ignored(others_s: float, cache: Cache, clock: str) -> None:
    sampled = measure(FakeDevice(others_s={"subject": others_s}), cache=cache)
    assert latency_of(sampled).clock == clock


# --- warnings ------------------------------------------------------------------------------------


def test_the_warning_about_other_threads_has_their_share() -> None:
    sampled = handing_over({"subject": 9e-6})
    assert latency_of(sampled).is_valid
    said = advice(sampled)
    assert said is not None
    assert "75 %" in said


def test_waiting_for_a_thread_is_not_taken_for_a_busy_machine() -> None:
    device = FakeDevice(others_s={"subject": 9e-6}, waiting_ratio=4.0)
    assert WarningKind.NOISY not in kinds(measure(device))


def test_work_left_over_after_a_call_makes_its_time_invalid() -> None:
    sampled = handing_over({"subject": 9e-6, IDLE: 1e-3})
    assert not latency_of(sampled).is_valid
    said = advice(sampled)
    assert said is not None
    assert WarningKind.FASTER_THAN_COPY not in kinds(sampled)
    assert latency_of(handing_over({"subject": 9e-6, IDLE: 4e-6})).is_valid


# --- several processes ---------------------------------------------------------------------------


def record_of(sampled: Sampled) -> Record:
    case = Case(implementation="one", shape=(4, 8))
    return Record(case=case, environment="here", status=Status.OK, latency=latency_of(sampled))


def test_one_process_with_other_threads_decides_the_clock_of_all() -> None:
    alone, handed = (record_of(handing_over(seconds)) for seconds in ({}, {"subject": 9e-6}))
    joined = merged([alone, handed, alone], ROOMY)
    assert joined.latency is not None
    assert joined.latency.clock is Clock.PROCESS_CPU
    assert joined.latency.others_ratio == pytest.approx(0.75)
