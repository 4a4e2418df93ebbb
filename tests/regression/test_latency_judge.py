"""Latency against a baseline: suspects, their confirmation, noise, and what is not judged.

No time is taken: each test gives the ratio of a case's time to the reference's in each process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, inf, log, nan
from statistics import median, stdev
from typing import Any, cast

import numpy as np
import pytest
from factories.compared_runs import (
    BEFORE,
    ELSEWHERE,
    SHARED,
    STEADY,
    ScriptedFleet,
    change,
    compared,
    confirming,
    elsewhere,
    make_case,
    make_cases,
    make_latency,
    make_record,
    now,
    results_of,
    with_memory,
)
from factories.fake_device import CALL_S, latency_of, measure, payer

from harness.records import (
    Allocation,
    Budget,
    Cache,
    Case,
    Clock,
    Estimate,
    Latency,
    Measurement,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.regression import (
    AGAINST_BASELINE,
    BASELINE_PROCESSES,
    CONFIRMING,
    CONFIRMING_PROCESSES,
    IN_TURN,
    ChangeKind,
    Shift,
    judge,
    noise_of,
    process_ratios,
    ratio_between,
    spread_of,
    time_again,
)
from harness.run.fleet import Fleet, Job, merged

CASE = make_case()
STEPPED = (MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand"),)


def spread_by(share: float) -> tuple[float, ...]:
    return tuple(exp(share * sign) for sign in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1))


# --- ratios of processes -------------------------------------------------------------------------

PAIRED = make_latency((1.0, 1.0))
ON_GPU = make_latency((2.0,), clock=Clock.CUDA_EVENT)


@pytest.mark.parametrize(
    ("latency", "expected"),
    [
        (make_latency((1.5, 2.0, 0.5)), (1.5, 2.0, 0.5)),
        # the median of two epochs each
        (replace(make_latency((1.0, 3.0)), process_of_epoch=(0, 1, 1, 1)), (1, 3)),
        (replace(ON_GPU, arms=tuple(replace(arm, cpu_s=None) for arm in ON_GPU.arms)), (2.0,)),
        (make_latency((2.0, 2.0), arms=()), (2.0,)),  # without samples, the one ratio
        *((make_latency((1.0, bad)), ()) for bad in (nan, inf, 0.0, -1.0)),
        (replace(PAIRED, process_of_epoch=(0, 0, 1)), ()),
        (replace(PAIRED, arms=PAIRED.arms[:1]), ()),
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


@pytest.mark.parametrize(("before", "after"), [(10, 5), (5, 5), (10, 10), (10, 1)])
def test_95_percent_of_the_intervals_of_a_change_hold_it(before: int, after: int) -> None:
    held, number = 0, 4000
    ratios = np.exp(0.02 * np.random.default_rng(1).standard_normal((number, before + after)))
    for row in ratios.tolist():
        found = ratio_between(row[:before], row[before:])
        held += found.low <= 1 <= found.high
    assert 0.935 < held / number < 0.965  # four standard errors


# --- against a baseline: the first look ----------------------------------------------------------

SPREAD_BY_2, SPREAD_BY_4 = make_record(ratios=spread_by(0.02)), make_record(ratios=spread_by(0.04))
TWO_SPREADS = exp(2 * stdev(map(log, spread_by(0.02)))) * median(spread_by(0.02))
FOUR_SPREADS = exp(4 * stdev(map(log, spread_by(0.04)))) * median(spread_by(0.04))
WARNED = replace(BEFORE, warnings=(SHARED,))
FAULTING = make_record(latency=make_latency(STEADY, minor_faults_ratio=7.0))
NOISY = {
    "spread": SPREAD_BY_4,
    "warning": WARNED,
    "faults": FAULTING,
    "nan faults": make_record(latency=make_latency(STEADY, minor_faults_ratio=nan)),
    "unconverged": make_record(latency=make_latency(STEADY, converged=False)),
}


@pytest.mark.parametrize(
    ("before", "ratio", "kind"),
    [
        (BEFORE, 1.029, ChangeKind.UNCHANGED),
        (BEFORE, 1.031, ChangeKind.INCONCLUSIVE),
        (SPREAD_BY_2, TWO_SPREADS * 0.999, ChangeKind.UNCHANGED),
        (SPREAD_BY_2, TWO_SPREADS * 1.001, ChangeKind.INCONCLUSIVE),
    ],
)
def test_a_case_is_suspect_beyond_3_percent_and_two_spreads(
    before: Record, ratio: float, kind: ChangeKind
) -> None:
    found = change(before, now(ratio))
    assert found.kind is kind
    assert (found.metric == "latency") is (kind is ChangeKind.INCONCLUSIVE)


def test_only_the_suspects_are_timed_again() -> None:
    slow, steady = make_case(rows=1), make_case(rows=2)
    asked = []

    def confirm(suspects: Sequence[Shift]) -> str:
        asked.append([shift.case for shift in suspects])
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


# --- against a baseline: the confirmation --------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "first", "fresh", "kind"),
    [
        (BEFORE, 1.1, (1.002, 1.10, 1.10, 1.11, 1.12), ChangeKind.INCONCLUSIVE),  # one within
        (BEFORE, 1.1, (1.039,) * 5, ChangeKind.INCONCLUSIVE),  # less than 4 %
        (BEFORE, 1.1, (1.041,) * 5, ChangeKind.SLOWER),
        (BEFORE, 1.1, (1.06, 1.08, 1.10, 1.20, 1.30), ChangeKind.INCONCLUSIVE),  # they differ
        (BEFORE, 2.0, (1.80, 1.90, 2.00, 2.10, 2.20), ChangeKind.SLOWER),
        (BEFORE, 1.1, (0.8,) * 5, ChangeKind.INCONCLUSIVE),  # the other direction
        (BEFORE, 1.1, (1.5,) * 4, ChangeKind.INCONCLUSIVE),  # too few
        *((BEFORE, 1.1, (1.5,) * 4 + (bad,), ChangeKind.INCONCLUSIVE) for bad in (nan, inf, 0.0)),
        (BEFORE, 1.1, "it rains", ChangeKind.INCONCLUSIVE),
        (BEFORE, 0.8, (0.80, 0.80, 0.81, 0.79, 0.80), ChangeKind.FASTER),
        (BEFORE, 0.8, (0.80, 0.80, 0.81, 0.79, 0.998), ChangeKind.INCONCLUSIVE),
        *((noisy, 3.0, (3.0,) * 5, ChangeKind.SLOWER) for noisy in NOISY.values()),
        *((noisy, 0.3, (0.3,) * 5, ChangeKind.FASTER) for noisy in NOISY.values()),
        *(
            (noisy, least * first, (least * second,) * 5, kind)
            for noisy, least in ((SPREAD_BY_4, FOUR_SPREADS), (WARNED, 1.5), (FAULTING, 1.5))
            for first, second, kind in (
                (0.999, 1.5, ChangeKind.INCONCLUSIVE),
                (1.5, 0.999, ChangeKind.INCONCLUSIVE),
                (1.001, 1.001, ChangeKind.SLOWER),
            )
        ),
    ],
)
def test_a_suspect_changed_only_if_every_fresh_process_agrees(
    before: Record, first: float, fresh: tuple[float, ...] | str, kind: ChangeKind
) -> None:
    answer = fresh if isinstance(fresh, str) else {before.case.id: fresh}
    found = change(before, now(first), confirm=lambda _: answer)
    assert found.kind is kind
    assert found.kind.is_failure is (kind is ChangeKind.SLOWER)
    assert found.ratio is not None
    assert not isinstance(fresh, str) or found.reason.endswith(fresh)


@pytest.mark.parametrize("why", NOISY)
def test_a_noisy_case_that_did_not_move_far_is_inconclusive(why: str) -> None:
    found = change(NOISY[why], now(1.02), confirm=lambda cases: pytest.fail("it is no suspect"))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "noisy" in found.reason
    assert found.ratio is not None


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("first", [1.15, 0.85])
def test_processes_that_refute_a_suspect_are_never_among_five_that_confirm_it(
    first: float, in_turn: bool
) -> None:
    seen = Estimate(value=first, low=first * exp(-0.001), high=first * exp(0.001))
    in_turn_with_base = Shift(case=CASE, ratio=seen, spread=0.001, limits=IN_TURN)
    shift = in_turn_with_base if in_turn else against_steady((first,))
    refuted = confirmed = 0
    for row in np.random.default_rng(2).normal(1, 0.03, (500, 5)) * first**0.3:
        ratios = tuple(row.tolist())
        is_confirmed = judge(shift, ratios).kind in {ChangeKind.SLOWER, ChangeKind.FASTER}
        is_refuted = any(shift.is_refuted(ratios[:number]) for number in range(1, 6))
        assert not (is_refuted and is_confirmed)
        refuted, confirmed = refuted + is_refuted, confirmed + is_confirmed
    assert min(refuted, confirmed) > 30


def against_steady(
    after: Sequence[float], before: Sequence[float] = STEADY, noise: tuple[str, float] = ("", 0.0)
) -> Shift:
    return Shift(
        case=CASE,
        limits=AGAINST_BASELINE,
        ratio=ratio_between(before, after),
        spread=spread_of(before),
        before=tuple(before),
        reference="native",
        noise=noise[0],
        least=noise[1],
    )


def simulated(cases: int, spread: float, ratio: float, tail: str) -> list[ChangeKind]:
    """Return the kinds of simulated cases whose processes spread by ``spread``."""
    random = np.random.default_rng(1)

    def processes(number: int, true_ratio: float = ratio) -> list[float]:
        drawn = random.normal(size=number)
        if tail == "t3":
            drawn = random.standard_t(3, number) / 3**0.5
        return cast("list[float]", (true_ratio * np.exp(spread * drawn)).tolist())

    found = []
    for _ in range(cases):
        before = processes(BASELINE_PROCESSES, 1.0)
        shift = against_steady(processes(1), before, noise_of(BEFORE, before))
        found.append(judge(shift, processes(5) if shift.is_suspect else ()).kind)
    return found


@pytest.mark.parametrize("tail", ["normal", "t3"])
@pytest.mark.parametrize(("spread", "twice"), [(0.04, 0.95), (0.08, 0.95), (0.15, 0.5)])
def test_unchanged_noisy_cases_do_not_fail_and_large_changes_do(
    spread: float, twice: float, tail: str
) -> None:
    assert simulated(1000, spread, 1.0, tail).count(ChangeKind.SLOWER) == 0
    assert simulated(200, spread, 3.0, tail).count(ChangeKind.SLOWER) >= 0.9 * 200
    assert simulated(200, spread, 2.0, tail).count(ChangeKind.SLOWER) >= twice * 200


# --- against a baseline: what is not judged ------------------------------------------------------


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
)
def test_a_latency_that_cannot_be_judged_is_inconclusive(before: Record, after: Record) -> None:
    found = change(before, after, confirm=confirming(*[2.0] * 5))
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, "latency")


def test_a_latency_of_one_run_or_of_a_wrong_result_is_not_compared() -> None:
    assert change(make_record(), now(2.0)).kind is ChangeKind.UNCHANGED
    found = change(replace(BEFORE, status=Status.WRONG), now(2.0))
    assert (found.kind, found.metric) == (ChangeKind.IMPROVED, "status")


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
        assert (found.kind, found.metric) == (ChangeKind.NOT_COMPARABLE, "latency")
        assert found.ratio is None
    found = change(BEFORE, with_memory(other, peak_extra_bytes=1 << 40))
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, "peak memory")


def test_the_latency_of_another_machine_is_not_compared() -> None:
    found = change(BEFORE, elsewhere(now(2.0)), confirm=confirming(*[2.0] * 5))
    assert (found.kind, found.metric) == (ChangeKind.NOT_COMPARABLE, "latency")
    assert found.ratio is None
    assert "another machine" in found.reason


# --- a machine that changed ----------------------------------------------------------------------

MANY = make_cases(36)


def many(*slow: int, ratios: Any = (1.0,), factor: float = 1.2) -> Any:
    """Return a run of 36 cases, in which those with an index in ``slow`` take ``factor`` times."""
    return results_of(
        *(
            make_record(case, [factor * ratio for ratio in ratios] if index in slow else ratios)
            for index, case in enumerate(MANY)
        )
    )


def indices_of(implementation: str) -> list[int]:
    return [index for index, case in enumerate(MANY) if case.implementation == implementation]


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
    [[0, 1, 2], indices_of("two_pass"), [*indices_of("two_pass"), indices_of("one_pass")[0]]],
    ids=["few", "one implementation", "one implementation and one suspect by chance"],
)
def test_few_suspects_or_those_of_one_implementation_are_timed_again(slow: list[int]) -> None:
    found = compared(many(ratios=STEADY), many(*slow), confirm=confirming(*[1.2] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.UNCHANGED: 36 - len(slow)}


def test_slow_shared_code_fails_if_no_machine_explains_it() -> None:
    slow = [*indices_of("one_pass"), *indices_of("two_pass")]
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
        replace(record, warnings=(SHARED,)) if index >= 12 else record
        for index, record in enumerate(steady.records)
    ]
    found = compared(
        replace(steady, records=tuple(noisy)), many(0, 1, 2), confirm=confirming(*[1.2] * 5)
    )
    assert not found.failed


# --- fresh processes, on scripted fleets ---------------------------------------------------------


class Noting(ScriptedFleet):
    """A fleet that notes when it starts, measures and ends."""

    noted: list[str]

    def __enter__(self) -> Noting:
        self.noted.append("start")
        return self

    def __exit__(self, *_: object) -> None:
        self.noted.append("end")

    def run(
        self, jobs: Sequence[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        self.noted.append("measure")
        yield from super().run(jobs, timeout_s, stop_at)


def test_processes_run_one_after_the_other_and_refuted_cases_are_left_out() -> None:
    noted: list[str] = []
    lines: list[str] = []
    cases = [make_case(rows=rows) for rows in (1, 2)]

    def make_fleet() -> Fleet:
        fleet = Noting({cases[0].id: 1.0, cases[1].id: 1.25})
        fleet.noted = noted
        return cast("Fleet", fleet)

    def job(case: Case) -> Job:
        return Job(case, (Measurement.LATENCY,), CONFIRMING)

    shifts = [replace(against_steady((1.2,)), case=case) for case in cases]
    found = time_again(shifts, job, make_fleet, lines.append, timeout_s=60.0)
    # the first case is refuted by its first process
    assert found == {cases[0].id: [1.0], cases[1].id: [1.25] * CONFIRMING_PROCESSES}
    assert noted == ["start", "measure", "end"] * CONFIRMING_PROCESSES
    assert [line.split(", ")[0] for line in lines] == [
        "timing 2 suspects again",
        *["timing 1 suspect again"] * 4,
    ]
