"""Who is chosen: for each rule a case that it alone decides."""

from dataclasses import replace
from math import inf, log, nan

import numpy as np
import pytest
from choice_records import choice_among, chosen, failed, ran, vacuous

from harness.measure.sample_statistics import median_estimate
from harness.records import Clock, Estimate, Record, Status
from harness.selection.choose import Requirements
from harness.selection.eligibility import DisqualificationKind
from harness.selection.ranking import Candidate, Decider, rank

NATIVE = ran("native", 1.0)
LONG = (4096, 4096)
"""Of calls that take more than a millisecond."""


def disqualification_of(
    name: str, *records: Record, requirements: Requirements | None = None
) -> DisqualificationKind | None:
    choice = choice_among(*records, requirements=requirements)
    (disqualification,) = (
        each.disqualification for each in choice.candidates if each.label == name
    )
    return None if disqualification is None else disqualification.kind


# --- time -----------------------------------------------------------------------------------------


def test_the_fastest_is_chosen() -> None:
    assert chosen(NATIVE, ran("quick", 0.8), ran("slow", 1.3)) == "quick"


def test_a_time_that_is_not_believed_does_not_count() -> None:
    assert chosen(NATIVE, ran("quick", 0.1, is_valid=False)) == "native"
    assert (
        disqualification_of("quick", NATIVE, ran("quick", 0.1, is_valid=False))
        is DisqualificationKind.NOT_BELIEVED
    )


def test_who_was_not_timed_is_not_chosen() -> None:
    assert disqualification_of("exact", NATIVE, ran("exact")) is DisqualificationKind.UNTIMED
    assert chosen(NATIVE, ran("exact", error_ulp=0.5)) == "native"


def test_ratios_to_the_reference_decide_and_not_seconds_of_another_moment() -> None:
    slow_moment = ran("quick", 0.8)
    assert slow_moment.latency is not None
    late = replace(slow_moment.latency.per_call_s, value=9.0, low=8.9, high=9.1)
    quick = replace(slow_moment, latency=replace(slow_moment.latency, per_call_s=late))
    assert chosen(NATIVE, quick) == "quick"


def test_without_a_common_reference_seconds_decide() -> None:
    other = ran("other", 2.0)
    assert other.latency is not None
    own_scale = replace(other, latency=replace(other.latency, reference="another"))
    assert chosen(NATIVE, own_scale) == "native"
    assert chosen(ran("native", 3.0), own_scale) == "other"


def test_times_are_compared_on_the_same_inputs_alone() -> None:
    elsewhere = ran("quick", 0.5, distribution="uniform")
    here = [NATIVE, ran("native", distribution="uniform"), ran("third", 1.2)]
    both = [*here, ran("third", distribution="uniform"), ran("quick")]
    assert disqualification_of("quick", *both, elsewhere) is DisqualificationKind.UNTIMED


def test_times_of_another_clock_are_not_compared() -> None:
    quick = ran("quick", 0.5)
    assert quick.latency is not None
    by_wall = replace(quick, latency=replace(quick.latency, clock=Clock.WALL))
    assert chosen(NATIVE, ran("third", 1.2), by_wall) == "native"


# --- ties -----------------------------------------------------------------------------------------


def test_overlapping_intervals_are_broken_by_accuracy() -> None:
    quick, exact = ran("quick", 0.98, error_ulp=3.0), ran("exact", 0.99, error_ulp=0.5)
    choice = choice_among(quick, exact)
    assert choice.best is not None
    assert choice.best.label == "exact"
    assert choice.ranking.decider is Decider.ACCURACY


def test_intervals_apart_are_no_tie_however_accurate_the_slower() -> None:
    quick, exact = ran("quick", 0.90, error_ulp=3.0), ran("exact", 0.99, error_ulp=0.5)
    assert chosen(quick, exact) == "quick"


@pytest.mark.parametrize("ratio", [0.1, 585.0])
def test_a_time_of_one_epoch_is_no_time_to_choose_by(ratio: float) -> None:
    once = ran("once", ratio, interval=(0.0, inf), error_ulp=0.5)
    assert chosen(once, NATIVE) == "native"
    assert disqualification_of("once", once, NATIVE) is DisqualificationKind.TOO_FEW_SAMPLES
    assert chosen(once) is None


@pytest.mark.parametrize("bad", [nan, inf, 0.0, -1.0])
def test_a_time_that_is_no_number_is_not_believed(bad: float) -> None:
    unreal = ran("unreal", bad, interval=(bad, bad))
    assert disqualification_of("unreal", unreal, NATIVE) is DisqualificationKind.NOT_BELIEVED
    assert chosen(unreal, NATIVE) == "native"
    unreal = ran("unreal", 0.5, interval=(bad, nan))
    assert disqualification_of("unreal", unreal, NATIVE) is DisqualificationKind.NOT_BELIEVED


def test_a_reference_whose_time_is_no_number_spoils_no_other() -> None:
    assert chosen(ran("native", 0.0, interval=(0.0, 0.0)), ran("quick", 0.5)) == "quick"


def test_a_cost_that_is_no_number_is_ranked_nowhere() -> None:
    none = Estimate(value=nan, low=nan, high=nan)
    unknown = Candidate(implementation="unknown", cost=none, span=none, disqualification=None)
    assert rank([unknown]).best is None


def test_a_wide_interval_does_not_make_the_more_accurate_as_fast() -> None:
    # two epochs: t = 12.7
    exact = ran("exact", 2.0, interval=(0.82, 4.9), error_ulp=0.5)
    choice = choice_among(NATIVE, exact)
    assert choice.best is not None
    assert choice.best.label == "native"
    assert choice.ranking.decider is Decider.ESTIMATE
    assert [each.label for each, _ in choice.ranking.tied] == ["exact"]


def test_accuracy_decides_up_to_a_tenth_more_time_than_that_of_the_fastest() -> None:
    quick = ran("quick", 1.0, interval=(0.95, 1.05), error_ulp=3.0)
    near = ran("exact", 1.04, interval=(0.99, 1.0999), error_ulp=0.5)
    assert chosen(quick, near) == "exact"
    assert chosen(quick, ran("exact", 1.04, interval=(0.98, 1.1001), error_ulp=0.5)) == "quick"


def test_memory_too_decides_only_where_both_are_close_to_the_fastest() -> None:
    quick = ran("quick", 1.0, interval=(0.95, 1.05), peak_bytes=200)
    assert chosen(quick, ran("lean", 1.04, interval=(0.98, 1.2), peak_bytes=100)) == "quick"


def test_the_fastest_by_a_wide_interval_is_not_called_as_fast_as_the_next() -> None:
    choice = choice_among(ran("wide", 0.9, interval=(0.4, 2.0)), NATIVE)
    assert choice.ranking.decider is Decider.ESTIMATE
    assert chosen(ran("wide", 0.9, interval=(0.4, 2.0), error_ulp=3.0), NATIVE) is not None


def test_five_processes_do_not_make_the_slower_and_more_accurate_as_fast() -> None:
    """10 % slower, processes that differ by 3 %: chosen seldom, where 21 in 100 were."""
    random, taken = np.random.default_rng(1), 0
    for _ in range(500):
        first, second = (
            median_estimate(list(np.exp(random.normal(log(ratio), 0.03, 5))))
            for ratio in (1.0, 1.10)
        )
        quick = ran("quick", first.value, interval=(first.low, first.high), error_ulp=3.0)
        exact = ran("exact", second.value, interval=(second.low, second.high), error_ulp=0.5)
        taken += chosen(quick, exact) == "exact"
    assert taken <= 25


def test_equal_accuracy_is_broken_by_memory() -> None:
    quick, lean = ran("quick", 0.98, peak_bytes=200), ran("lean", 0.99, peak_bytes=100)
    choice = choice_among(quick, lean)
    assert choice.best is not None
    assert choice.best.label == "lean"
    assert choice.ranking.decider is Decider.MEMORY


def test_an_error_below_half_an_ulp_is_no_better_than_another() -> None:
    quick = ran("quick", 0.98, error_ulp=0.5, peak_bytes=1)
    assert chosen(quick, ran("lucky", 0.99, error_ulp=0.2, peak_bytes=2)) == "quick"


def test_memory_of_which_one_is_unknown_breaks_no_tie() -> None:
    assert chosen(ran("quick", 0.98), ran("lean", 0.99, peak_bytes=100)) == "quick"


def test_what_nothing_tells_apart_is_decided_by_the_smaller_estimate_and_said_so() -> None:
    choice = choice_among(ran("two", 0.99), ran("one", 0.98))
    assert choice.best is not None
    assert choice.best.label == "one"
    assert choice.ranking.decider is Decider.NOTHING


def test_a_tie_is_broken_where_all_of_them_are_right() -> None:
    lost = [vacuous(name, distribution="constant", condition=inf) for name in ("quick", "other")]
    beyond = [replace(lost[0], errors=ran("x", error_ulp=9e9).errors), lost[1]]
    assert chosen(ran("quick", 0.98), ran("other", 0.99), *beyond) == "quick"


# --- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "tied", "apart"), [((64, 768), 1.05, 1.08), (LONG, 1.2, 1.24)])
def test_over_one_process_more_is_a_tie(shape: tuple[int, ...], tied: float, apart: float) -> None:
    def decider(ratio: float, processes: int) -> Decider | None:
        native = ran("native", 1.0, shape=shape, processes=processes, spread=0.001)
        other = ran("other", ratio, shape=shape, processes=processes, spread=0.001)
        return choice_among(native, other).ranking.decider

    assert decider(tied, 1) is not Decider.TIME
    assert decider(tied, 5) is Decider.TIME
    assert decider(apart, 1) is Decider.TIME


def test_over_one_process_accuracy_decides_by_the_interval_as_measured() -> None:
    quick = ran("quick", 1.0, shape=LONG, processes=1, error_ulp=3.0)
    assert chosen(quick, ran("exact", 1.05, shape=LONG, processes=1, error_ulp=0.5)) == "exact"
    assert chosen(quick, ran("exact", 1.15, shape=LONG, processes=1, error_ulp=0.5)) == "quick"


@pytest.mark.parametrize(("candidates", "spread"), [(2, 0.005), (2, 0.01), (5, 0.01)])
def test_of_equal_ones_over_one_process_none_is_the_winner_by_time(
    candidates: int, spread: float
) -> None:
    """Between processes they differ by ``spread``, which the intervals do not show."""
    random, winners = np.random.default_rng(1), 0
    for _ in range(200):
        found = [
            ran(
                f"implementation{number}",
                float(np.exp(random.normal(0, spread))),
                spread=0.003,
                processes=1,
            )
            for number in range(candidates)
        ]
        winners += choice_among(*found).ranking.decider is Decider.TIME
    assert winners <= 4


# --- accuracy -------------------------------------------------------------------------------------


def test_who_is_wrong_on_any_distribution_is_not_chosen() -> None:
    bad = ran("quick", distribution="uniform", status=Status.WRONG)
    assert chosen(NATIVE, ran("native", distribution="uniform"), ran("quick", 0.5), bad) == "native"


def test_out_of_guarantee_is_no_pass_where_another_keeps_its_promise() -> None:
    held = ran("native", distribution="offset_1e4", condition=1e4)
    records = (NATIVE, held, ran("quick", 0.5), vacuous("quick"))
    assert chosen(*records) == "native"
    assert disqualification_of("quick", *records) is DisqualificationKind.OUT_OF_GUARANTEE


def test_where_none_promises_anything_none_is_blamed() -> None:
    assert chosen(NATIVE, vacuous("native"), ran("quick", 0.5), vacuous("quick")) == "quick"


def test_who_promises_nothing_anywhere_is_not_chosen_even_alone() -> None:
    assert chosen(replace(NATIVE, status=Status.OUT_OF_GUARANTEE)) is None


def test_who_was_not_verified_where_others_hold_is_not_chosen() -> None:
    held = ran("native", distribution="constant")
    assert (
        disqualification_of("quick", NATIVE, held, ran("quick", 0.5))
        is DisqualificationKind.UNVERIFIED
    )
    assert chosen(NATIVE, held, ran("quick", 0.5)) == "native"


def test_a_time_without_any_error_measured_is_no_evidence() -> None:
    assert chosen(replace(NATIVE, errors=None)) is None


@pytest.mark.parametrize(
    "status",
    [Status.CRASHED, Status.TIMEOUT, Status.ERROR, Status.OUT_OF_MEMORY, Status.UNSUPPORTED],
)
def test_who_fails_where_another_runs_is_not_chosen(status: Status) -> None:
    held = ran("native", distribution="uniform")
    bad = failed("quick", status, distribution="uniform")
    assert chosen(NATIVE, held, ran("quick", 0.5), bad) == "native"


def test_what_nobody_can_run_speaks_against_nobody() -> None:
    nobody = [failed(name, Status.UNSUPPORTED, distribution="max") for name in ("native", "quick")]
    assert chosen(NATIVE, ran("quick", 0.5), *nobody) == "quick"


def test_an_error_above_the_one_allowed_excludes() -> None:
    records = (ran("native", 1.0, error_ulp=2.0), ran("quick", 0.5, error_ulp=2.1))
    assert chosen(*records) == "quick"
    assert chosen(*records, requirements=Requirements(max_error_ulp=2.0)) == "native"


@pytest.mark.parametrize("error_ulp", [inf, nan])
def test_an_error_that_is_no_number_is_above_every_one_allowed(error_ulp: float) -> None:
    requirements = Requirements(max_error_ulp=1e300)
    assert chosen(ran("native", 1.0, error_ulp=error_ulp), requirements=requirements) is None


def test_evidence_beyond_the_condition_to_be_served_is_left_aside() -> None:
    held = ran("native", distribution="offset_1e4", condition=1e4)
    records = (NATIVE, held, ran("quick", 0.5), vacuous("quick", 1e4))
    assert chosen(*records, requirements=Requirements(max_condition=1e3)) == "quick"
    assert chosen(*records, requirements=Requirements(max_condition=1e4)) == "native"
