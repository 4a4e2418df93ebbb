"""Latencies sampled on a device with known times."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
import torch
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure
from torch import Tensor

from harness.measure.devices import POWER_CAP, CpuDevice
from harness.measure.latency import Sampled, Sampler, TimedCall
from harness.measure.sample_statistics import epoch_values, estimate, median_estimate, ratios
from harness.records import (
    Arm,
    ArmRole,
    Budget,
    Cache,
    Case,
    Clock,
    DeviceState,
    Latency,
    Record,
    Status,
    WarningKind,
)
from harness.run.fleet import merged


def wobbling() -> FakeDevice:
    """Return a device on which every other place in memory makes the subject twice as slow."""
    device = FakeDevice()

    def script(name: str, _: int) -> float:
        slow = name == "subject" and device.placements % 2 == 0
        return TIMES_S[name] * (2 if slow else 1)

    device.script = script
    return device


def arm_of(sampled: Sampled, role: ArmRole) -> Arm:
    return next(arm for arm in latency_of(sampled).arms if arm.role is role)


def epochs_of(sampled: Sampled) -> int:
    return len(latency_of(sampled).process_of_epoch)


# --- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.999, 1.0, 1.5, 40.0])
def test_the_true_ratio_is_recovered(factor: float) -> None:
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    latency = latency_of(measure(device))
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(factor)
    assert latency.per_call_s.value == pytest.approx(2e-6 * factor)


def test_a_machine_that_slows_down_does_not_move_the_ratio() -> None:
    device = FakeDevice()
    device.script = lambda name, _: TIMES_S[name] * (1 + 4 * device.now())
    latency = latency_of(measure(device))
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(1.5, rel=0.02)


def test_estimates_are_those_of_the_samples_that_are_kept() -> None:
    sampled = measure(wobbling())
    subject = epoch_values(arm_of(sampled, ArmRole.SUBJECT), cpu=True)
    reference = epoch_values(arm_of(sampled, ArmRole.REFERENCE), cpu=True)
    latency = latency_of(sampled)
    assert latency.reference_ratio is not None
    for found, expected in (
        (latency.per_call_s, median_estimate(subject)),
        (latency.reference_ratio, estimate(ratios(subject, reference))),
    ):
        ends = (expected.value, expected.low, expected.high)
        assert (found.value, found.low, found.high) == pytest.approx(ends)


def test_without_a_reference_the_time_converges() -> None:
    latency = latency_of(measure(FakeDevice(), ("subject", "copy")))
    assert (latency.reference, latency.reference_ratio) == (None, None)
    assert latency.converged
    assert latency.per_call_s.value == pytest.approx(3e-6)


def test_a_device_without_a_cpu_clock_is_timed_by_the_wall() -> None:
    device = FakeDevice(clock=Clock.CUDA_EVENT, kind="cuda", waiting_ratio=2.0)
    sampled = measure(device)
    assert latency_of(sampled).clock is Clock.CUDA_EVENT
    assert arm_of(sampled, ArmRole.SUBJECT).cpu_s is None
    assert latency_of(sampled).per_call_s.value == pytest.approx(6e-6)


def test_the_launch_time_is_recorded() -> None:
    device = FakeDevice(clock=Clock.CUDA_EVENT, launch_s=5e-6)
    assert latency_of(measure(device)).launch_s == pytest.approx(5e-6)
    assert latency_of(measure(FakeDevice())).launch_s is None


# --- sampling ------------------------------------------------------------------------------------


def rounds_of(device: FakeDevice, sampled: Sampled) -> list[tuple[str, ...]]:
    """Names in the order they were sampled, round by round; the warm-up is left out."""
    names = [name for name, _ in device.sampled]
    count = sum(len(arm.wall_s) for arm in latency_of(sampled).arms)
    return [tuple(names[at : at + 3]) for at in range(len(names) - count, len(names), 3)]


def test_every_arm_is_sampled_once_per_round_in_changing_order() -> None:
    device = FakeDevice()
    sampled = measure(device)
    rounds = rounds_of(device, sampled)
    assert len(rounds) >= 4 * ROOMY.min_epochs
    assert all(set(round) == set(TIMES_S) for round in rounds)
    assert len(set(rounds)) == 6
    counts = {tuple(Counter(arm.epochs).items()) for arm in latency_of(sampled).arms}
    assert len(counts) == 1


def test_sampling_and_warming_times_add_up() -> None:
    device = FakeDevice(waiting_ratio=1.5)
    sampled = measure(device)
    walls = sum(sum(arm.wall_s) * arm.calls_per_sample for arm in latency_of(sampled).arms)
    assert sampled.sampling_s == pytest.approx(walls)
    assert sampled.sampling_s + sampled.warming_s == pytest.approx(device.now())
    assert 0 < sampled.warming_s < sampled.sampling_s


@pytest.mark.parametrize(("faulty", "expected"), [("subject", 2.0), ("reference", 0.0)])
def test_page_faults_are_those_of_a_call_of_the_subject(faulty: str, expected: float) -> None:
    device = FakeDevice()

    def faults() -> int:
        return 2 * sum(calls for name, calls in device.sampled if name == faulty)

    found = latency_of(measure(device, faults=faults)).minor_faults_ratio
    assert found == pytest.approx(expected)


def test_page_faults_outside_samples_are_not_counted() -> None:
    device, seen = FakeDevice(), list[int]()

    def faults() -> int:
        seen.append(len(device.called))  # a million for each call that is not a sample
        return 1_000_000 * (len(device.called) - len(device.sampled))

    sampled = measure(device, faults=faults)
    assert latency_of(sampled).minor_faults_ratio == 0.0
    assert seen[-1] > seen[0]


def test_all_epochs_have_as_many_samples_where_the_time_allows() -> None:
    device = FakeDevice(lambda name, _: 20e-3)
    budget = Budget(min_epochs=4, max_epochs=4, limit_s=2.0)
    subject = latency_of(measure(device, budget=budget)).arms[0]
    assert {subject.epochs.count(epoch) for epoch in range(4)} == {4}


def test_each_epoch_has_its_inputs_in_a_new_place() -> None:
    device = FakeDevice()  # it holds what is bound, so that no place is free to be used again
    sampled = measure(device, ("subject",), tensors=(torch.ones(8),))
    (bound,) = device.prepared[-1][1]  # another tensor, which the call may change
    assert sampled.tensors[0] is not bound
    assert sampled.tensors[0].data_ptr() == bound.data_ptr()
    places = {tensor.data_ptr() for _, (tensor,) in device.prepared}
    assert len(places) == len(device.prepared) == ROOMY.min_epochs


# --- when it stops -------------------------------------------------------------------------------


def test_sampling_stops_at_min_epochs_when_the_interval_is_narrow() -> None:
    sampled = measure(FakeDevice())
    assert epochs_of(sampled) == ROOMY.min_epochs
    assert latency_of(sampled).converged
    assert WarningKind.NOT_CONVERGED not in kinds(sampled)


def test_sampling_stops_at_max_epochs_when_the_interval_stays_wide() -> None:
    sampled = measure(wobbling(), budget=Budget(min_epochs=2, max_epochs=7, limit_s=1e9))
    assert epochs_of(sampled) == 7
    assert not latency_of(sampled).converged
    assert WarningKind.NOT_CONVERGED in kinds(sampled)


def test_sampling_stops_when_the_time_is_up() -> None:
    device = wobbling()
    sampled = measure(device, budget=Budget(min_epochs=4, max_epochs=1000, limit_s=0.2))
    assert 4 <= epochs_of(sampled) < 12
    assert device.now() < 0.3
    assert WarningKind.NOT_CONVERGED in kinds(sampled)


def test_a_single_epoch_has_not_converged_and_an_infinite_interval() -> None:
    sampled = measure(FakeDevice(), budget=Budget(limit_s=0.0))
    assert epochs_of(sampled) == 1
    assert not latency_of(sampled).converged
    assert latency_of(sampled).per_call_s.high == float("inf")
    assert kinds(sampled) == {WarningKind.TOO_FEW_SAMPLES}


@pytest.mark.parametrize("cache", Cache)
def test_an_implementation_ten_thousand_times_slower_ends_within_its_time(cache: Cache) -> None:
    device = FakeDevice(lambda name, _: TIMES_S[name] * (10_000 if name == "subject" else 1))
    sampled = measure(device, budget=Budget(limit_s=2.0), cache=cache, model_bytes=1)
    assert device.now() < (5.0 if cache is Cache.ROTATE else 2.5)  # a turn of all copies, once
    assert latency_of(sampled).reference_ratio is not None
    assert latency_of(sampled).per_call_s.value == pytest.approx(0.03)


@pytest.mark.parametrize("cache", Cache)
def test_an_implementation_slower_than_the_budget_is_sampled_once_with_a_warning(
    cache: Cache,
) -> None:
    device = FakeDevice(lambda name, _: 3.0 if name == "subject" else 1e-6)
    sampled = measure(device, budget=Budget(limit_s=2.0), cache=cache)
    assert len(arm_of(sampled, ArmRole.SUBJECT).wall_s) == 1
    assert latency_of(sampled).per_call_s.value == pytest.approx(3.0)
    assert WarningKind.TOO_FEW_SAMPLES in kinds(sampled)
    assert device.now() < 4 * 3.0


# === Which samples count and which times are valid: throttled devices, and the fastest copy


# --- throttled epochs ----------------------------------------------------------------------------


def throttled(*reasons: str) -> DeviceState:
    return DeviceState(throttled_by=reasons)


def test_throttled_epochs_are_dropped_measured_again_and_counted() -> None:
    # read twice before the first epoch, and after each
    asked = iter([throttled(), throttled(), throttled(), throttled("hot"), throttled("hot")])
    now = [throttled()]
    device = FakeDevice(lambda name, _: TIMES_S[name] * (5 if now[0].throttled_by else 1))

    def state(_: float) -> DeviceState:
        was, now[0] = now[0], next(asked, throttled())
        return was

    device.state = state
    sampled = measure(device)
    assert latency_of(sampled).throttled_epochs == 2
    assert len(latency_of(sampled).process_of_epoch) == ROOMY.min_epochs
    subject = latency_of(sampled).arms[0]
    assert subject.role is ArmRole.SUBJECT
    assert max(subject.wall_s) == pytest.approx(3e-6)
    # which it was in the midst of the samples only
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.THROTTLED
    assert "2 epochs" in warning.advice
    assert "(hot)" in warning.advice


def test_a_device_that_is_always_throttled_has_no_latency() -> None:
    device = FakeDevice(state=lambda _: throttled(POWER_CAP, "hot"))
    sampled = measure(device)
    assert sampled.latency is None
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.TOO_FEW_SAMPLES
    assert "(hot, power cap)" in warning.advice
    assert device.now() < 3 * ROOMY.max_epochs * 0.03


def test_a_lasting_power_cap_drops_no_epoch_and_is_a_warning() -> None:
    sampled = measure(FakeDevice(state=lambda _: throttled(POWER_CAP)))
    latency = latency_of(sampled)
    assert (latency.throttled_epochs, len(latency.process_of_epoch)) == (0, ROOMY.min_epochs)
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.THROTTLED
    assert warning.advice.startswith("the device was throttled (power cap)")


# --- the fastest copy is the ceiling -------------------------------------------------------------


def test_the_ceiling_is_the_time_of_a_copy_of_the_bytes_that_must_move() -> None:
    latency = latency_of(measure(FakeDevice(), model_bytes=4000, copied_bytes=2000))
    # a copy of as many bytes would take 2 us, the subject takes 3
    assert latency.ceiling_ratio == pytest.approx(2 / 3)
    assert latency.model_bytes == 4000
    assert latency_of(measure(FakeDevice(), copied_bytes=0)).ceiling_ratio is None
    assert latency_of(measure(FakeDevice(), ("subject", "reference"))).ceiling_ratio is None


@pytest.mark.parametrize(("copy_s", "kept"), [(1e-6, "copy"), (3e-6, "other copy")])
def test_the_faster_of_two_copies_is_kept(copy_s: float, kept: str) -> None:
    times_s = {**TIMES_S, "copy": copy_s, "other copy": 2e-6}
    device = FakeDevice(lambda name, _: times_s[name])
    sampled = measure(device, ("subject", "reference", "copy", "other copy"))
    assert [arm.name for arm in latency_of(sampled).arms] == ["subject", "reference", kept]
    assert latency_of(sampled).ceiling_ratio == pytest.approx(times_s[kept] / 3e-6)


@pytest.mark.parametrize(("copy_s", "valid"), [(1e-6, True), (3.1e-6, True), (4e-6, False)])
def test_a_time_below_that_of_a_copy_is_invalid_with_a_warning(copy_s: float, valid: bool) -> None:
    sampled = measure(FakeDevice(lambda name, _: copy_s if name == "copy" else 3e-6))
    assert latency_of(sampled).is_valid is valid
    assert (WarningKind.FASTER_THAN_COPY in kinds(sampled)) is not valid


def test_a_time_below_that_of_a_copy_by_less_than_the_noise_is_valid() -> None:
    device = FakeDevice()

    def script(name: str, _: int) -> float:
        fast = name == "subject" and device.placements % 2
        return 1e-6 if fast else 3e-6 if name == "subject" else 2e-6

    device.script = script
    sampled = measure(device, budget=Budget(min_epochs=4, max_epochs=4, limit_s=1e9))
    latency = latency_of(sampled)
    assert latency.ceiling_ratio is not None
    assert latency.ceiling_ratio > 1.05
    assert latency.is_valid
    assert WarningKind.FASTER_THAN_COPY not in kinds(sampled)


# === Work of other threads is in the time, and work left over after a call makes it invalid


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


# === Cold latency: each call gets other inputs, or caches that were overwritten


KIB = 1024
CALL_S = 40e-6  # four calls a sample
TENSORS = (torch.ones(64),)


def rotated(device: FakeDevice, model_bytes: int, budget: Budget = ROOMY) -> Sampled:
    device.script, device.makes_each = lambda _, __: CALL_S, True
    return measure(
        device, tensors=TENSORS, model_bytes=model_bytes, cache=Cache.ROTATE, budget=budget
    )


def places_of(device: FakeDevice, name: str) -> list[int]:
    """Return the indices in ``device.prepared`` of the inputs bound for a name."""
    return [place for place, (bound, _) in enumerate(device.prepared) if bound == name]


# --- inputs of their own in turn -----------------------------------------------------------------


def test_every_arm_has_more_copies_than_the_cache_holds() -> None:
    device = FakeDevice(cache=40 * KIB)
    assert latency_of(rotated(device, model_bytes=5 * KIB)).cache is Cache.ROTATE
    for name in ("subject", "reference", "copy"):
        assert len(places_of(device, name)) == 2.5 * 40 / 5
    held = [tensor.data_ptr() for _, (tensor,) in device.prepared]
    assert len(set(held)) == len(held) == 3 * 20


def test_each_call_takes_the_next_copy_and_the_first_again_after_the_last() -> None:
    device = FakeDevice(cache=40 * KIB)
    rotated(device, model_bytes=5 * KIB)
    for name in ("subject", "reference", "copy"):
        there = places_of(device, name)
        called = [place for who, place in device.called if who == name]
        assert len(called) > 10 * len(there)
        assert called == [there[number % len(there)] for number in range(len(called))]


def test_a_few_large_copies_move_in_every_epoch_and_are_warmed_for_one_turn() -> None:
    device = FakeDevice(cache=40 * KIB)
    latency = latency_of(rotated(device, model_bytes=20 * KIB))
    epochs = len(latency.process_of_epoch)
    assert len(places_of(device, "subject")) == 5 * epochs
    later = places_of(device, "subject")[5:10]
    calls = [place for name, place in device.called if name == "subject" and place in later]
    timed = latency.arms[0].epochs.count(1)
    assert len(calls) == 5 + timed * latency.arms[0].calls_per_sample


def test_copies_are_made_while_there_is_time_but_at_least_two() -> None:
    device = FakeDevice(cache=40 * KIB)
    prepare = device._prepare

    def slow(name: str) -> Callable[[Sequence[Tensor]], Callable[[], object]]:
        inner = prepare(name)

        def preparing(tensors: Sequence[Tensor]) -> Callable[[], object]:
            device._now_s += 0.3 if name == "subject" else 3.0 if name == "copy" else 0.0
            return inner(tensors)

        return preparing

    device._prepare = slow  # type: ignore[method-assign]
    rotated(device, 5 * KIB, Budget(limit_s=1.0))
    found = [len(places_of(device, name)) for name in ("subject", "reference", "copy")]
    assert found == [4, 20, 2]


class Result:
    """An object that can be referred to weakly."""


@pytest.mark.parametrize(("cache", "copies", "held"), [(Cache.ROTATE, 3, 3), (Cache.WARM, 1, 0)])
def test_cold_results_are_held_for_one_turn(cache: Cache, copies: int, held: int) -> None:
    alive: weakref.WeakSet[Result] = weakref.WeakSet()
    made: list[weakref.ref[Result]] = []

    def prepare(_: Sequence[Tensor]) -> Callable[[], object]:
        def call() -> Result:
            result = Result()
            alive.add(result)
            made.append(weakref.ref(result))
            return result

        return call

    sampler = Sampler(TimedCall(ArmRole.SUBJECT, "subject", prepare), FakeDevice(), cache)
    sampler.bind([()] * copies)
    for number in range(7):
        sampler.call()
        assert len(alive) == min(number + 1, held)
    assert [reference() is None for reference in made] == [True] * (7 - held) + [False] * held


# --- caches that were overwritten ----------------------------------------------------------------


def test_the_caches_are_overwritten_before_every_sample() -> None:
    device = FakeDevice()
    latency = latency_of(measure(device, cache=Cache.FLUSHED))
    samples = sum(len(arm.wall_s) for arm in latency.arms)
    assert {arm.calls_per_sample for arm in latency.arms} == {1}
    timed = device.sampled[-2 * samples :]
    assert {name for name, _ in timed[::2]} == {"evict"}
    assert all(name in {"subject", "reference", "copy"} for name, _ in timed[1::2])
    assert sum(name == "evict" for name, _ in device.sampled) == samples
    warm = FakeDevice()
    measure(warm)
    assert ("evict", 0) not in warm.sampled
