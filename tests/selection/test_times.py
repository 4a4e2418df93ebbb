"""Which times are compared with each other."""

from factories.choice_records import (
    choice_among,
    choices_among,
    chosen,
    ran,
    results_of,
    with_latency,
)
from factories.fake_device import CALL_S, latency_of, measure, payer

from harness.records import Clock, Estimate, Record
from harness.selection import DisqualificationKind, choose

NATIVE = ran("native", 1.0)
OTHER = "pytest-benchmark:perf_counter"


def test_ratios_to_the_reference_are_compared_and_not_seconds() -> None:
    seconds = Estimate(value=9.0, low=8.9, high=9.1)
    assert chosen(NATIVE, with_latency(ran("quick", 0.8), per_call_s=seconds)) == "quick"


def test_without_a_common_reference_seconds_are_compared() -> None:
    of_another = with_latency(ran("other", 2.0), reference="another")
    assert chosen(NATIVE, of_another) == "native"
    assert chosen(ran("native", 3.0), of_another) == "other"


def test_only_times_on_the_same_inputs_are_compared() -> None:
    distributions = ("normal", "uniform")
    verified = [
        ran(name, distribution=distribution)
        for name in ("native", "third")
        for distribution in distributions
    ]
    timed = [NATIVE, ran("third", 1.2), ran("quick", 0.5, distribution="uniform"), ran("quick")]
    assert chosen(*verified, *timed) == "native"


def test_times_of_another_clock_are_not_compared() -> None:
    by_wall = with_latency(ran("quick", 0.5), clock=Clock.WALL)
    assert chosen(NATIVE, ran("third", 1.2), by_wall) == "native"


def test_a_candidate_that_lets_every_fourth_call_pay_is_not_chosen() -> None:
    """Its fast calls take half the time of native, all of its calls 1.5 times that."""
    paying = latency_of(measure(payer(4, 8 * CALL_S), ("subject", "reference")))
    assert paying.reference_ratio is not None
    ratio = paying.reference_ratio
    half = Estimate(value=ratio.value / 2, low=ratio.low / 2, high=ratio.high / 2)
    assert chosen(NATIVE, ran("quick", 0.5)) == "quick"
    assert chosen(NATIVE, with_latency(ran("quick", 0.5), reference_ratio=half)) == "native"


# --- timers ---------------------------------------------------------------------------------------


def by_another_timer(record: Record) -> Record:
    """Return the record as an import has it: timed by another timer, without a reference."""
    return with_latency(record, timer=OTHER, reference=None, reference_ratio=None)


def test_a_candidate_of_another_timer_is_not_chosen_for_its_time() -> None:
    quick = by_another_timer(ran("quick", 0.01))
    records = (NATIVE, ran("third", 1.5), quick)
    assert chosen(*records) == "native"
    reasons = {
        candidate.label: candidate.disqualification
        for candidate in choice_among(*records).candidates
    }
    assert reasons["quick"] is not None
    assert reasons["quick"].kind is DisqualificationKind.UNTIMED


def test_a_choice_names_the_timers_if_one_is_foreign() -> None:
    (note,) = choices_among(NATIVE, by_another_timer(ran("quick", 0.1))).notes
    assert OTHER in note
    assert choices_among(NATIVE, ran("quick", 0.1)).notes == ()


def test_candidates_of_one_foreign_timer_can_be_compared() -> None:
    records = [by_another_timer(record) for record in (NATIVE, ran("quick", 0.5))]
    assert chosen(*records) == "quick"
    assert OTHER in choices_among(*records).notes[0]


def test_of_two_timers_with_as_many_cases_the_own_timer_counts() -> None:
    ours = [NATIVE, ran("quick", 0.5)]
    theirs = [by_another_timer(record) for record in (NATIVE, ran("quick", 2.0))]
    assert chosen(*ours, *theirs) == chosen(*theirs, *ours) == "quick"


def test_an_import_does_not_replace_a_record_of_the_own_timer() -> None:
    ours = results_of([NATIVE, ran("quick", 0.5)])
    slow = Estimate(value=1.0, low=0.9, high=1.1)
    imported = with_latency(by_another_timer(ran("quick", 0.5)), per_call_s=slow)
    (choice,) = choose([ours, results_of([imported])]).choices
    assert choice.best is not None
    assert choice.best.label == "quick"
    assert choice.best.cost is not None
    assert choice.best.cost.value < 0.5
