"""Latency against a baseline: suspects, and their confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log, nan
from statistics import median, stdev

import numpy as np
import pytest
from compared_runs import (
    BEFORE,
    STEADY,
    change,
    compared,
    confirming,
    make_case,
    make_latency,
    make_record,
    now,
    results_of,
)
from fake_device import CALL_S, latency_of, measure, payer

from harness.records import Budget, Clock, Latency
from harness.regression.changes import ChangeKind, Metric
from harness.regression.latency_test import Shift, process_ratios
from harness.run.across_processes import merged

SPREAD_BY_2 = tuple(exp(0.02 * each) for each in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))


# --- ratios of processes -------------------------------------------------------------------------


def test_the_ratio_of_a_process_is_the_median_of_its_epochs() -> None:
    latency = make_latency((1.0, 3.0))  # two epochs each
    assert process_ratios(replace(latency, process_of_epoch=(0, 1, 1, 1))) == pytest.approx((1, 3))


def test_on_a_gpu_the_samples_are_those_of_the_events() -> None:
    latency = make_latency((2.0,), clock=Clock.CUDA_EVENT)
    arms = tuple(replace(arm, cpu_s=None) for arm in latency.arms)
    assert process_ratios(replace(latency, arms=arms)) == pytest.approx((2.0,))


PAIRED = make_latency((1.0, 1.0))


@pytest.mark.parametrize(
    ("latency", "expected"),
    [
        (make_latency((1.5, 2.0, 0.5)), (1.5, 2.0, 0.5)),
        (make_latency((2.0, 2.0), arms=()), (2.0,)),  # without samples, the one ratio
        *((make_latency((1.0, bad)), ()) for bad in (nan, inf, 0.0, -1.0)),
        (replace(PAIRED, process_of_epoch=(0, 0, 1)), ()),
        (replace(PAIRED, arms=PAIRED.arms[:1]), ()),
    ],
    ids=["samples", "no samples", "nan", "inf", "zero", "negative", "epochs", "no reference"],
)
def test_the_ratio_of_each_process_comes_from_valid_samples(
    latency: Latency, expected: tuple[float, ...]
) -> None:
    assert process_ratios(latency) == pytest.approx(expected)


# --- the screening -------------------------------------------------------------------------------


def test_a_case_is_suspect_beyond_3_percent() -> None:
    found = change(BEFORE, now(1.029), confirm=lambda cases: pytest.fail("it is no suspect"))
    assert found.kind is ChangeKind.UNCHANGED
    found = change(BEFORE, now(1.031))
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, Metric.LATENCY)


def test_a_case_that_spreads_is_suspect_beyond_two_spreads() -> None:
    before = make_record(ratios=SPREAD_BY_2)
    two = exp(2 * stdev(map(log, SPREAD_BY_2))) * median(SPREAD_BY_2)
    assert change(before, now(two * 0.999)).kind is ChangeKind.UNCHANGED
    assert change(before, now(two * 1.001)).kind is ChangeKind.INCONCLUSIVE


def test_the_interval_of_a_change_follows_from_the_spread_of_each_run() -> None:
    before = (1.0, 1.002, 0.998, 1.001, 0.999)
    after = (1.22, 1.30, 1.36, 1.28, 1.33)
    found = Shift(make_case(), before, after, "native").estimate(after)
    # 4 degrees: nearly all of the error is that of the five after; 1.089 for their median
    half = 1.089 * 2.776 * stdev(map(log, after)) / 5**0.5
    assert log(found.high / found.value) == pytest.approx(half, rel=0.01)
    assert log(found.value / found.low) == pytest.approx(log(found.high / found.value))
    found = Shift(make_case(), before, after[:1], "native").estimate(after[:1])
    # a single process is assumed to spread as the five before
    half = 2.776 * stdev(map(log, before)) * (1.089**2 / 5 + 1) ** 0.5
    assert log(found.high / found.value) == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize(("before", "after"), [(10, 5), (5, 5), (10, 10), (10, 1)])
def test_95_percent_of_the_intervals_of_a_change_hold_it(before: int, after: int) -> None:
    held, number = 0, 4000
    ratios = np.exp(0.02 * np.random.default_rng(1).standard_normal((number, before + after)))
    for row in ratios.tolist():
        first, second = tuple(row[:before]), tuple(row[before:])
        found = Shift(make_case(), first, second, "native").estimate(second)
        held += found.low <= 1 <= found.high
    assert 0.935 < held / number < 0.965  # four standard errors


def test_only_the_suspects_are_timed_again() -> None:
    slow, steady = make_case(rows=1), make_case(rows=2)
    asked = []

    def confirm(suspects: Sequence[Shift]) -> str:
        asked.append([each.case for each in suspects])
        return "no"

    before = results_of(make_record(slow, STEADY), make_record(steady, STEADY))
    compared(
        before, results_of(make_record(slow, (2.0,)), make_record(steady, (1.0,))), confirm=confirm
    )
    assert asked == [[slow]]


def test_a_case_that_now_lets_every_fourth_call_pay_is_slower() -> None:
    """Three samples in four take as long as before."""
    before = replace(latency_of(measure(payer(1, 0.0))), processes=1)
    after = latency_of(measure(payer(4, 8 * CALL_S)))
    ten = merged([make_record(latency=before)] * 10, Budget())
    (ratio,) = process_ratios(after)
    assert ratio == pytest.approx(3.0, rel=0.1)
    paying = make_record(latency=after)
    assert change(ten, paying).kind is ChangeKind.INCONCLUSIVE
    assert change(ten, paying, confirm=confirming(*[ratio] * 5)).kind is ChangeKind.SLOWER


# --- the confirmation ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confirmed", "kind"),
    [
        ((1.002, 1.10, 1.10, 1.11, 1.12), ChangeKind.INCONCLUSIVE),  # one within the baseline
        ((1.039,) * 5, ChangeKind.INCONCLUSIVE),  # less than 4 %
        ((1.041,) * 5, ChangeKind.SLOWER),
        ((1.06, 1.08, 1.10, 1.20, 1.30), ChangeKind.INCONCLUSIVE),  # they differ too much
        ((1.80, 1.90, 2.00, 2.10, 2.20), ChangeKind.SLOWER),
        ((0.8,) * 5, ChangeKind.INCONCLUSIVE),  # the other direction
        ((1.5,) * 4, ChangeKind.INCONCLUSIVE),  # too few
        ((1.5,) * 4 + (nan,), ChangeKind.INCONCLUSIVE),
        ((1.5,) * 4 + (inf,), ChangeKind.INCONCLUSIVE),
        ((1.5,) * 4 + (0.0,), ChangeKind.INCONCLUSIVE),
        ("it rains", ChangeKind.INCONCLUSIVE),
    ],
)
def test_a_suspect_is_slower_only_if_every_fresh_process_agrees(
    confirmed: tuple[float, ...] | str, kind: ChangeKind
) -> None:
    answer = confirmed if isinstance(confirmed, str) else {BEFORE.case.id: confirmed}
    found = change(BEFORE, now(2.0 if confirmed[0] == 1.80 else 1.1), confirm=lambda _: answer)
    assert found.kind is kind
    assert found.kind.is_failure is (kind is ChangeKind.SLOWER)
    assert found.ratio is not None
    assert not isinstance(confirmed, str) or found.reason.endswith(confirmed)


@pytest.mark.parametrize("first", [1.2, 0.8])
def test_processes_that_refute_a_suspect_are_never_among_five_that_confirm_it(first: float) -> None:
    shift = Shift(BEFORE.case, process_ratios(BEFORE.latency), (first,), "native")
    refuted = confirmed = 0
    for row in np.random.default_rng(2).normal(1, 0.04, (500, 5)) * first**0.3:
        ratios = tuple(row.tolist())
        found = change(BEFORE, now(first), confirm=confirming(*ratios)).kind
        is_confirmed = found in {ChangeKind.SLOWER, ChangeKind.FASTER}
        is_refuted = any(shift.is_refuted(ratios[:number]) for number in range(1, 6))
        assert not (is_refuted and is_confirmed)
        refuted, confirmed = refuted + is_refuted, confirmed + is_confirmed
    assert min(refuted, confirmed) > 50


@pytest.mark.parametrize(
    ("last", "kind"), [(0.80, ChangeKind.FASTER), (0.998, ChangeKind.INCONCLUSIVE)]
)
def test_a_faster_case_is_confirmed_in_the_same_way(last: float, kind: ChangeKind) -> None:
    confirm = confirming(0.80, 0.80, 0.81, 0.79, last)
    assert change(BEFORE, now(0.8), confirm=confirm).kind is kind
