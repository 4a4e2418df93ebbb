"""Latency against a baseline: suspects, their confirmation, and latencies that are not judged."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log, nan
from statistics import median, stdev
from typing import Any

import numpy as np
import pytest
from compared_runs import (
    ELSEWHERE,
    STEADY,
    change,
    compared,
    confirming,
    elsewhere,
    make_case,
    make_cases,
    make_latency,
    make_record,
    results_of,
    with_memory,
)
from fake_device import CALL_S, latency_of, measure, payer

from harness.records import (
    Allocation,
    Budget,
    Cache,
    Clock,
    Latency,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.regression.changes import ChangeKind, Metric
from harness.regression.latency_test import (
    BASELINE_PROCESSES,
    Shift,
    latency_change,
    process_ratios,
)
from harness.regression.noise import noise_of, spread_of
from harness.run.across_processes import merged

BEFORE = make_record(ratios=STEADY)
SPREAD_BY_2 = tuple(exp(0.02 * each) for each in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))
SPREAD_BY_4 = tuple(exp(0.04 * each) for each in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))


def now(*ratios: float, **changes: Any) -> Any:
    return make_record(latency=make_latency(ratios, **changes))


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

    def confirm(cases: Any) -> str:
        asked.append(list(cases))
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


@pytest.mark.parametrize(
    ("last", "kind"), [(0.80, ChangeKind.FASTER), (0.998, ChangeKind.INCONCLUSIVE)]
)
def test_a_faster_case_is_confirmed_in_the_same_way(last: float, kind: ChangeKind) -> None:
    confirm = confirming(0.80, 0.80, 0.81, 0.79, last)
    assert change(BEFORE, now(0.8), confirm=confirm).kind is kind


# --- a noisy baseline ----------------------------------------------------------------------------

SHARED = MeasurementWarning(kind=WarningKind.NOISY, advice="wall time is 1.3 times CPU time")
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


# --- what is never judged ------------------------------------------------------------------------


def judged(before: Any, after: Any) -> tuple[ChangeKind, Metric | None]:
    """Return the kind of a case that takes twice as long in every fresh process."""
    found = change(before, after, confirm=confirming(*[2.0] * 5))
    return found.kind, found.metric


UNJUDGED = (ChangeKind.INCONCLUSIVE, Metric.LATENCY)
STEPPED = (MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand"),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (make_record(ratios=STEADY[:9]), now(2.0)),
        (replace(BEFORE, warnings=STEPPED), now(2.0)),
        (BEFORE, replace(now(2.0), warnings=STEPPED)),
        (BEFORE, make_record()),
        (BEFORE, make_record(environment=ELSEWHERE)),
        *((BEFORE, now(bad)) for bad in (nan, 0.0, -1.0)),
        *((make_record(ratios=(*STEADY[:9], bad)), now(2.0)) for bad in (nan, 0.0, -1.0)),
    ],
    ids=[
        *("few processes", "clock jumped before", "clock jumped now"),
        *("not timed now", "not timed elsewhere"),
        *("nan now", "zero now", "negative now", "nan before", "zero before", "negative before"),
    ],
)
def test_a_latency_that_cannot_be_judged_is_inconclusive(before: Record, after: Record) -> None:
    assert judged(before, after) == UNJUDGED


def test_a_latency_of_one_run_or_of_a_wrong_result_is_not_compared() -> None:
    assert judged(make_record(), now(2.0)) == (ChangeKind.UNCHANGED, None)
    wrong = replace(BEFORE, status=Status.WRONG)
    assert judged(wrong, now(2.0)) == (ChangeKind.IMPROVED, Metric.STATUS)


@pytest.mark.parametrize(
    "difference",
    [
        {"timer": "pytest-benchmark:perf_counter"},
        {"is_valid": False},
        {"reference": None, "reference_ratio": None},
        {"reference": "two_pass"},
        {"clock": Clock.WALL},
        {"cache": Cache.ROTATE},
        {"allocation": Allocation.DEFAULT},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_times_measured_in_two_ways_are_not_comparable(difference: dict[str, Any]) -> None:
    other = make_record(latency=make_latency(STEADY, **difference))
    for before, after in ((BEFORE, other), (other, BEFORE)):
        found = change(before, after, confirm=confirming(*[2.0] * 5))
        assert (found.kind, found.metric) == (ChangeKind.NOT_COMPARABLE, Metric.LATENCY)
        assert found.ratio is None
    found = change(BEFORE, with_memory(other, peak_extra_bytes=1 << 40))
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, Metric.PEAK_MEMORY)


def test_the_latency_of_another_machine_is_shown_and_not_compared() -> None:
    found = change(BEFORE, elsewhere(now(2.0)), confirm=confirming(*[2.0] * 5))
    assert (found.kind, found.metric) == (ChangeKind.NOT_COMPARABLE, Metric.LATENCY)
    assert found.ratio is None
    assert "0.500x" in found.reason


# --- a machine that changed ----------------------------------------------------------------------

MANY = make_cases(36)


def many(*slow: int, ratios: Any = (1.0,), factor: float = 1.2) -> Any:
    """Return a run of 36 cases, in which those at the places ``slow`` take ``factor`` as long."""
    return results_of(
        *(
            make_record(case, [factor * each for each in ratios] if place in slow else ratios)
            for place, case in enumerate(MANY)
        )
    )


def places_of(implementation: str) -> list[int]:
    return [place for place, case in enumerate(MANY) if case.implementation == implementation]


def test_suspects_in_all_implementations_mean_that_the_machine_changed() -> None:
    found = compared(many(ratios=STEADY), many(*range(0, 36, 5)), confirm=confirming(*[1.2] * 5))
    assert not found.failed
    assert found.counts == {ChangeKind.INCONCLUSIVE: 36}
    assert any("8 of 36 cases" in note for note in found.notes)
    after = many(*range(36))
    wrong = replace(after.records[0], status=Status.WRONG)
    after = replace(after, records=(wrong, *after.records[1:]))
    assert compared(many(ratios=STEADY), after).failed  # a larger error is not excused


@pytest.mark.parametrize(
    "slow",
    [[0, 1, 2], places_of("two_pass"), [*places_of("two_pass"), places_of("one_pass")[0]]],
    ids=["few", "one implementation", "one implementation and one suspect by chance"],
)
def test_few_suspects_or_those_of_one_implementation_are_timed_again(slow: list[int]) -> None:
    found = compared(many(ratios=STEADY), many(*slow), confirm=confirming(*[1.2] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.UNCHANGED: 36 - len(slow)}


def test_slow_shared_code_fails_if_no_machine_explains_it() -> None:
    slow = [*places_of("one_pass"), *places_of("two_pass")]
    after = many(*slow, factor=3.0)
    found = compared(many(ratios=STEADY), after, confirm=confirming(*[3.0] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.INCONCLUSIVE: 36 - len(slow)}
    assert any("24 cases moved" in note for note in found.notes)


def test_if_the_machine_changed_a_suspect_has_to_be_slower_by_a_half() -> None:
    before, after = many(ratios=STEADY), many(*range(36), factor=1.49)
    compared(before, after, confirm=lambda cases: pytest.fail("it was timed again"))
    after = many(*range(36), factor=1.6)
    assert not compared(before, after, confirm=confirming(*[1.49] * 5)).failed
    assert compared(before, after, confirm=confirming(*[1.51] * 5)).failed
    assert not compared(before, after).failed


def test_noisy_cases_that_did_not_move_do_not_hide_a_machine_that_changed() -> None:
    steady = many(ratios=STEADY)
    noisy = [
        replace(record, warnings=(SHARED,)) if place >= 12 else record
        for place, record in enumerate(steady.records)
    ]
    found = compared(
        replace(steady, records=tuple(noisy)), many(0, 1, 2), confirm=confirming(*[1.2] * 5)
    )
    assert not found.failed
