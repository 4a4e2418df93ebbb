"""Latencies sampled on a device with known times."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, kinds, latency_of, measure

from harness.measure.latency import Sampled
from harness.measure.sample_statistics import epoch_values, estimate, median_estimate, ratios
from harness.records import (
    Arm,
    ArmRole,
    Budget,
    Cache,
    Clock,
    WarningKind,
)


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
    assert sampled.tensors is device.prepared[-1][1]
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
