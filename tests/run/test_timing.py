"""The latency of a case and, where its launch takes long, of its replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import pytest
import torch
from factories.fake_device import ROOMY, FakeDevice, latency_of

import implementations
from harness.cases import make_inputs
from harness.measure import latency as latency_module
from harness.measure.latency import Sampled, TimedCall
from harness.records import Allocation, Cache, Case, Clock, Direction, Status
from harness.run import timing as module
from harness.run.attempt import Judged
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
    """Time a case on a device, with the timed calls of the device instead of those of the case."""

    def timed_calls_of(*_: object) -> list[TimedCall]:
        return device.timed_calls("subject", "reference", "copy")

    with (
        patch.object(module, "timed_calls_of", timed_calls_of),
        patch.object(latency_module, "perf_counter", device.now),
        torch.no_grad(),
    ):
        return time_case(
            Judged(case=case, status=Status.OK, function=implementations.find("native").function),
            make_inputs(case),
            device,
            ROOMY,
            allocation=Allocation.DEFAULT,
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
def test_a_call_with_a_long_launch_is_replayed_with_the_reference(
    gpu: Gpu, launch_s: float
) -> None:
    device = gpu(launch_s=launch_s)
    latency = latency_of(timed(device))
    assert "replayed copy" not in names(device)
    assert latency.per_call_s.value == pytest.approx(4e-6)
    assert latency.replay_s is not None
    assert latency.replay_s.value == pytest.approx(3e-6)
    assert latency.replay_ratio is not None
    assert latency.replay_ratio.value == pytest.approx(1.5)


@pytest.mark.parametrize("launch_s", [None, 1.9e-6])
def test_a_call_with_a_short_launch_is_not_replayed(gpu: Gpu, launch_s: float | None) -> None:
    device = gpu(launch_s=launch_s)
    latency = latency_of(timed(device))
    assert (latency.replay_s, latency.replay_ratio) == (None, None)
    assert names(device) == {"subject", "reference", "copy"}


def test_a_call_without_a_latency_is_not_replayed(gpu: Gpu) -> None:
    device = gpu(launch_s=9e-6)
    device.script = lambda _, __: 0.0
    assert timed(device).latency is None
    assert "replayed subject" not in names(device)


def test_arms_and_warnings_are_those_of_the_calls_and_the_replay_is_accounted_for(gpu: Gpu) -> None:
    device = gpu(launch_s=9e-6)
    sampled = timed(device)
    assert [arm.name for arm in latency_of(sampled).arms] == ["subject", "reference", "copy"]
    assert [warning.kind for warning in sampled.warnings] == ["launch_bound"]
    assert sampled.sampling_s + sampled.warming_s == pytest.approx(device.now())


@pytest.mark.parametrize("can_record", [False, True])
def test_a_failed_replay_leaves_the_latency(gpu: Gpu, can_record: bool) -> None:
    """It fails if the call cannot be recorded, or if the clock stands still in the replay."""
    device = gpu(launch_s=9e-6, replays=can_record)
    device.script = lambda name, _: 0.0 if name.startswith("replayed") else TIMES_S[name]
    latency = latency_of(timed(device))
    assert (latency.replay_s, latency.replay_ratio) == (None, None)
    assert latency.launch_s == pytest.approx(9e-6)
    assert latency.per_call_s.value == pytest.approx(4e-6)


# --- figures of the case -------------------------------------------------------------------------


def test_bytes_that_must_move_and_bytes_that_are_copied_are_those_of_the_case() -> None:
    latency = latency_of(timed(FakeDevice(lambda name, _: TIMES_S[name])))
    x, width = 16 * 32 * 4, 32 * 4
    assert latency.model_bytes == 2 * x + 2 * width
    # a copy of x takes 1 us, the subject 4
    assert latency.ceiling_ratio == pytest.approx((2 * x + 2 * width) / (2 * x) / 4)
    empty = Case(implementation="native", shape=(0, 5), direction=Direction.FORWARD)
    latency = latency_of(timed(FakeDevice(lambda name, _: TIMES_S[name]), empty))
    assert latency.ceiling_ratio is None
    assert latency.is_valid


def test_the_order_of_samples_depends_on_the_case() -> None:
    first, again, other = (FakeDevice(lambda name, _: TIMES_S[name]) for _ in range(3))
    timed(first)
    timed(again)
    timed(other, Case(implementation="native", shape=(16, 33)))
    assert first.sampled == again.sampled
    assert first.sampled != other.sampled
