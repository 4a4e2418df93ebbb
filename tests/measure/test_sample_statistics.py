"""Statistics of samples: what each estimate is, also with few samples."""

from __future__ import annotations

import math
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.sample_statistics import (
    EPOCH_QUANTILE,
    epoch_value,
    epoch_values,
    estimate,
    has_converged,
    median_estimate,
    ratio_estimate,
    ratios,
    t_quantile,
)
from harness.records import Arm, ArmRole, Budget, Estimate

durations = st.floats(1e-9, 1e3)
samples = st.lists(durations, min_size=1, max_size=60)


def arm(
    wall_s: tuple[float, ...], epochs: tuple[int, ...], cpu_s: tuple[float, ...] | None = None
) -> Arm:
    return Arm(
        role=ArmRole.SUBJECT,
        name="subject",
        calls_per_sample=1,
        wall_s=wall_s,
        cpu_s=cpu_s,
        epochs=epochs,
    )


# --- the figure of an epoch ----------------------------------------------------------------------


@given(samples)
def test_the_figure_of_an_epoch_is_numpys_quantile(values: list[float]) -> None:
    assert epoch_value(values) == pytest.approx(float(np.quantile(values, 0.10)), rel=1e-12)


def test_the_quantile_is_the_tenth_percent() -> None:
    assert EPOCH_QUANTILE == 0.10
    assert epoch_value(range(11)) == 1.0


def test_one_sample_is_its_own_figure() -> None:
    assert epoch_value([3e-6]) == 3e-6


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert epoch_value(shuffled) == epoch_value(values)


def test_preempted_samples_do_not_move_the_figure_of_an_epoch() -> None:
    calm = [1.0] * 8
    assert epoch_value([*calm, 500.0, 900.0]) == 1.0


def test_epochs_are_told_apart_however_their_samples_are_mixed() -> None:
    mixed = arm(wall_s=(1.0, 20.0, 3.0, 40.0), epochs=(0, 1, 0, 1))
    assert epoch_values(mixed, cpu=False) == [epoch_value([1.0, 3.0]), epoch_value([20.0, 40.0])]


def test_the_cpu_clock_is_used_when_it_is_asked_for() -> None:
    both = arm(wall_s=(9.0,), cpu_s=(2.0,), epochs=(0,))
    assert epoch_values(both, cpu=True) == [2.0]
    assert epoch_values(both, cpu=False) == [9.0]


def test_an_arm_without_cpu_times_has_no_cpu_figures() -> None:
    with pytest.raises(ValueError, match="subject was not timed by the CPU clock"):
        epoch_values(arm(wall_s=(1.0,), epochs=(0,)), cpu=True)


def test_a_sample_without_its_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        epoch_values(arm(wall_s=(1.0, 2.0), epochs=(0,)), cpu=False)


# --- Student's t ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # NIST/SEMATECH e-Handbook, 1.3.6.7.2
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (11, 2.201), (30, 2.042)],
)
def test_t_quantiles_are_those_of_the_printed_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == expected


def test_t_quantiles_fall_with_the_degrees_of_freedom() -> None:
    found = [t_quantile(degrees) for degrees in range(1, 31)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 30


def test_beyond_the_table_the_last_and_widest_value_serves() -> None:
    assert t_quantile(31) == t_quantile(10_000) == 2.042
    assert t_quantile(10_000) > 1.960  # the limit for infinitely many


@pytest.mark.parametrize("degrees", [0, -1])
def test_without_a_degree_of_freedom_nothing_is_known(degrees: int) -> None:
    assert t_quantile(degrees) == math.inf


# --- estimates -----------------------------------------------------------------------------------


def test_an_estimate_is_the_median_with_a_t_interval_of_the_logarithms() -> None:
    values = [math.exp(each) for each in (1.0, 2.0, 4.0)]
    half = 1.027 * 4.303 * stdev([1.0, 2.0, 4.0]) / math.sqrt(3)
    found = median_estimate(values)
    assert found.value == pytest.approx(math.exp(2.0))
    assert found.low == pytest.approx(math.exp(2.0 - half))
    assert found.high == pytest.approx(math.exp(2.0 + half))
    assert found.confidence == 0.95


@pytest.mark.parametrize("count", [2, 3, 5, 10, 24, 40])
def test_ninety_five_of_a_hundred_intervals_hold_the_centre(count: int) -> None:
    generator = np.random.default_rng(count)
    found = [median_estimate(np.exp(row)) for row in generator.standard_normal((12_000, count))]
    held = sum(each.low <= 1 <= each.high for each in found)
    assert 0.94 < held / len(found) < 0.96  # five standard errors


def test_of_an_even_number_the_median_is_the_geometric_mean_of_the_middle_two() -> None:
    assert median_estimate([1.0, 2.0, 8.0, 100.0]).value == pytest.approx(4.0)


def test_one_epoch_leaves_the_interval_unbounded() -> None:
    found = median_estimate([5e-6])
    assert found.value == pytest.approx(5e-6)
    assert found.low == 0.0
    assert found.high == math.inf


def test_equal_epochs_leave_an_interval_of_no_width() -> None:
    found = median_estimate([2e-6] * 4)
    assert found.low == pytest.approx(2e-6, rel=1e-12)
    assert found.high == pytest.approx(2e-6, rel=1e-12)


def test_one_disturbed_epoch_does_not_move_the_estimate() -> None:
    assert median_estimate([1.0, 1.0, 1.0, 1.0, 700.0]).value == pytest.approx(1.0)


@given(st.lists(durations, min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_scaling_all_samples_scales_the_estimate(values: list[float], factor: float) -> None:
    plain, scaled = median_estimate(values), median_estimate([each * factor for each in values])
    assert scaled.value == pytest.approx(plain.value * factor, rel=1e-9)
    if len(values) > 1 and plain.high < 1e200:
        assert scaled.low == pytest.approx(plain.low * factor, rel=1e-6)
        assert scaled.high == pytest.approx(plain.high * factor, rel=1e-6)


@given(st.lists(durations, min_size=2, max_size=20))
def test_the_interval_holds_the_estimate(values: list[float]) -> None:
    found = median_estimate(values)
    assert found.low <= found.value <= found.high


def test_a_ratio_is_taken_epoch_by_epoch() -> None:
    # a machine that slows down for everything at once: the ratio does not see it
    drift = [1.0, 2.0, 4.0, 8.0]
    found = ratio_estimate([3.0 * each for each in drift], drift)
    assert found.value == pytest.approx(3.0)
    assert found.low == pytest.approx(3.0)
    assert found.high == pytest.approx(3.0)


@given(st.lists(st.tuples(durations, durations), min_size=1, max_size=20))
def test_the_ratio_the_other_way_round_is_the_reciprocal(pairs: list[tuple[float, float]]) -> None:
    above, below = [each[0] for each in pairs], [each[1] for each in pairs]
    one, other = ratio_estimate(above, below), ratio_estimate(below, above)
    assert one.value * other.value == pytest.approx(1.0, rel=1e-9)


def test_arms_of_different_epochs_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratio_estimate([1.0, 2.0], [1.0])


def test_ratios_are_in_order_of_epoch() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


# --- several processes ---------------------------------------------------------------------------


def test_of_one_process_the_epochs_make_the_interval() -> None:
    values = [1.0, 2.0, 4.0]
    assert estimate(values) == median_estimate(values)
    assert estimate(values, (0, 0, 0)) == median_estimate(values)


def test_each_of_several_processes_is_one_value_the_median_of_its_epochs() -> None:
    values = [1.0, 3.0, 9.0, 20.0, 40.0, 5.0]
    assert estimate(values, (0, 0, 0, 1, 1, 2)) == median_estimate([
        3.0,
        math.exp((math.log(20) + math.log(40)) / 2),
        5.0,
    ])


def test_epochs_that_agree_within_a_process_do_not_narrow_what_processes_disagree_on() -> None:
    values = [1.0] * 100 + [1.2] * 100 + [1.1] * 100
    processes = [0] * 100 + [1] * 100 + [2] * 100
    alone, together = estimate(values), estimate(values, processes)
    assert together.high / together.low > 1.4
    assert alone.high / alone.low < 1.05


def test_two_processes_say_little_of_the_spread() -> None:
    found = estimate([1.0, 1.1], (0, 1))
    assert found.value == pytest.approx(math.sqrt(1.1))
    assert found.high / found.value == pytest.approx(math.exp(12.706 * math.log(1.1) / 2))


def test_a_process_with_more_epochs_counts_no_more_than_the_others() -> None:
    assert estimate([1.0] * 9 + [4.0, 2.0], (*[0] * 9, 1, 2)).value == pytest.approx(2.0)


@given(st.lists(st.tuples(durations, st.integers(0, 4)), min_size=1, max_size=30))
def test_the_order_of_epochs_does_not_matter(pairs: list[tuple[float, int]]) -> None:
    one = estimate([value for value, _ in pairs], [process for _, process in pairs])
    turned = sorted(pairs, key=lambda pair: pair[1])
    other = estimate([value for value, _ in turned], [process for _, process in turned])
    assert other.value == pytest.approx(one.value, rel=1e-9)
    assert other.low == pytest.approx(one.low, rel=1e-9)


def test_epochs_without_their_process_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        estimate([1.0, 2.0], (0,))


def test_a_ratio_over_processes_is_an_estimate_over_processes() -> None:
    above, below, processes = [2.0, 4.0, 9.0], [1.0, 2.0, 3.0], (0, 0, 1)
    assert ratio_estimate(above, below, processes) == estimate([2.0, 2.0, 3.0], processes)


# --- convergence ---------------------------------------------------------------------------------

BUDGET = Budget(target_ratio=0.01)


def interval(high: float) -> Estimate:
    return Estimate(value=1.0, low=0.0, high=high)


@pytest.mark.parametrize(
    ("high", "expected"), [(1.005, True), (1.02, False), (math.inf, False), (math.nan, False)]
)
def test_the_interval_of_the_ratio_has_to_be_narrow(high: float, expected: bool) -> None:
    assert has_converged(interval(math.inf), interval(high), BUDGET) is expected


@pytest.mark.parametrize(("high", "expected"), [(1.005, True), (1.02, False)])
def test_without_a_ratio_it_is_that_of_the_time(high: float, expected: bool) -> None:
    assert has_converged(interval(high), None, BUDGET) is expected
