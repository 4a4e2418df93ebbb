"""Statistics of samples, also of few samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure import (
    LEAST_SPREAD,
    epoch_value,
    epoch_values,
    estimate,
    has_converged,
    median_estimate,
    median_quantile,
    ratios,
    t_quantile,
    unevenness,
)
from harness.records import Arm, ArmRole, Budget, Estimate

BUDGET = Budget(target_ratio=0.01)
durations = st.floats(1e-9, 1e3)


def arm(wall_s: tuple[float, ...], epochs: tuple[int, ...], role: ArmRole = ArmRole.SUBJECT) -> Arm:
    return Arm(
        role=role,
        name=str(role),
        calls_per_sample=1,
        wall_s=wall_s,
        cpu_s=None,
        epochs=epochs,
    )


def bounds_of(found: Estimate) -> tuple[float, float, float]:
    return found.low, found.value, found.high


# --- from samples to an estimate -----------------------------------------------------------------


@given(st.lists(durations, min_size=1, max_size=60))
def test_the_value_of_an_epoch_is_its_tenth_percentile(values: list[float]) -> None:
    assert epoch_value(values) == pytest.approx(float(np.quantile(values, 0.10)), rel=1e-12)


def test_samples_are_grouped_by_epoch_in_any_order() -> None:
    mixed = arm(wall_s=(1.0, 20.0, 3.0, 40.0), epochs=(0, 1, 0, 1))
    assert epoch_values(mixed, cpu=False) == [epoch_value([1.0, 3.0]), epoch_value([20.0, 40.0])]
    assert epoch_values(mixed, cpu=False, mean=True) == [2.0, 30.0]


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # NIST/SEMATECH e-Handbook, 1.3.6.7.2; beyond the table, its last and widest value
    [
        *((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (11, 2.201)),
        *((30, 2.042), (10_000, 2.042), (0, math.inf)),
    ],
)
def test_t_quantiles_are_those_of_the_printed_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == expected


def test_an_estimate_is_the_median_with_a_t_interval_of_the_logarithms() -> None:
    half = 1.027 * 4.303 * stdev([1.0, 2.0, 4.0]) / math.sqrt(3)
    expected = [math.exp(2.0 + shift) for shift in (-half, 0, half)]
    found = estimate([math.exp(factor) for factor in (1.0, 2.0, 4.0)])
    assert bounds_of(found) == pytest.approx(tuple(expected))
    assert found.confidence == 0.95
    assert estimate([1.0, 2.0, 8.0, 100.0]).value == pytest.approx(4.0)  # geometric mean


@pytest.mark.parametrize("count", [2, 3, 5, 10, 24, 40])
def test_95_percent_of_the_intervals_hold_the_centre(count: int) -> None:
    generator = np.random.default_rng(count)
    found = [median_estimate(np.exp(row)) for row in generator.standard_normal((12_000, count))]
    held = sum(interval.low <= 1 <= interval.high for interval in found)
    assert 0.94 < held / len(found) < 0.96  # five standard errors


def test_a_ratio_is_taken_epoch_by_epoch() -> None:
    # a machine that slows down for everything at once: the ratio does not see it
    drift = [1.0, 2.0, 4.0, 8.0]
    found = estimate(ratios([3.0 * value for value in drift], drift))
    assert bounds_of(found) == pytest.approx((3.0, 3.0, 3.0))


# --- several processes ---------------------------------------------------------------------------


def test_each_of_several_processes_counts_as_the_median_of_its_epochs() -> None:
    values = [1.0, 3.0, 9.0, 20.0, 40.0, 5.0]
    centres = [3.0, math.exp((math.log(20) + math.log(40)) / 2), 5.0]
    assert estimate(values, (0, 0, 0, 1, 1, 2)) == median_estimate(centres)
    assert estimate(values, (0,) * 6) == estimate(values) == median_estimate(values)


def test_processes_that_agree_count_as_if_they_spread_a_little() -> None:
    narrow = estimate([1.0] * 5, range(5))
    half = median_quantile(5) * LEAST_SPREAD / math.sqrt(5)
    assert math.log(narrow.high) == pytest.approx(half)
    assert has_converged(narrow, narrow, BUDGET)
    assert not has_converged(*[estimate([1.0] * 4, range(4))] * 2, BUDGET)


def test_where_few_processes_agree_by_chance_the_interval_still_covers() -> None:
    """Processes are added from five on until the interval is narrow, as a run does."""
    held = narrow = 0
    for row in np.exp(0.01 * np.random.default_rng(1).standard_normal((2000, 10))).tolist():
        for number in range(5, 11):
            found = estimate(row[:number], range(number))
            if has_converged(found, found, BUDGET):
                narrow += 1
                held += found.low <= 1 <= found.high
                break
    assert narrow > 1500
    assert 0.94 < held / narrow < 0.99  # from three on, and without a least spread: 0.91


def test_many_epochs_do_not_narrow_the_interval_across_processes() -> None:
    values = [1.0] * 100 + [1.2] * 100 + [1.1] * 100
    alone, together = estimate(values), estimate(values, [0] * 100 + [1] * 100 + [2] * 100)
    assert together.high / together.low > 1.4
    assert alone.high / alone.low < 1.05


# --- convergence ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "expected"), [(1.005, True), (1.02, False), (math.inf, False), (math.nan, False)]
)
def test_the_interval_of_the_ratio_or_else_of_the_time_has_to_be_narrow(
    high: float, expected: bool
) -> None:
    decisive, wide = (Estimate(value=1.0, low=0.0, high=end) for end in (high, math.inf))
    assert has_converged(wide, decisive, BUDGET) is expected
    assert has_converged(decisive, None, BUDGET) is expected


@pytest.mark.parametrize(("reference_s", "expected"), [(0.9e-3, False), (1.1e-3, True)])
def test_the_ratio_of_long_calls_may_have_an_interval_of_its_own(
    reference_s: float, expected: bool
) -> None:
    ratio = Estimate(value=2.0, low=1.96, high=2.04)
    per_call = Estimate(value=2 * reference_s, low=0.0, high=1.0)
    assert has_converged(per_call, ratio, replace(BUDGET, long_target_ratio=0.025)) is expected


# --- calls that do the work of others ------------------------------------------------------------


def samples(random: np.random.Generator) -> np.ndarray:
    """Return twelve epochs of forty samples, of which one in thirty is disturbed, some for long."""
    shape = (12, 40)
    tail = (random.random(shape) < 1 / 30) * random.pareto(1.1, shape)
    return random.lognormal(0.0, 0.05, shape) + tail


def paying(every: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Return samples of which one in ``every`` takes as long as ``every`` others."""
    return lambda random: samples(random) + every * (random.random((12, 40)) < 1 / every)


@pytest.mark.parametrize(
    ("subject", "least", "most"),
    [
        (samples, 0, 0.01),
        (lambda random: np.linspace(1, 5, 12)[:, None] * samples(random), 0, 0.01),
        (paying(2), 0.99, 1),
        (paying(16), 0.9, 1),
    ],
    ids=["a heavy tail", "a machine that drifts", "every second", "one in 16"],
)
def test_most_calls_that_pay_for_others_are_called_uneven_and_hardly_any_others(
    subject: Callable[[np.random.Generator], np.ndarray], least: float, most: float
) -> None:
    random, epochs = np.random.default_rng(1), tuple(np.repeat(np.arange(12), 40).tolist())
    found = []
    for _ in range(400):
        arms = [
            arm(tuple(draw(random).ravel().tolist()), epochs, role)
            for draw, role in ((subject, ArmRole.SUBJECT), (samples, ArmRole.REFERENCE))
        ]
        found.append(unevenness(arms, cpu=False, least=BUDGET.uneven_ratio)[0] is not None)
    assert least <= sum(found) / len(found) <= most
