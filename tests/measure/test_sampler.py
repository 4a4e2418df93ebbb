"""The warm-up, the calls per sample, clocks that step back, and copies in other places."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch
from factories.fake_device import ROOMY, TIMES_S, FakeDevice, latency_of, measure
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.cases import LAYOUTS
from harness.measure.latency import SAMPLE_S, Sampler
from harness.measure.memory import copies_beyond, overwrite, relocate
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


# === Relocated copies equal the original in all but their address, and can be overwritten


KIB = 1024
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(7, 33), (1, 1), (2, 3, 5), (0, 5), (5, 0), (0,), (2, 0, 3)]


# --- another place -------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_relocated_tensor_differs_only_in_its_address(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...], far: bool
) -> None:
    tensor = LAYOUTS[layout](torch.randn(shape).to(dtype))
    moved = relocate(tensor, Random(0), far=far)
    assert torch.equal(moved, tensor)
    assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert not tensor.numel() or moved.data_ptr() != tensor.data_ptr()


@given(
    seed=st.integers(0, 10_000),
    offset=st.integers(0, 40),
    dtype=st.sampled_from(DTYPES),
    far=st.booleans(),
)
def test_a_relocated_tensor_keeps_its_offset_within_a_cache_line(
    seed: int, offset: int, dtype: torch.dtype, far: bool
) -> None:
    tensor = torch.zeros(100, dtype=dtype)[offset:]
    moved = relocate(tensor, Random(seed), far=far)
    assert moved.data_ptr() % 64 == offset * dtype.itemsize % 64


@pytest.mark.parametrize("far", [True, False])
def test_relocations_land_on_different_lines_of_a_page(far: bool) -> None:
    random, tensor = Random(3), torch.zeros(4, 4)
    places = {relocate(tensor, random, far=far).data_ptr() % 4096 for _ in range(50)}
    assert len(places) > 10


# --- other values in the same place --------------------------------------------------------------


def strided(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_overwriting_changes_the_values_and_keeps_the_address(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    first, other = (LAYOUTS[layout](torch.randn(shape).to(dtype)) for _ in range(2))
    placed = relocate(first, Random(0))
    before = strided(placed)
    overwrite(placed, other)
    assert torch.equal(placed, other)
    assert not first.numel() or not torch.equal(placed, first)
    assert strided(placed) == before


@pytest.mark.parametrize("layout", ["padded_rows", "every_second"])
def test_the_nan_between_the_elements_is_copied_and_kept(layout: str) -> None:
    placed = relocate(LAYOUTS[layout](torch.ones(4, 8)), Random(0))
    width = placed.stride(0)
    around = placed.as_strided((3, width), (width, 1))  # the last row's rest may be cut off
    assert around.isnan().sum() == 3 * (width - 8)
    overwrite(placed, LAYOUTS[layout](torch.zeros(4, 8)))
    assert around.isnan().sum() == 3 * (width - 8)


def test_overwriting_reaches_a_leaf_that_shares_the_memory() -> None:
    placed = relocate(torch.ones(3), Random(0))
    leaf = placed.detach().requires_grad_()
    overwrite(placed, torch.zeros(3))
    assert leaf.tolist() == [0, 0, 0]


# --- as many as a cache cannot hold --------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache_bytes", "touched_bytes", "free_bytes", "copies"),
    [
        (40 * KIB, 5 * KIB, None, 20),
        (40 * KIB, 6 * KIB, None, 17),  # rounded up: 16 of them are not beyond the cache
        (40 * KIB, 99 * KIB, None, 2),
        (40 * KIB, 0, None, 4096),
        (1 << 30, 1, None, 4096),
        (40 * KIB, 5 * KIB, 1 << 30, 20),
        (40 * KIB, 5 * KIB, 16 * 35 * KIB, 7),
        (40 * KIB, 5 * KIB, 0, 2),
    ],
)
def test_copies_are_two_and_a_half_times_the_cache_and_fit_into_memory(
    cache_bytes: int, touched_bytes: int, free_bytes: int | None, copies: int
) -> None:
    assert copies_beyond(cache_bytes, touched_bytes, free_bytes) == copies
