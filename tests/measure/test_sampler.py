"""The warm-up, the number of calls per sample, and clocks that do not move forward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, latency_of, measure

from harness.measure.latency import SAMPLE_S, Sampler
from harness.records import Budget, Cache, Clock, WarningKind

LIMIT_S = 2.0


def warmed_up(
    script: Callable[[str, int], float], cache: Cache = Cache.WARM, copies: int = 1
) -> tuple[Sampler, FakeDevice, int]:
    """Warm up the subject; return its sampler, its device and the number of calls made."""
    device = FakeDevice(script, makes_each=True)
    (subject,) = device.timed_calls("subject")
    sampler = Sampler(subject, device, cache)
    sampler.bind([()] * copies)
    return sampler, device, sampler.warm_up(LIMIT_S)


# --- when it is warm -----------------------------------------------------------------------------


def test_an_implementation_that_gets_faster_over_twenty_calls_is_warmed_until_it_settles() -> None:
    _, device, _ = warmed_up(lambda _, n: 1e-3 * 0.9 ** min(n, 20))
    alone = [calls for _, calls in device.sampled if calls == 1]
    assert len(alone) == 21 + 3


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        (lambda _, __: 1e-3, 1 + 3),
        (lambda _, n: 9e-3 if n % 2 else 1e-3, 1 + 3),  # a slower call does not count
        (lambda _, __: 3.0, 1),  # longer than the limit
    ],
    ids=["steady", "varying", "slow"],
)
def test_a_call_that_does_not_get_faster_is_warm_after_three_more(
    script: Callable[[str, int], float], calls: int
) -> None:
    assert warmed_up(script)[2] == calls


def test_a_slow_implementation_is_warmed_for_a_share_of_the_limit() -> None:
    _, device, made = warmed_up(lambda _, n: 0.09 * 0.9**n)  # it never settles
    assert device.now() < 0.1 * LIMIT_S + 0.09
    assert 2 <= made < 10


def test_with_many_copies_each_is_called_once_before_it_is_warm() -> None:
    _, device, made = warmed_up(lambda _, __: 1e-3, Cache.ROTATE, copies=50)
    assert made == 50
    assert len(set(device.called)) == 50


def test_a_turn_of_slow_calls_ends_at_the_limit() -> None:
    _, device, made = warmed_up(lambda _, __: 0.1, Cache.ROTATE, copies=4000)
    assert made == 20
    assert device.now() == pytest.approx(LIMIT_S)


def test_warm_up_calls_of_all_arms_are_recorded() -> None:
    device = FakeDevice(lambda _, n: 1e-3 * 0.9 ** min(n, 20))
    assert latency_of(measure(device)).warm_up_calls == 3 * (21 + 3)


# --- how many calls fill a sample ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_sample", "calls"), [(1, 1), (3, 3), (150, 150), (2000, 2000), (1 / 2, 1), (1 / 5000, 1)]
)
def test_as_many_calls_as_fill_a_sample_are_timed_at_once(per_sample: float, calls: int) -> None:
    assert warmed_up(lambda _, __: SAMPLE_S / per_sample)[0].calls == calls


def test_a_preempted_try_does_not_make_the_samples_short() -> None:
    # four calls find it warm, then come five tries of a fifth of a sample
    sampler, _, _ = warmed_up(lambda _, n: 1e-3 if n in range(4, 100) else SAMPLE_S / 150)
    assert sampler.calls == 150


# --- clocks that do not move forward -------------------------------------------------------------


def setting_back(*readings: int) -> Callable[[int], float]:
    """Set the clock back by an hour during these readings."""
    return lambda number: -3600.0 if number in readings else 0.0


def test_samples_with_a_clock_set_back_are_dropped_with_a_warning() -> None:
    clean = latency_of(measure(FakeDevice()))
    sampled = measure(FakeDevice(set_by_s=setting_back(100, 140)))
    assert latency_of(sampled).per_call_s.value == pytest.approx(clean.per_call_s.value)
    assert min(min(arm.wall_s) for arm in latency_of(sampled).arms) > 0
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.CLOCK_STEPPED
    assert "2 samples" in warning.advice


@pytest.mark.parametrize("reading", [0, 1, 3, 4, 8, 9, 13, 20, 26])
def test_a_clock_set_back_in_the_warm_up_does_not_change_the_samples(
    reading: int,
) -> None:
    sampled = measure(FakeDevice(set_by_s=setting_back(reading)))
    calls = {arm.name: arm.calls_per_sample for arm in latency_of(sampled).arms}
    assert calls == {name: round(SAMPLE_S / call_s) for name, call_s in TIMES_S.items()}


@pytest.mark.parametrize("clock", Clock)
def test_a_clock_that_only_goes_back_gives_no_latency(clock: Clock) -> None:
    sampled = measure(FakeDevice(clock=clock, set_by_s=lambda _: -1.0))
    assert sampled.latency is None
    (warning,) = sampled.warnings
    assert warning.kind is WarningKind.TOO_FEW_SAMPLES


def test_a_clock_that_goes_back_for_one_arm_gives_no_latency() -> None:
    device = FakeDevice()
    device.set_by_s = lambda _: -1.0 if device.called[-1][0] == "reference" else 0.0
    assert measure(device, budget=Budget(limit_s=1e9, max_epochs=4)).latency is None


def test_a_clock_set_forward_ends_the_sampling_early() -> None:
    device = FakeDevice(set_by_s=lambda number: 7200.0 if number == 100 else 0.0)
    latency = latency_of(measure(device, budget=Budget(limit_s=ROOMY.limit_s / 1e6)))
    assert latency.per_call_s.value == pytest.approx(3e-6)
