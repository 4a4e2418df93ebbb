"""Latency is judged against a baseline and in turn with a base, from ratios that a test gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log, nan
from statistics import median, stdev
from typing import Any

import numpy as np
import pytest
from factories.compared_runs import (
    BEFORE,
    HERE,
    SHARED,
    STEADY,
    STEPPED,
    ScriptedFleet,
    change,
    compared,
    confirming,
    make_case,
    make_cases,
    make_latency,
    make_record,
    now,
    results_of,
)
from factories.fake_device import CALL_S, latency_of, measure, payer

from harness.records import Case, Estimate, Latency, Record, Status
from harness.regression import (
    SCREENING_IN_TURN,
    Change,
    ChangeKind,
    Shift,
    confirm_here,
    judge,
    process_ratios,
    ratio_between,
    screen_in_turn,
)

SLOWER, FASTER = ChangeKind.SLOWER, ChangeKind.FASTER
UNCHANGED, INCONCLUSIVE = ChangeKind.UNCHANGED, ChangeKind.INCONCLUSIVE


# --- ratios of processes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency", "expected"),
    [
        (make_latency((1.5, 2.0, 0.5)), (1.5, 2.0, 0.5)),
        # the median of two epochs each
        (replace(make_latency((1.0, 3.0)), process_of_epoch=(0, 1, 1, 1)), (1, 3)),
        (make_latency((2.0, 2.0), arms=()), (2.0,)),  # without samples, the one ratio
        *((make_latency((1.0, bad)), ()) for bad in (nan, inf, -1.0)),
        (replace(make_latency((1.0, 1.0)), process_of_epoch=(0, 0, 1)), ()),
    ],
)
def test_the_ratio_of_each_process_comes_from_valid_samples(
    latency: Latency, expected: tuple[float, ...]
) -> None:
    assert process_ratios(latency) == pytest.approx(expected)


def test_the_interval_of_a_change_follows_from_the_spread_of_each_run() -> None:
    before = (1.0, 1.002, 0.998, 1.001, 0.999)
    after = (1.22, 1.30, 1.36, 1.28, 1.33)
    found = ratio_between(before, after)
    # 4 degrees: nearly all of the error is that of the five after; 1.089 for their median
    half = 1.089 * 2.776 * stdev(map(log, after)) / 5**0.5
    assert log(found.high / found.value) == pytest.approx(half, rel=0.01)
    assert log(found.value / found.low) == pytest.approx(log(found.high / found.value))
    found = ratio_between(before, after[:1])
    # a single process is assumed to spread as the five before
    half = 2.776 * stdev(map(log, before)) * (1.089**2 / 5 + 1) ** 0.5
    assert log(found.high / found.value) == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize("after", [5, 1])
def test_95_percent_of_the_intervals_of_a_change_hold_it(after: int) -> None:
    ratios = np.exp(0.02 * np.random.default_rng(1).standard_normal((2000, 10 + after)))
    intervals = [ratio_between(row[:10], row[10:]) for row in ratios.tolist()]
    held = sum(found.low <= 1 <= found.high for found in intervals)
    assert 0.93 < held / len(intervals) < 0.97  # four standard errors


# --- against a baseline --------------------------------------------------------------------------


def spread_by(share: float) -> tuple[float, ...]:
    return tuple(exp(share * sign) for sign in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))


SPREAD_BY_2, SPREAD_BY_4 = make_record(ratios=spread_by(0.02)), make_record(ratios=spread_by(0.04))
TWO_SPREADS = exp(2 * stdev(map(log, spread_by(0.02)))) * median(spread_by(0.02))
FOUR_SPREADS = exp(4 * stdev(map(log, spread_by(0.04)))) * median(spread_by(0.04))
WARNED = replace(BEFORE, warnings=(SHARED,))
FAULTING = make_record(latency=make_latency(STEADY, minor_faults_ratio=7.0))


def test_a_case_that_now_lets_every_fourth_call_pay_is_slower() -> None:
    """Three samples in four take as long as before."""
    paying = make_record(latency=latency_of(measure(payer(4, 8 * CALL_S))))
    before = make_record(latency=make_latency(STEADY, reference="reference"))
    (ratio,) = process_ratios(paying.latency)
    assert ratio == pytest.approx(3.0, rel=0.1)
    assert change(before, paying).kind is INCONCLUSIVE
    assert change(before, paying, confirm=confirming(*[ratio] * 5)).kind is SLOWER


def recordings(*levels: float, case: Case | None = None) -> Record:
    latency = make_latency([ratio * level for level in levels for ratio in STEADY])
    return replace(make_record(case, latency=latency), warnings=(SHARED,))


@pytest.mark.parametrize(
    ("before", "now_at", "kind"),
    [
        (recordings(1.0, 1.0, 1.0), 1.05, SLOWER),  # what disturbed one would show
        (recordings(1.0, 1.0), 1.05, INCONCLUSIVE),
        (recordings(0.98, 1.0, 1.02), 1.07, INCONCLUSIVE),  # less than 4 times 2 %
        (recordings(0.98, 1.0, 1.02), 1.09, SLOWER),
        (recordings(0.98, 1.0, 1.02), 1.0, INCONCLUSIVE),  # 4 % would not show
    ],
)
def test_a_change_exceeds_what_recordings_of_the_baseline_differ_by(
    before: Record, now_at: float, kind: ChangeKind
) -> None:
    fresh = confirming(*[now_at] * 5)
    assert change(before, make_record(ratios=(now_at,)), confirm=fresh).kind is kind


def test_recordings_of_one_case_that_agree_do_not_hide_that_those_of_others_differ() -> None:
    one, two = make_cases(2)
    before = results_of(recordings(1, 1, 1, case=one), recordings(0.98, 1, 1.02, case=two))
    after = results_of(*(make_record(case, (1.055,)) for case in (one, two)))
    found = compared(before, after, confirm=confirming(*[1.055] * 5))
    # 4 times the root mean square of 0 and 2 %
    assert found.counts == {INCONCLUSIVE: 2}


@pytest.mark.parametrize(
    ("before", "first", "fresh", "kind"),
    [
        # no suspect, so it is not timed again
        (BEFORE, 1.029, (), UNCHANGED),
        (SPREAD_BY_2, TWO_SPREADS * 0.999, (), UNCHANGED),
        (BEFORE, 1.031, "it rains", INCONCLUSIVE),
        (SPREAD_BY_2, TWO_SPREADS * 1.001, "it rains", INCONCLUSIVE),
        # every fresh process has to agree
        (BEFORE, 1.1, (1.039,) * 5, INCONCLUSIVE),  # less than 4 %
        (BEFORE, 1.1, (1.041,) * 5, SLOWER),
        (BEFORE, 1.1, (1.06, 1.08, 1.10, 1.20, 1.30), INCONCLUSIVE),  # they differ
        (BEFORE, 2.0, (1.80, 1.90, 2.00, 2.10, 2.20), SLOWER),
        (BEFORE, 1.1, (0.8,) * 5, INCONCLUSIVE),  # the other direction
        (BEFORE, 1.1, (1.5,) * 4, INCONCLUSIVE),  # too few
        (BEFORE, 1.1, (1.5,) * 4 + (nan,), INCONCLUSIVE),
        (BEFORE, 0.8, (0.80, 0.80, 0.81, 0.79, 0.80), FASTER),
        *(
            row
            for noisy, least in ((SPREAD_BY_4, FOUR_SPREADS), (WARNED, 1.5), (FAULTING, 1.5))
            for row in (
                (noisy, 0.999 * least, (), INCONCLUSIVE),
                (noisy, 1.5 * least, (0.999 * least,) * 5, INCONCLUSIVE),
                (noisy, 1.001 * least, (1.001 * least,) * 5, SLOWER),
            )
        ),
    ],
)
def test_a_case_changed_only_if_it_is_suspect_and_every_fresh_process_agrees(
    before: Record, first: float, fresh: tuple[float, ...] | str, kind: ChangeKind
) -> None:
    asked: list[Shift] = []

    def confirm(suspects: Sequence[Shift]) -> Any:
        asked.extend(suspects)
        return fresh if isinstance(fresh, str) else {before.case.id: fresh}

    found = change(before, now(first), confirm=confirm)
    assert (found.kind, found.kind.is_failure) == (kind, kind is SLOWER)
    assert [shift.case for shift in asked] == ([before.case] if fresh else [])
    assert found.ratio is not None
    assert not isinstance(fresh, str) or found.reason.endswith(fresh)


# --- a machine that changed ----------------------------------------------------------------------

MANY = make_cases(36)
ONE_PASS, TWO_PASS = (
    [index for index, case in enumerate(MANY) if case.implementation == name]
    for name in ("one_pass", "two_pass")
)
STEADY_RUN = results_of(*(make_record(case, STEADY) for case in MANY))


@pytest.mark.parametrize(
    ("slow", "factor", "fresh", "counts"),
    [
        # suspects of one implementation, and one by chance, are timed again
        ([*TWO_PASS, ONE_PASS[0]], 1.2, 1.2, {SLOWER: 13, UNCHANGED: 23}),
        # suspects in all implementations mean that the machine changed
        (range(0, 36, 5), 1.2, None, {INCONCLUSIVE: 36}),
        # a suspect then has to be slower by a half
        (range(36), 1.49, None, {INCONCLUSIVE: 36}),
        (range(36), 1.6, 1.49, {INCONCLUSIVE: 36}),
        (range(36), 1.6, 1.51, {SLOWER: 36}),
        # noisy cases that did not move do not hide it
        ("noisy", 1.2, None, {INCONCLUSIVE: 36}),
    ],
)
def test_many_suspects_are_a_machine_that_changed_unless_they_are_far_slower(
    slow: Sequence[int], factor: float, fresh: float | None, counts: dict[ChangeKind, int]
) -> None:
    before = STEADY_RUN.records
    if slow == "noisy":
        slow = [0, 1, 2]
        before = (*before[:12], *(replace(one, warnings=(SHARED,)) for one in before[12:]))
    ratios = [factor if index in slow else 1.0 for index in range(36)]
    after = (make_record(case, (ratio,)) for case, ratio in zip(MANY, ratios, strict=True))
    asked = []

    def confirm(suspects: Sequence[Shift]) -> dict[str, list[float]]:
        asked.extend(shift.case for shift in suspects)
        return {shift.case.id: [fresh or 0.0] * 5 for shift in suspects}

    found = compared(results_of(*before), results_of(*after), confirm=confirm)
    assert asked == ([MANY[index] for index in sorted(slow)] if fresh else [])
    assert found.counts == counts


# --- in turn with a base -------------------------------------------------------------------------

QUANTILES = {1: 1.0, 6: 2.571, 8: 2.365}
"""Half of a 95 % interval of a median of so many epochs, over its standard error."""
MEDIAN = {1: 1.0, 6: 1.072, 8: 1.104}
"""The standard error of a median of so many values, over that of their mean."""
LONG = {"base_s": 1e-3}
"""From this time of the base on, a call is long and only larger effects can be confirmed."""
CASE = make_case()


def in_turn(ratio: Estimate, epochs: int = 1, base_s: float = 0.9e-3, **changes: Any) -> Record:
    latency = make_latency(
        (1.0,),
        reference_ratio=ratio,
        per_call_s=Estimate(value=base_s * ratio.value, low=0.0, high=inf),
        process_of_epoch=(0,) * epochs,
    )
    return make_record(changes.pop("case", CASE), latency=latency, **changes)


def seen(ratio: float, error: float = 0.001, epochs: int = 8, **changes: Any) -> Any:
    """Return the first look at a ratio; ``error`` is the standard error of its logarithm."""
    half = QUANTILES[epochs] * error
    estimate = Estimate(value=ratio, low=ratio * exp(-half), high=ratio * exp(half))
    return screen_in_turn(in_turn(estimate, epochs, **changes))


def look(*epochs: float, **changes: Any) -> Any:
    """Return the first look at a case with the given ratio to the base in each epoch."""
    epoch_error = stdev(map(log, epochs)) if len(epochs) > 1 else inf
    error = MEDIAN[len(epochs)] * epoch_error / len(epochs) ** 0.5
    return seen(median(epochs), error, len(epochs), **changes)


def test_refuted_cases_are_not_timed_again_in_the_next_process() -> None:
    cases = [make_case(rows=rows) for rows in (1, 2, 3)]
    # the first is refuted at once; the third moved, but too little in three of five
    ratios = dict(zip((case.id for case in cases), (1.0, 1.25, 1.015), strict=True))
    fleet: Any = ScriptedFleet(ratios)
    confirm = confirm_here(results_of(*map(make_record, cases)), lambda: fleet, lambda line: None)
    found = confirm([seen(1.2, case=case) for case in cases])
    assert found == {cases[0].id: [1.0], cases[1].id: [1.25] * 5, cases[2].id: [1.015] * 3}
    assert [len(jobs) for jobs in fleet.asked] == [3, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("run", "here", "said"),
    [
        ({"git_commit": "fedcba98"}, {}, "the run was of commit fedcba98, but 0123456789ab is"),
        ({"git_dirty": True}, {"git_dirty": False}, "changes to commit 0123456789ab that are gone"),
    ],
)
def test_a_run_of_other_code_is_not_confirmed(
    run: dict[str, Any], here: dict[str, Any], said: str
) -> None:
    results = results_of(make_record(CASE))
    of_run: Any = {"git_commit": HERE.git_commit, "git_dirty": HERE.git_dirty, **run}
    results = replace(results, runs=(replace(results.runs[-1], **of_run),))
    fleet: Any = ScriptedFleet({}, environment=replace(HERE, **here))
    found = confirm_here(results, lambda: fleet, lambda line: None)([seen(1.2)])
    assert said in str(found)


@pytest.mark.parametrize(("pays", "kind"), [("subject", SLOWER), ("reference", FASTER)])
def test_calls_that_pay_for_others_count_by_their_mean(pays: str, kind: ChangeKind) -> None:
    device = payer(4, 8 * CALL_S, pays)
    latency = latency_of(measure(device, ("subject", "reference"), SCREENING_IN_TURN))
    found: Any = screen_in_turn(make_record(CASE, latency=latency))
    judged = judge(found, process_ratios(latency) * 5)
    assert (judged.kind, "with uneven calls" in judged.reason) == (kind, True)


@pytest.mark.parametrize(
    ("record", "fact"),
    [
        (in_turn(Estimate(value=0.0, low=0.0, high=inf)), "not positive"),
        (make_record(CASE, status=Status.ERROR, reason="RuntimeError: no"), "RuntimeError: no"),
        (make_record(CASE, warnings=(STEPPED,)), "with the base; set by hand"),
    ],
)
def test_a_record_without_a_usable_ratio_is_inconclusive(record: Record, fact: str) -> None:
    found = screen_in_turn(record)
    assert isinstance(found, Change)
    assert found.kind is INCONCLUSIVE
    assert fact in found.reason


UP = (1.5,) * 5
EIGHT = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0)
SIX = (0.96, 1.04, 0.97, 1.03, 1.0, 1.0)


@pytest.mark.parametrize(
    ("look", "fresh", "kind"),
    [
        # a suspect moved by more than 1 % and one standard error
        (seen(1.0099), UP, UNCHANGED),
        (seen(1.0101), UP, SLOWER),
        (seen(exp(0.0197), 0.02, **LONG), UP, UNCHANGED),
        (seen(exp(0.0203), 0.02, **LONG), UP, SLOWER),
        # or, with a single epoch, by more than the least effect
        (look(1.0499, **LONG), UP, INCONCLUSIVE),
        (look(1.0501, **LONG), UP, SLOWER),
        # another case is unchanged if a change would show
        (look(*EIGHT), UP, UNCHANGED),
        (look(*SIX), UP, INCONCLUSIVE),
        (look(*SIX, **LONG), UP, UNCHANGED),
        # every process agrees on more than the least effect
        (seen(1.5), (1.0201,) * 5, SLOWER),
        (seen(1.5), (1.0199,) * 5, INCONCLUSIVE),
        (seen(1.5, **LONG), (1.0501,) * 5, SLOWER),
        (seen(1.5, **LONG), (1.0499,) * 5, INCONCLUSIVE),
        (seen(1.5), (1.012, 1.012, 1.1, 1.15, 1.16), INCONCLUSIVE),  # standard error 4 %
        (seen(1.5), (1.0002, 1.03, 1.03, 1.03, 1.03), SLOWER),
        # what favours base or head in every process does so in three of five
        (seen(1.5), (1.05, 0.9998, 1.05, 0.9998, 1.05), INCONCLUSIVE),
        (seen(0.9), (0.9,) * 5, FASTER),
        (seen(0.9), (1.022,) * 5, INCONCLUSIVE),
        # refuted before the last process: one is faster; three are below the least effect
        (seen(1.5), (0.99,), INCONCLUSIVE),
        (seen(1.5), (1.03, 1.012, 1.03, 1.015), INCONCLUSIVE),  # not yet refuted
        (seen(1.5), (1.5,) * 4 + (nan,), INCONCLUSIVE),
        (seen(1.5), "the time was up", INCONCLUSIVE),
    ],
)
def test_a_case_changed_in_turn_only_if_every_fresh_process_agrees(
    look: Shift, fresh: tuple[float, ...] | str, kind: ChangeKind
) -> None:
    found = judge(look, fresh)
    assert found.kind is kind
    assert found.ratio is not None
