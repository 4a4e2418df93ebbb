"""Latency against a baseline: who is suspected, what confirms it, and what is never judged."""

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
    make_case,
    make_cases,
    make_latency,
    make_record,
    results_of,
)

from harness.records import Allocation, Cache, Clock, MeasurementWarning, Status, WarningKind
from harness.regression.changes import ChangeKind, Metric
from harness.regression.latency_test import (
    BASELINE_PROCESSES,
    Shift,
    latency_change,
    process_ratios,
)
from harness.regression.noise import noise_of, spread_of

BEFORE = make_record(ratios=STEADY)
SPREAD_BY_2 = tuple(exp(0.02 * each) for each in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))
SPREAD_BY_4 = tuple(exp(0.04 * each) for each in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))


def now(*ratios: float, **changes: Any) -> Any:
    return make_record(latency=make_latency(ratios, **changes))


def slower(ratio: float, *confirmed: float) -> Any:
    return change(BEFORE, now(ratio), confirm=confirming(*confirmed))


# --- ratios of processes -------------------------------------------------------------------------


def test_the_ratio_of_each_process_is_told_from_the_samples() -> None:
    assert process_ratios(make_latency((1.5, 2.0, 0.5))) == pytest.approx((1.5, 2.0, 0.5))


def test_a_process_counts_by_the_median_of_its_epochs() -> None:
    latency = make_latency((1.0, 3.0))  # two epochs each
    assert process_ratios(replace(latency, process_of_epoch=(0, 1, 1, 1))) == pytest.approx((1, 3))


def test_on_a_gpu_the_wall_clock_is_that_of_the_events() -> None:
    latency = make_latency((2.0,), clock=Clock.CUDA_EVENT)
    arms = tuple(replace(each, cpu_s=None) for each in latency.arms)
    assert process_ratios(replace(latency, arms=arms)) == pytest.approx((2.0,))


def test_without_samples_there_is_the_one_figure() -> None:
    assert process_ratios(make_latency((2.0, 2.0), arms=())) == pytest.approx((2.0,))


@pytest.mark.parametrize("bad", [nan, inf, 0.0, -1.0])
def test_a_sample_that_is_no_time_spoils_the_figures(bad: float) -> None:
    assert process_ratios(make_latency((1.0, bad))) == ()


def test_samples_that_do_not_fit_their_epochs_give_no_figures() -> None:
    assert process_ratios(make_latency((1.0, 1.0), process_of_epoch=(0, 0, 1))) == ()


def test_a_missing_arm_gives_no_figures() -> None:
    latency = make_latency((1.0,))
    assert process_ratios(replace(latency, arms=latency.arms[:1])) == ()


# --- the first look ------------------------------------------------------------------------------


def test_a_case_within_what_processes_differ_by_is_the_same() -> None:
    found = change(BEFORE, now(1.029), confirm=lambda cases: pytest.fail("it is no suspect"))
    assert found.kind is ChangeKind.UNCHANGED
    assert "latency: 2.9% slower, 1.000 of the time of native before and 1.029 now" in found.reason


def test_a_case_beyond_3_percent_is_suspect() -> None:
    assert change(BEFORE, now(1.031)).kind is ChangeKind.INCONCLUSIVE


def test_a_case_that_spreads_is_suspect_beyond_two_of_its_spreads() -> None:
    before = make_record(ratios=SPREAD_BY_2)
    two = exp(2 * stdev(map(log, SPREAD_BY_2))) * median(SPREAD_BY_2)
    assert change(before, now(two * 0.999)).kind is ChangeKind.UNCHANGED
    assert change(before, now(two * 1.001)).kind is ChangeKind.INCONCLUSIVE


def test_the_ratio_of_a_change_has_an_interval_around_it() -> None:
    ratio = change(BEFORE, now(1.02)).ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(1.02, rel=1e-3)
    assert 1.01 < ratio.low < ratio.value < ratio.high < 1.03


def test_the_interval_of_a_change_is_as_wide_as_either_run_spreads() -> None:
    before = (1.0, 1.002, 0.998, 1.001, 0.999)
    after = (1.22, 1.30, 1.36, 1.28, 1.33)
    found = Shift(make_case(), before, after, "native").estimate(after)
    # 4 degrees: nearly all of the error is that of the five after
    half = 2.776 * stdev(map(log, after)) / 5**0.5
    assert log(found.high / found.value) == pytest.approx(half, rel=0.01)
    assert log(found.value / found.low) == pytest.approx(log(found.high / found.value))


@pytest.mark.parametrize("times", [0.1, 1.0, 10.0])
def test_the_interval_of_a_change_holds_it_in_95_of_100(times: float) -> None:
    """Processes of the run spread by so many times what those of the baseline do."""
    random, held = np.random.default_rng(1), 0
    for _ in range(500):
        before = tuple(np.exp(random.normal(0.0, 0.01, 10)))
        after = tuple(1.3 * np.exp(random.normal(0.0, 0.01 * times, 5)))
        found = Shift(make_case(), before, after, "native").estimate(after)
        held += found.low <= 1.3 <= found.high
    assert held >= 0.88 * 500  # of medians, which err by a quarter more than means


def test_without_a_confirmation_a_suspect_stays_unsure() -> None:
    found = change(BEFORE, now(1.5))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert found.metric is Metric.LATENCY
    assert found.reason.endswith("suspected, and not confirmed")


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


# --- the confirmation ----------------------------------------------------------------------------


def test_a_suspect_that_all_fresh_processes_confirm_is_slower() -> None:
    found = slower(1.10, 1.09, 1.10, 1.10, 1.11, 1.12)
    assert found.kind is ChangeKind.SLOWER
    assert found.kind.is_failure
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.10, rel=1e-3)
    assert "10.0% slower, 1.000 of the time of native before and 1.100 now" in found.reason
    assert "(1.090 to 1.120 in 5 fresh processes, beyond all 10 of the baseline" in found.reason


def test_one_fresh_process_within_the_baseline_confirms_nothing() -> None:
    found = slower(1.10, 1.002, 1.10, 1.10, 1.11, 1.12)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "not confirmed: 10.0% slower, 1.002 to 1.120 in 5 fresh processes" in found.reason


def test_an_effect_below_4_percent_confirms_nothing() -> None:
    assert slower(1.10, *[1.039] * 5).kind is ChangeKind.INCONCLUSIVE
    assert slower(1.10, *[1.041] * 5).kind is ChangeKind.SLOWER


def test_fresh_processes_that_differ_among_themselves_confirm_nothing() -> None:
    assert slower(1.10, 1.06, 1.08, 1.10, 1.20, 1.30).kind is ChangeKind.INCONCLUSIVE
    assert slower(2.00, 1.80, 1.90, 2.00, 2.10, 2.20).kind is ChangeKind.SLOWER


def test_a_fresh_process_that_is_faster_does_not_confirm_that_it_is_slower() -> None:
    assert slower(1.10, *[0.8] * 5).kind is ChangeKind.INCONCLUSIVE


def test_four_fresh_processes_confirm_nothing() -> None:
    found = slower(1.10, *[1.5] * 4)
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert found.reason.endswith("4 processes of 5 could time it to confirm it")


@pytest.mark.parametrize("bad", [nan, inf, 0.0])
def test_a_confirmation_that_is_no_number_confirms_nothing(bad: float) -> None:
    assert slower(1.10, 1.5, 1.5, 1.5, 1.5, bad).kind is ChangeKind.INCONCLUSIVE


def test_a_suspect_that_cannot_be_timed_again_says_why() -> None:
    found = change(BEFORE, now(1.5), confirm=lambda cases: "it cannot be confirmed here: rain")
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert found.reason.endswith("it cannot be confirmed here: rain")


def test_what_is_faster_is_confirmed_likewise_and_fails_nothing() -> None:
    found = slower(0.80, 0.80, 0.80, 0.81, 0.79, 0.80)
    assert found.kind is ChangeKind.FASTER
    assert not found.kind.is_failure
    assert "20.0% faster" in found.reason


def test_what_is_faster_in_four_of_five_is_unsure() -> None:
    assert slower(0.80, 0.80, 0.80, 0.81, 0.79, 0.998).kind is ChangeKind.INCONCLUSIVE


# --- a noisy baseline ----------------------------------------------------------------------------

SHARED = MeasurementWarning(kind=WarningKind.NOISY, advice="wall time is 1.3 times CPU time")
NOISY = {
    "the baseline's processes spread by 4.2%": make_record(ratios=SPREAD_BY_4),
    "noisy in the baseline: wall time is 1.3 times CPU time": replace(BEFORE, warnings=(SHARED,)),
    "7 page faults a call": make_record(latency=make_latency(STEADY, minor_faults_ratio=7.0)),
    "nan page faults a call": make_record(latency=make_latency(STEADY, minor_faults_ratio=nan)),
    "interval is wider than was asked": make_record(latency=make_latency(STEADY, converged=False)),
}


@pytest.mark.parametrize("why", NOISY)
def test_what_is_three_times_as_slow_fails_however_noisy_the_baseline(why: str) -> None:
    assert change(NOISY[why], now(3.0), confirm=confirming(*[3.0] * 5)).kind is ChangeKind.SLOWER
    assert change(NOISY[why], now(0.3), confirm=confirming(*[0.3] * 5)).kind is ChangeKind.FASTER


@pytest.mark.parametrize("why", NOISY)
def test_a_small_change_of_what_is_noisy_is_told_with_the_reason(why: str) -> None:
    found = change(NOISY[why], now(1.02), confirm=lambda cases: pytest.fail("it is no suspect"))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert why in found.reason
    assert found.ratio is not None


def test_a_spread_needs_four_of_it_at_first_sight_and_to_confirm_it() -> None:
    before = NOISY["the baseline's processes spread by 4.2%"]
    four = exp(4 * stdev(map(log, SPREAD_BY_4))) * median(SPREAD_BY_4)
    assert "noisy" in change(before, now(four * 0.999), confirm=confirming(*[2.0] * 5)).reason
    found = change(before, now(2.0), confirm=confirming(*[four * 0.999] * 5))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "not confirmed" in found.reason
    found = change(before, now(four * 1.001), confirm=confirming(*[four * 1.001] * 5))
    assert found.kind is ChangeKind.SLOWER


@pytest.mark.parametrize(
    "why", ["noisy in the baseline: wall time is 1.3 times CPU time", "7 page faults a call"]
)
def test_what_may_be_the_systems_time_needs_a_half_more(why: str) -> None:
    assert (
        change(NOISY[why], now(1.49), confirm=confirming(*[1.6] * 5)).kind
        is ChangeKind.INCONCLUSIVE
    )
    assert (
        change(NOISY[why], now(1.6), confirm=confirming(*[1.49] * 5)).kind
        is ChangeKind.INCONCLUSIVE
    )
    assert change(NOISY[why], now(1.6), confirm=confirming(*[1.51] * 5)).kind is ChangeKind.SLOWER


def kinds(cases: int, spread: float, ratio: float, tail: str) -> list[ChangeKind]:
    """Return what becomes of cases whose processes spread by so much; no time is taken."""
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


def never_judged(before: Any, after: Any) -> str:
    """Return why a case that is twice as slow, in every process, is not called slower."""
    found = change(before, after, confirm=confirming(*[2.0] * 5))
    assert found.kind is ChangeKind.INCONCLUSIVE, found
    return found.reason


def test_a_baseline_of_fewer_than_ten_processes_judges_no_latency() -> None:
    reason = never_judged(make_record(ratios=STEADY[:9]), now(2.0))
    assert "the baseline timed it in 9 processes, and 10 are needed" in reason


@pytest.mark.parametrize("whose", ["baseline", "run"])
def test_a_time_taken_while_the_clock_jumped_is_reported_only(whose: str) -> None:
    warning = (MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand"),)
    before = replace(BEFORE, warnings=warning if whose == "baseline" else ())
    after = replace(now(2.0), warnings=warning if whose == "run" else ())
    assert never_judged(before, after).endswith(f"the clock jumped while the {whose} was timed")


@pytest.mark.parametrize("bad", [nan, 0.0, -1.0])
def test_times_that_are_no_numbers_are_not_judged(bad: float) -> None:
    assert "the run has samples that are not positive" in never_judged(BEFORE, now(bad))
    before = make_record(latency=make_latency((*STEADY[:9], bad)))
    assert "the baseline has samples that are not positive" in never_judged(before, now(2.0))


def test_a_case_that_is_not_timed_any_more_does_not_pass_unnoticed() -> None:
    assert "it was timed before, and not now" in never_judged(BEFORE, make_record())


def test_a_case_that_was_not_timed_before_has_nothing_to_be_compared_with() -> None:
    assert change(make_record(), BEFORE).kind is ChangeKind.UNCHANGED


@pytest.mark.parametrize("when", ["before", "now"])
def test_a_time_that_is_not_to_be_believed_is_incomparable(when: str) -> None:
    invalid = make_latency(STEADY, is_valid=False)
    before = replace(BEFORE, latency=invalid) if when == "before" else BEFORE
    after = now(2.0) if when == "before" else replace(BEFORE, latency=invalid)
    found = change(before, after, confirm=confirming(*[2.0] * 5))
    assert found.kind is ChangeKind.NOT_COMPARABLE
    assert f"faster {when} than its bytes can be copied" in found.reason


def test_without_a_reference_beside_it_a_time_is_incomparable() -> None:
    alone = make_latency((2.0,), reference=None, reference_ratio=None)
    found = change(BEFORE, replace(BEFORE, latency=alone))
    assert found.kind is ChangeKind.NOT_COMPARABLE
    assert "no reference was timed beside it now" in found.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reference", "two_pass"),
        ("clock", Clock.WALL),
        ("cache", Cache.ROTATE),
        ("allocation", Allocation.DEFAULT),
    ],
)
def test_times_measured_in_two_ways_are_incomparable(field: str, value: Any) -> None:
    found = change(BEFORE, now(2.0, **{field: value}))
    assert found.kind is ChangeKind.NOT_COMPARABLE
    assert f"its {field} was {getattr(BEFORE.latency, field)} before and is {value} now" in (
        found.reason
    )


def test_the_time_of_what_was_wrong_is_no_measure_for_what_is_right() -> None:
    found = change(replace(BEFORE, status=Status.WRONG), now(2.0), confirm=confirming(*[2.0] * 5))
    assert found.kind is ChangeKind.IMPROVED
    assert found.metric is Metric.STATUS


def test_the_latency_of_another_machine_is_told_and_not_compared() -> None:
    after = replace(now(2.0), environment=ELSEWHERE.fingerprint)
    found = change(BEFORE, after, confirm=confirming(*[2.0] * 5))
    assert found.kind is ChangeKind.NOT_COMPARABLE
    assert found.ratio is None
    assert found.reason == (
        "latency: it is of another machine or other software: 1.000 of the time of native there, "
        "2.000 here"
    )


def test_what_another_machine_did_not_time_does_not_pass_unnoticed() -> None:
    after = make_record(environment=ELSEWHERE)
    assert "it was timed before, and not now" in never_judged(BEFORE, after)


# --- a machine that changed ----------------------------------------------------------------------

MANY = make_cases(36)


def many(*slow: int, ratios: Any = (1.0,), factor: float = 1.2) -> Any:
    """Return a run of 36 cases, of which some take a fifth longer."""
    return results_of(
        *(
            make_record(case, [factor * each for each in ratios] if place in slow else ratios)
            for place, case in enumerate(MANY)
        )
    )


def of(implementation: str) -> list[int]:
    return [place for place, case in enumerate(MANY) if case.implementation == implementation]


def test_suspects_everywhere_mean_that_the_machine_changed() -> None:
    found = compared(many(ratios=STEADY), many(*range(0, 36, 5)), confirm=confirming(*[1.2] * 5))
    assert not found.failed
    assert {each.kind for each in found.changes} == {ChangeKind.INCONCLUSIVE}
    assert any("8 of 36 cases are suspect" in each for each in found.notes)
    assert any("the machine changed, or code that they share" in each for each in found.notes)


@pytest.mark.parametrize("factor", [1.2, 1.49])
def test_nothing_is_timed_again_that_a_machine_explains(factor: float) -> None:
    after = many(*range(36), factor=factor)
    compared(many(ratios=STEADY), after, confirm=lambda cases: pytest.fail("it was timed again"))


def test_code_that_all_share_fails_where_no_machine_explains_it() -> None:
    slow = [*of("one_pass"), *of("two_pass")]
    after = many(*slow, factor=3.0)
    found = compared(many(ratios=STEADY), after, confirm=confirming(*[3.0] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.INCONCLUSIVE: 36 - len(slow)}
    assert any("24 cases moved by more than a machine explains" in each for each in found.notes)


def test_beside_a_machine_that_changed_a_half_more_has_to_be_confirmed() -> None:
    after = many(*range(36), factor=1.6)
    before = many(ratios=STEADY)
    assert not compared(before, after, confirm=confirming(*[1.49] * 5)).failed
    assert compared(before, after, confirm=confirming(*[1.51] * 5)).failed
    assert not compared(before, after).failed


def test_three_suspects_in_thirty_six_are_timed_again() -> None:
    found = compared(many(ratios=STEADY), many(0, 1, 2), confirm=confirming(*[1.2] * 5))
    assert found.counts == {ChangeKind.SLOWER: 3, ChangeKind.UNCHANGED: 33}


def test_one_implementation_that_is_slower_everywhere_is_no_change_of_the_machine() -> None:
    slow = of("two_pass")
    found = compared(many(ratios=STEADY), many(*slow), confirm=confirming(*[1.2] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.UNCHANGED: 36 - len(slow)}


def test_one_chance_suspect_beside_it_is_none_either() -> None:
    slow = [*of("two_pass"), of("one_pass")[0]]
    assert compared(many(ratios=STEADY), many(*slow), confirm=confirming(*[1.2] * 5)).failed


def test_a_changed_machine_hides_no_larger_error() -> None:
    after = many(*range(36))
    wrong = replace(after.records[0], status=Status.WRONG)
    found = compared(many(ratios=STEADY), replace(after, records=(wrong, *after.records[1:])))
    assert found.failed
