"""Latency against a noisy baseline."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, nan
from statistics import median, stdev

import numpy as np
import pytest
from compared_runs import (
    BEFORE,
    SHARED,
    STEADY,
    change,
    confirming,
    make_case,
    make_latency,
    make_record,
    now,
)

from harness.regression.changes import ChangeKind
from harness.regression.latency_test import BASELINE_PROCESSES, Shift, latency_change
from harness.regression.noise import noise_of, spread_of

SPREAD_BY_4 = tuple(exp(0.04 * each) for each in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))

NOISY = {
    "spread": make_record(ratios=SPREAD_BY_4),
    "warning": replace(BEFORE, warnings=(SHARED,)),
    "faults": make_record(latency=make_latency(STEADY, minor_faults_ratio=7.0)),
    "nan faults": make_record(latency=make_latency(STEADY, minor_faults_ratio=nan)),
    "unconverged": make_record(latency=make_latency(STEADY, converged=False)),
}


@pytest.mark.parametrize("why", NOISY)
def test_a_noisy_case_is_judged_only_if_it_moved_far(why: str) -> None:
    assert change(NOISY[why], now(3.0), confirm=confirming(*[3.0] * 5)).kind is ChangeKind.SLOWER
    assert change(NOISY[why], now(0.3), confirm=confirming(*[0.3] * 5)).kind is ChangeKind.FASTER
    found = change(NOISY[why], now(1.02), confirm=lambda cases: pytest.fail("it is no suspect"))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "noisy" in found.reason
    assert found.ratio is not None


FOUR_SPREADS = exp(4 * stdev(map(log, SPREAD_BY_4))) * median(SPREAD_BY_4)


@pytest.mark.parametrize(
    ("why", "least"), [("spread", FOUR_SPREADS), ("warning", 1.5), ("faults", 1.5)]
)
def test_a_noisy_case_has_to_move_by_a_least_ratio_in_both_stages(why: str, least: float) -> None:
    below, above = least * 0.999, least * 1.001

    def kind(screened: float, confirmed: float) -> ChangeKind:
        return change(NOISY[why], now(screened), confirm=confirming(*[confirmed] * 5)).kind

    assert kind(below, 2.0) is ChangeKind.INCONCLUSIVE
    assert kind(2.0, below) is ChangeKind.INCONCLUSIVE
    assert kind(above, above) is ChangeKind.SLOWER


def kinds(cases: int, spread: float, ratio: float, tail: str) -> list[ChangeKind]:
    """Return the kinds of simulated cases whose processes spread by ``spread``."""
    random = np.random.default_rng(1)

    def processes(count: int, true_ratio: float = ratio) -> tuple[float, ...]:
        drawn = random.normal(size=count)
        if tail == "t3":
            drawn = random.standard_t(3, count) / 3**0.5
        return tuple(true_ratio * np.exp(spread * drawn))

    found = []
    for _ in range(cases):
        before = processes(BASELINE_PROCESSES, 1.0)
        noise = noise_of(BEFORE, spread_of(before))
        shift = Shift(make_case(), before, processes(1), "native", noise=noise)
        found.append(latency_change(shift, processes(5) if shift.is_suspect else None).kind)
    return found


@pytest.mark.parametrize("tail", ["normal", "t3"])
@pytest.mark.parametrize(("spread", "twice"), [(0.04, 0.95), (0.08, 0.95), (0.15, 0.5)])
def test_unchanged_noisy_cases_do_not_fail_and_large_changes_do(
    spread: float, twice: float, tail: str
) -> None:
    assert kinds(1000, spread, 1.0, tail).count(ChangeKind.SLOWER) == 0
    assert kinds(200, spread, 3.0, tail).count(ChangeKind.SLOWER) >= 0.9 * 200
    assert kinds(200, spread, 2.0, tail).count(ChangeKind.SLOWER) >= twice * 200
