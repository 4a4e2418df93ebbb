"""What is handed to other threads is in the time all the same, and what is left to them is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure

from harness.measure.cpu import CpuDevice
from harness.measure.latency import Sampled
from harness.records import (
    ArmRole,
    Cache,
    Case,
    Clock,
    Latency,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.run.merge import merged

IDLE = "None"  # what a device that is given nothing to do is said to have called


def handing_over(others_s: dict[str, float]) -> Sampled:
    return measure(FakeDevice(others_s=others_s))


def of_arm(latency: Latency, role: ArmRole) -> tuple[float, ...]:
    arm = next(each for each in latency.arms if each.role is role)
    assert arm.cpu_s is not None
    return arm.cpu_s


def advice(sampled: Sampled) -> str | None:
    found = (each.advice for each in sampled.warnings if each.kind is WarningKind.OTHER_THREADS)
    return next(found, None)


# --- the clock -----------------------------------------------------------------------------------


def test_work_of_another_thread_is_in_the_time_of_the_process() -> None:
    data = bytes(8 << 20)  # milliseconds of hashing, in which the calling thread waits

    with ThreadPoolExecutor(1) as pool:
        reading = CpuDevice().time(lambda: pool.submit(sha256, data).result(), 1)
    assert reading.cpu_s is not None
    assert reading.process_s is not None
    assert reading.process_s > 2 * reading.cpu_s


def test_where_several_threads_are_asked_for_the_process_is_not_looked_at() -> None:
    assert CpuDevice(threads=2).time(lambda: None, 1).process_s is None


def test_an_implementation_that_works_alone_is_timed_by_its_thread() -> None:
    latency = latency_of(handing_over({}))
    assert latency.clock is Clock.THREAD_CPU
    assert latency.others_ratio == 0.0
    assert latency.per_call_s.value == pytest.approx(TIMES_S["subject"])


def test_where_nothing_is_read_of_other_threads_nothing_is_known() -> None:
    assert latency_of(measure(FakeDevice())).others_ratio is None


def test_an_implementation_that_hands_its_work_over_is_timed_by_the_whole_process() -> None:
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


@pytest.mark.parametrize(("others_s", "clock"), [(0.2e-6, "thread_cpu"), (0.5e-6, "process_cpu")])
def test_a_little_of_others_is_no_handing_over(others_s: float, clock: str) -> None:
    # a tenth of 3 us and what is added: the thread that prints, or the clock itself
    assert latency_of(handing_over({"subject": others_s})).clock == clock


@pytest.mark.parametrize(("others_s", "clock"), [(4e-6, "thread_cpu"), (6e-6, "process_cpu")])
def test_a_sample_of_one_short_call_varies_by_as_much(others_s: float, clock: str) -> None:
    sampled = measure(FakeDevice(others_s={"subject": others_s}), cache=Cache.FLUSHED)
    assert latency_of(sampled).clock == clock


# --- warnings ------------------------------------------------------------------------------------


def test_an_implementation_that_works_alone_has_no_warning() -> None:
    assert WarningKind.OTHER_THREADS not in kinds(handing_over({}))


def test_handing_over_is_said_with_what_the_wall_clock_shows() -> None:
    sampled = handing_over({"subject": 9e-6})
    assert latency_of(sampled).is_valid
    said = advice(sampled)
    assert said is not None
    assert "75 %" in said
    assert "1.50 times" in said


def test_without_a_reference_nothing_is_said_of_one() -> None:
    sampled = measure(FakeDevice(others_s={"subject": 9e-6}), ("subject", "copy"))
    said = advice(sampled)
    assert said is not None
    assert "reference" not in said


def test_waiting_for_a_thread_is_not_taken_for_a_busy_machine() -> None:
    device = FakeDevice(others_s={"subject": 9e-6}, waiting_ratio=4.0)
    assert WarningKind.NOISY not in kinds(measure(device))


def test_work_left_over_when_a_call_returns_makes_its_time_invalid() -> None:
    sampled = handing_over({"subject": 9e-6, IDLE: 1e-3})
    assert not latency_of(sampled).is_valid
    said = advice(sampled)
    assert said is not None
    assert WarningKind.FASTER_THAN_COPY not in kinds(sampled)


def test_threads_that_sleep_leave_nothing_over() -> None:
    assert latency_of(handing_over({"subject": 9e-6, IDLE: 4e-6})).is_valid


# --- several processes ---------------------------------------------------------------------------


def record_of(sampled: Sampled, *warnings: MeasurementWarning) -> Record:
    case = Case(implementation="one", shape=(4, 8))
    latency = latency_of(sampled)
    return Record(
        case=case, environment="here", status=Status.OK, latency=latency, warnings=warnings
    )


def test_a_process_that_handed_over_decides_the_clock_of_all() -> None:
    alone, handed = (record_of(handing_over(each)) for each in ({}, {"subject": 9e-6}))
    joined = merged([alone, handed, alone], ROOMY)
    assert joined.latency is not None
    assert joined.latency.clock is Clock.PROCESS_CPU
    assert joined.latency.others_ratio == pytest.approx(0.75)


def test_a_warning_of_one_process_is_one_of_all() -> None:
    warning = MeasurementWarning(kind=WarningKind.OTHER_THREADS, advice="seen in one")
    calm = handing_over({})
    assert warning in merged([record_of(calm), record_of(calm, warning)], ROOMY).warnings
