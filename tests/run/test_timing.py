"""The latency of a case and, where launching it takes long, of a replay of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import pytest
import torch
from fake_device import ROOMY, FakeDevice, latency_of

import implementations
from harness.inputs import make_inputs
from harness.measure import latency as latency_module
from harness.measure.latency import Sampled
from harness.measure.sampler import TimedCall
from harness.records import Allocation, Cache, Case, Clock, Direction
from harness.run import timing as module
from harness.run.timing import time_case

CASE = Case(implementation="native", shape=(16, 32))
TIMES_S = {
    "subject": 4e-6,
    "reference": 8e-6,
    "copy": 1e-6,
    "replayed subject": 3e-6,
    "replayed reference": 2e-6,
}


def timed(device: FakeDevice, case: Case = CASE, cache: Cache = Cache.WARM) -> Sampled:
    """Time a case on a device, whose timed_calls stand for those of the case."""

    def timed_calls_of(*_: object) -> list[TimedCall]:
        return device.timed_calls("subject", "reference", "copy")

    with (
        patch.object(module, "timed_calls_of", timed_calls_of),
        patch.object(latency_module, "perf_counter", device.now),
        torch.no_grad(),
    ):
        return time_case(
            implementations.find("native").function,
            case,
            make_inputs(case),
            device,
            ROOMY,
            allocation=Allocation.DEFAULT,
            compile_s=None,
            cache=cache,
        )


Gpu = Callable[..., FakeDevice]


@pytest.fixture
def gpu() -> Gpu:
    return partial(FakeDevice, lambda name, _: TIMES_S[name], kind="cuda", clock=Clock.CUDA_EVENT)


def names(device: FakeDevice) -> set[str]:
    return {name for name, _ in device.sampled}


# --- what is replayed ----------------------------------------------------------------------------


@pytest.mark.parametrize("launch_s", [2.1e-6, 9e-6])
def test_a_call_whose_launch_takes_long_is_replayed_beside_the_reference(
    gpu: Gpu, launch_s: float
) -> None:
    latency = latency_of(timed(gpu(launch_s=launch_s)))
    assert latency.per_call_s.value == pytest.approx(4e-6)
    assert latency.replay_s is not None
    assert latency.replay_s.value == pytest.approx(3e-6)
    assert latency.replay_ratio is not None
    assert latency.replay_ratio.value == pytest.approx(1.5)


@pytest.mark.parametrize("launch_s", [None, 1.9e-6])
def test_a_call_whose_launch_is_short_is_not_replayed(gpu: Gpu, launch_s: float | None) -> None:
    device = gpu(launch_s=launch_s)
    latency = latency_of(timed(device))
    assert (latency.replay_s, latency.replay_ratio) == (None, None)
    assert names(device) == {"subject", "reference", "copy"}


def test_a_copy_is_not_replayed(gpu: Gpu) -> None:
    device = gpu(launch_s=9e-6)
    timed(device)
    assert "replayed copy" not in names(device)


def test_what_cannot_be_recorded_has_no_replay_and_keeps_its_latency(gpu: Gpu) -> None:
    latency = latency_of(timed(gpu(launch_s=9e-6, replays=False)))
    assert (latency.replay_s, latency.replay_ratio) == (None, None)
    assert latency.launch_s == pytest.approx(9e-6)
    assert latency.per_call_s.value == pytest.approx(4e-6)


def test_a_replay_whose_clock_does_not_move_leaves_none_and_keeps_the_latency(gpu: Gpu) -> None:
    device = gpu(launch_s=9e-6)
    device.script = lambda name, _: 0.0 if name.startswith("replayed") else TIMES_S[name]
    latency = latency_of(timed(device))
    assert latency.replay_s is None
    assert latency.per_call_s.value == pytest.approx(4e-6)


def test_what_has_no_latency_is_not_replayed(gpu: Gpu) -> None:
    device = gpu(launch_s=9e-6)
    device.script = lambda _, __: 0.0
    assert timed(device).latency is None
    assert "replayed subject" not in names(device)


def test_a_replay_is_paid_for(gpu: Gpu) -> None:
    device = gpu(launch_s=9e-6)
    sampled = timed(device)
    assert sampled.sampling_s + sampled.warming_s == pytest.approx(device.now())


def test_arms_and_warnings_are_those_of_the_calls_and_not_of_the_replay(gpu: Gpu) -> None:
    sampled = timed(gpu(launch_s=9e-6))
    assert [each.name for each in latency_of(sampled).arms] == ["subject", "reference", "copy"]
    assert [each.kind for each in sampled.warnings] == ["launch_bound"]


# --- what a latency is told about its case -------------------------------------------------------


def test_bytes_that_must_move_and_bytes_that_are_copied_are_those_of_the_case() -> None:
    latency = latency_of(timed(FakeDevice(lambda name, _: TIMES_S[name])))
    x, width = 16 * 32 * 4, 32 * 4
    assert latency.model_bytes == 2 * x + 2 * width
    # a copy of x takes 1 us, the subject 4
    assert latency.ceiling_ratio == pytest.approx((2 * x + 2 * width) / (2 * x) / 4)


def test_a_case_without_elements_has_no_ceiling() -> None:
    case = Case(implementation="native", shape=(0, 5), direction=Direction.FORWARD)
    latency = latency_of(timed(FakeDevice(lambda name, _: TIMES_S[name]), case))
    assert latency.ceiling_ratio is None
    assert latency.is_valid


@pytest.mark.parametrize("cache", Cache)
def test_caches_are_as_asked(cache: Cache) -> None:
    device = FakeDevice(lambda name, _: TIMES_S[name])
    assert latency_of(timed(device, cache=cache)).cache is cache


def test_places_and_order_are_those_of_the_case_and_of_no_other() -> None:
    first, again, other = (FakeDevice(lambda name, _: TIMES_S[name]) for _ in range(3))
    timed(first)
    timed(again)
    timed(other, Case(implementation="native", shape=(16, 33)))
    assert first.sampled == again.sampled
    assert first.sampled != other.sampled
