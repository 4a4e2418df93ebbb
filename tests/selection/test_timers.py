"""Times of two timers never meet in a choice."""

from __future__ import annotations

from dataclasses import replace

from choice_records import choices_among, chosen, ran
from choice_records import results_of as choice_results

from harness.records import Estimate, Record
from harness.selection.choose import choose
from harness.selection.eligibility import DisqualificationKind

OTHER = "pytest-benchmark:perf_counter"
NATIVE = ran("native", 1.0)


def by_another_timer(record: Record, timer: str = OTHER) -> Record:
    """The same record, its time taken by another timer, as an import gives it."""
    assert record.latency is not None
    latency = replace(record.latency, timer=timer, reference=None, reference_ratio=None)
    return replace(record, latency=latency)


def test_who_was_timed_by_another_timer_is_not_chosen_for_its_time() -> None:
    quick = by_another_timer(ran("quick", 0.01))
    records = (NATIVE, ran("third", 1.5), quick)
    assert chosen(*records) == "native"
    (choice,) = choices_among(*records).choices
    (disqualification,) = (
        each.disqualification for each in choice.candidates if each.label == "quick"
    )
    assert disqualification is not None
    assert disqualification.kind is DisqualificationKind.UNTIMED


def test_a_choice_says_who_timed_if_it_was_not_us() -> None:
    (note,) = choices_among(NATIVE, by_another_timer(ran("quick", 0.1))).notes
    assert note == (
        "cases by timer: layernorm-bench 1, pytest-benchmark:perf_counter 1; times of two timers "
        "are never compared"
    )
    assert choices_among(NATIVE, ran("quick", 0.1)).notes == ()


def test_what_one_foreign_timer_timed_can_be_chosen_among() -> None:
    records = [by_another_timer(each) for each in (NATIVE, ran("quick", 0.5))]
    assert chosen(*records) == "quick"
    assert choices_among(*records).notes[0].startswith("cases by timer: pytest-benchmark:perf")


def test_of_two_timers_with_as_many_cases_ours_counts_whatever_the_order() -> None:
    ours = [NATIVE, ran("quick", 0.5)]
    theirs = [by_another_timer(each) for each in (NATIVE, ran("quick", 2.0))]
    assert chosen(*ours, *theirs) == chosen(*theirs, *ours) == "quick"


def test_an_import_takes_no_place_of_our_own_record() -> None:
    ours = choice_results([NATIVE, ran("quick", 0.5)])
    slow = Estimate(value=1.0, low=0.9, high=1.1)
    imported = by_another_timer(ran("quick", 0.5))
    assert imported.latency is not None
    imported = replace(imported, latency=replace(imported.latency, per_call_s=slow))
    choices = choose([ours, choice_results([imported])])
    (choice,) = choices.choices
    assert choice.best is not None
    assert choice.best.label == "quick"
    assert choice.best.cost is not None
    assert choice.best.cost.value < 0.5
