"""Cold latency: each call gets other inputs, or caches that were overwritten."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from factories.fake_device import ROOMY, FakeDevice, latency_of, measure
from torch import Tensor

from harness.measure.latency import Sampled, Sampler, TimedCall
from harness.records import ArmRole, Budget, Cache

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
