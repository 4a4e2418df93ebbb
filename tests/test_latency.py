"""Latency: what the sampling makes of a device whose times are known beforehand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import torch
from fake_device import FakeDevice
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.inputs import LAYOUTS
from harness.measure import latency as module
from harness.measure.latency import Sampled, measure_latency, relocate
from harness.records import (
    Allocation,
    Arm,
    ArmRole,
    Budget,
    Clock,
    DoubtKind,
)
from harness.statistics import epoch_values, median_estimate, ratio_estimate

TIMES_S = {"subject": 3e-6, "reference": 2e-6, "copy": 1e-6}
ROOMY = Budget(target_ratio=0.01, min_epochs=4, max_epochs=12, limit_s=1e9)


def steady(name: str, number: int) -> float:
    """Every call of a name takes the same."""
    return TIMES_S[name]


def wobbling() -> FakeDevice:
    """Return a device on which every other place in memory makes the subject twice as slow."""
    device = FakeDevice(steady)

    def script(name: str, _: int) -> float:
        slow = name == "subject" and device.placements % 2 == 0
        return TIMES_S[name] * (2 if slow else 1)

    device.script = script
    return device


Measure = Callable[..., Sampled]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measure by the device's own clock, without page faults unless told otherwise."""

    def run(
        device: FakeDevice,
        names: tuple[str, ...] = ("subject", "reference", "copy"),
        budget: Budget = ROOMY,
        *,
        tensors: tuple[Tensor, ...] = (),
        faults: Callable[[], int] = lambda: 0,
        seed: int = 1,
        model_bytes: int = 1000,
        copied_bytes: int = 1000,
        compile_s: float | None = None,
    ) -> Sampled:
        monkeypatch.setattr(module, "perf_counter", device.now)
        monkeypatch.setattr(module, "_minor_faults", faults)
        return measure_latency(
            device.contenders(*names),
            tensors,
            device,
            budget,
            Random(seed),
            allocation=Allocation.STEADY,
            model_bytes=model_bytes,
            copied_bytes=copied_bytes,
            compile_s=compile_s,
        )

    return run


def kinds(sampled: Sampled) -> set[DoubtKind]:
    return {each.kind for each in sampled.doubts}


def arm_of(sampled: Sampled, role: ArmRole) -> Arm:
    return next(each for each in sampled.latency.arms if each.role is role)


def epochs_of(sampled: Sampled) -> int:
    return len(sampled.latency.process_of_epoch)


# --- estimates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.999, 1.0, 1.5, 40.0])
def test_the_ratio_that_the_device_was_told_is_recovered(measure: Measure, factor: float) -> None:
    device = FakeDevice(lambda name, _: 2e-6 * (factor if name == "subject" else 1.0))
    latency = measure(device).latency
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(factor)
    assert latency.per_call_s.value == pytest.approx(2e-6 * factor)


def test_a_machine_that_slows_down_does_not_move_the_ratio(measure: Measure) -> None:
    device = FakeDevice(lambda _, __: 0.0)

    def slowing(name: str, _: int) -> float:
        return TIMES_S[name] * (1 + 4 * device.now())

    device.script = slowing
    latency = measure(device).latency
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(1.5, rel=0.02)


def test_every_third_sample_preempted_leaves_the_ratio_as_it_was(measure: Measure) -> None:
    device = FakeDevice(lambda name, n: TIMES_S[name] * (1000 if n % 3 == 2 else 1))
    latency = measure(device).latency
    assert latency.reference_ratio is not None
    assert latency.reference_ratio.value == pytest.approx(1.5)


def test_estimates_are_those_of_the_samples_that_are_kept(measure: Measure) -> None:
    sampled = measure(wobbling())
    subject = epoch_values(arm_of(sampled, ArmRole.SUBJECT), cpu=True)
    reference = epoch_values(arm_of(sampled, ArmRole.REFERENCE), cpu=True)
    assert sampled.latency.per_call_s == median_estimate(subject)
    assert sampled.latency.reference_ratio == ratio_estimate(subject, reference)


def test_the_ceiling_is_the_time_of_a_copy_of_the_bytes_that_must_move(measure: Measure) -> None:
    latency = measure(FakeDevice(steady), model_bytes=4000, copied_bytes=2000).latency
    # a copy of as many bytes would take 2 us, the subject takes 3
    assert latency.ceiling_ratio == pytest.approx(2 / 3)
    assert latency.model_bytes == 4000


def test_where_nothing_is_copied_there_is_no_ceiling(measure: Measure) -> None:
    assert measure(FakeDevice(steady), copied_bytes=0).latency.ceiling_ratio is None
    without = measure(FakeDevice(steady), ("subject", "reference"))
    assert without.latency.ceiling_ratio is None


def test_without_a_reference_there_is_no_ratio_and_the_time_itself_converges(
    measure: Measure,
) -> None:
    sampled = measure(FakeDevice(steady), ("subject", "copy"))
    assert sampled.latency.reference_ratio is None
    assert sampled.latency.converged
    assert sampled.latency.per_call_s.value == pytest.approx(3e-6)


def test_a_device_without_a_cpu_clock_is_timed_by_the_wall(measure: Measure) -> None:
    device = FakeDevice(steady, clock=Clock.CUDA_EVENT, kind="cuda", waiting_ratio=2.0)
    sampled = measure(device)
    assert sampled.latency.clock is Clock.CUDA_EVENT
    assert arm_of(sampled, ArmRole.SUBJECT).cpu_s is None
    assert sampled.latency.per_call_s.value == pytest.approx(6e-6)


def test_what_it_is_told_is_recorded_with_the_result(measure: Measure) -> None:
    latency = measure(FakeDevice(steady), compile_s=1.25).latency
    assert latency.compile_s == 1.25
    assert latency.allocation is Allocation.STEADY
    assert latency.processes == 1
    assert {each.name for each in latency.arms} == {"subject", "reference", "copy"}


# --- sampling ------------------------------------------------------------------------------------


def rounds_of(device: FakeDevice, sampled: Sampled) -> list[tuple[str, ...]]:
    """Names in the order they were sampled, round by round; what sized the samples is left out."""
    names = [name for name, _ in device.sampled]
    count = sum(len(each.wall_s) for each in sampled.latency.arms)
    return [tuple(names[at : at + 3]) for at in range(len(names) - count, len(names), 3)]


def test_every_contender_is_sampled_once_in_every_round(measure: Measure) -> None:
    device = FakeDevice(steady)
    rounds = rounds_of(device, measure(device))
    assert len(rounds) >= 4 * ROOMY.min_epochs
    assert all(set(each) == set(TIMES_S) for each in rounds)


def test_the_order_within_a_round_changes(measure: Measure) -> None:
    device = FakeDevice(steady)
    assert len(set(rounds_of(device, measure(device)))) == 6


def test_every_arm_has_as_many_samples_in_every_epoch(measure: Measure) -> None:
    sampled = measure(FakeDevice(steady))
    counts = {tuple(sorted(Counter(each.epochs).items())) for each in sampled.latency.arms}
    assert len(counts) == 1
    assert all(count >= 4 for _, count in next(iter(counts)))


def test_the_same_seed_takes_samples_in_the_same_order(measure: Measure) -> None:
    one, other, third = FakeDevice(steady), FakeDevice(steady), FakeDevice(steady)
    measure(one, seed=1)
    measure(other, seed=1)
    measure(third, seed=2)
    assert one.sampled == other.sampled
    assert one.sampled != third.sampled


def test_short_calls_are_sampled_many_at_a_time(measure: Measure) -> None:
    device = FakeDevice(lambda name, _: 100e-9)
    sampled = measure(device)
    assert {each.calls_per_sample for each in sampled.latency.arms} == {1500}
    assert sampled.latency.per_call_s.value == pytest.approx(100e-9)


def test_a_long_call_is_sampled_alone(measure: Measure) -> None:
    sampled = measure(FakeDevice(lambda name, _: 0.02))
    assert {each.calls_per_sample for each in sampled.latency.arms} == {1}


def test_a_first_try_that_is_preempted_does_not_make_the_samples_short(measure: Measure) -> None:
    # the second untimed call is number 1: numbers 2 to 6 are tries
    device = FakeDevice(lambda name, n: 1e-3 if n in {2, 3, 4, 5} else 1e-6)
    sampled = measure(device)
    assert {each.calls_per_sample for each in sampled.latency.arms} == {150}


def test_time_within_samples_and_in_untimed_calls_is_accounted_for(measure: Measure) -> None:
    device = FakeDevice(steady, waiting_ratio=1.5)
    sampled = measure(device)
    walls = sum(sum(each.wall_s) * each.calls_per_sample for each in sampled.latency.arms)
    assert sampled.sampling_s == pytest.approx(walls)
    assert sampled.sampling_s + sampled.warming_s == pytest.approx(device.now())
    assert 0 < sampled.warming_s < sampled.sampling_s


# --- when it stops -------------------------------------------------------------------------------


def test_it_stops_at_the_fewest_epochs_when_the_interval_is_narrow(measure: Measure) -> None:
    sampled = measure(FakeDevice(steady))
    assert epochs_of(sampled) == ROOMY.min_epochs
    assert sampled.latency.converged
    assert DoubtKind.NOT_CONVERGED not in kinds(sampled)


def test_it_stops_at_the_most_epochs_when_the_interval_stays_wide(measure: Measure) -> None:
    budget = Budget(min_epochs=2, max_epochs=7, limit_s=1e9)
    sampled = measure(wobbling(), budget=budget)
    assert epochs_of(sampled) == 7
    assert not sampled.latency.converged
    assert DoubtKind.NOT_CONVERGED in kinds(sampled)


def test_it_stops_when_the_time_is_up(measure: Measure) -> None:
    budget = Budget(min_epochs=4, max_epochs=1000, limit_s=0.2)
    device = wobbling()
    sampled = measure(device, budget=budget)
    assert 1 < epochs_of(sampled) < 12
    assert device.now() < 0.3
    assert not sampled.latency.converged
    assert DoubtKind.NOT_CONVERGED in kinds(sampled)


def test_a_narrow_interval_over_too_few_epochs_is_not_convergence(measure: Measure) -> None:
    sampled = measure(FakeDevice(steady), budget=Budget(limit_s=0.0))
    assert epochs_of(sampled) == 1
    assert not sampled.latency.converged
    assert sampled.latency.per_call_s.high == float("inf")


def test_the_doubt_says_after_how_many_epochs(measure: Measure) -> None:
    sampled = measure(FakeDevice(steady), budget=Budget(limit_s=0.0))
    (doubt,) = sampled.doubts
    assert "wider than ±1.0% after 1 epochs" in doubt.advice


def test_a_guest_ten_thousand_times_slower_ends_within_its_time(measure: Measure) -> None:
    device = FakeDevice(lambda name, _: TIMES_S[name] * (10_000 if name == "subject" else 1))
    sampled = measure(device, budget=Budget(limit_s=2.0))
    assert device.now() < 2.5
    assert sampled.latency.reference_ratio is not None
    assert sampled.latency.reference_ratio.value == pytest.approx(15_000)


def test_a_guest_slower_than_the_whole_budget_is_sampled_once_and_doubted(
    measure: Measure,
) -> None:
    device = FakeDevice(lambda name, _: 3.0 if name == "subject" else 1e-6)
    sampled = measure(device, budget=Budget(limit_s=2.0))
    assert len(arm_of(sampled, ArmRole.SUBJECT).wall_s) == 1
    assert sampled.latency.per_call_s.value == pytest.approx(3.0)
    assert not sampled.latency.converged
    # two untimed calls, five to size the sample, one sample
    assert device.now() < 9 * 3.0


# --- doubts --------------------------------------------------------------------------------------


def test_a_calm_measurement_raises_no_doubt(measure: Measure) -> None:
    assert measure(FakeDevice(steady)).doubts == ()


@pytest.mark.parametrize(("waiting_ratio", "doubted"), [(1.0, False), (1.04, False), (1.3, True)])
def test_wall_time_beyond_cpu_time_is_noise(
    measure: Measure, waiting_ratio: float, doubted: bool
) -> None:
    sampled = measure(FakeDevice(steady, waiting_ratio=waiting_ratio))
    assert (DoubtKind.NOISY in kinds(sampled)) is doubted
    # it is the CPU time that is given
    assert sampled.latency.per_call_s.value == pytest.approx(3e-6)


def test_where_the_wall_is_the_clock_there_is_nothing_to_compare_it_with(measure: Measure) -> None:
    device = FakeDevice(steady, clock=Clock.WALL, waiting_ratio=3.0)
    assert DoubtKind.NOISY not in kinds(measure(device))


@pytest.mark.parametrize(("per_call", "doubted"), [(0.0, False), (0.5, False), (2.0, True)])
def test_a_page_fault_in_every_call_is_doubted(
    measure: Measure, per_call: float, doubted: bool
) -> None:
    device = FakeDevice(steady)

    def faults() -> int:
        return round(per_call * sum(calls for _, calls in device.sampled))

    sampled = measure(device, faults=faults)
    assert (DoubtKind.PAGE_FAULTS in kinds(sampled)) is doubted
    assert sampled.latency.minor_faults_ratio == pytest.approx(per_call, abs=1e-3)


def test_page_faults_outside_samples_are_not_counted(measure: Measure) -> None:
    device = FakeDevice(steady)
    untimed = itertools.count(0, 1_000_000)
    seen: dict[int, int] = {}

    def faults() -> int:
        # read before and after the samples of an epoch: a million come before each epoch
        reading = len(seen)
        seen[reading] = seen[reading - 1] if reading % 2 else next(untimed)
        return seen[reading]

    assert measure(device, faults=faults).latency.minor_faults_ratio == 0.0


@pytest.mark.parametrize(("copy_s", "doubted"), [(1e-6, False), (3.1e-6, False), (4e-6, True)])
def test_what_is_faster_than_a_copy_is_doubted(
    measure: Measure, copy_s: float, doubted: bool
) -> None:
    device = FakeDevice(lambda name, _: copy_s if name == "copy" else 3e-6)
    sampled = measure(device)
    assert (DoubtKind.FASTER_THAN_COPY in kinds(sampled)) is doubted


# --- places in memory ----------------------------------------------------------------------------

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (1, 1), (2, 3, 5)], ids=str)
def test_a_relocated_tensor_is_the_same_but_for_its_place(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = LAYOUTS[layout](torch.randn(shape).to(dtype))
    moved = relocate(tensor, Random(0))
    assert torch.equal(moved, tensor)
    assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert moved.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("layout", ["padded_rows", "every_second"])
def test_what_lies_between_the_elements_moves_with_them(layout: str) -> None:
    tensor = LAYOUTS[layout](torch.ones(4, 8))
    moved = relocate(tensor, Random(0))
    width = tensor.stride(0)
    around = moved.as_strided((3, width), (width, 1))  # the last row's rest may be cut off
    assert around.isnan().sum() == 3 * (width - 8)


@given(seed=st.integers(0, 10_000), offset=st.integers(0, 40), dtype=st.sampled_from(DTYPES))
def test_a_relocated_tensor_is_as_far_from_a_cache_line_as_before(
    seed: int, offset: int, dtype: torch.dtype
) -> None:
    tensor = torch.zeros(100, dtype=dtype)[offset:]
    moved = relocate(tensor, Random(seed))
    size = dtype.itemsize
    assert moved.data_ptr() % 64 == offset * size % 64


def test_relocations_land_on_different_lines_of_a_page() -> None:
    random, tensor = Random(3), torch.zeros(4, 4)
    places = {relocate(tensor, random).data_ptr() % 4096 for _ in range(50)}
    assert len(places) > 10


def test_the_original_is_left_alone() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    relocate(tensor, Random(0)).fill_(9)
    assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_tensor_can_be_relocated(layout: str, shape: tuple[int, ...]) -> None:
    tensor = LAYOUTS[layout](torch.empty(shape))
    moved = relocate(tensor, Random(0))
    assert moved.shape == tensor.shape
    assert moved.stride() == tensor.stride()


def test_each_epoch_has_its_inputs_in_a_new_place(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Tensor] = []  # kept, so that no place is free to be used again
    device = FakeDevice(steady)
    (subject,) = device.contenders("subject")

    def prepare(tensors: object) -> Callable[[], object]:
        held.extend(tensors)  # type: ignore[arg-type]
        return subject.prepare(())

    monkeypatch.setattr(module, "perf_counter", device.now)
    contender = module.Contender(ArmRole.SUBJECT, "subject", prepare)
    measure_latency(
        [contender],
        (torch.ones(8),),
        device,
        ROOMY,
        Random(0),
        allocation=Allocation.STEADY,
        model_bytes=64,
        copied_bytes=64,
    )
    assert len(held) == ROOMY.min_epochs
    assert len({each.data_ptr() for each in held}) == len(held)
