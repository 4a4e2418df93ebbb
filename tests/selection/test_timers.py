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
    """Return the record as an import has it: timed by another timer, without a reference."""
    assert record.latency is not None
    latency = replace(record.latency, timer=timer, reference=None, reference_ratio=None)
    return replace(record, latency=latency)


def test_a_candidate_of_another_timer_is_not_chosen_for_its_time() -> None:
    quick = by_another_timer(ran("quick", 0.01))
    records = (NATIVE, ran("third", 1.5), quick)
    assert chosen(*records) == "native"
    (choice,) = choices_among(*records).choices
    (disqualification,) = (
        each.disqualification for each in choice.candidates if each.label == "quick"
    )
    assert disqualification is not None
    assert disqualification.kind is DisqualificationKind.UNTIMED


def test_a_choice_names_the_timers_if_one_is_foreign() -> None:
    (note,) = choices_among(NATIVE, by_another_timer(ran("quick", 0.1))).notes
    assert OTHER in note
    assert choices_among(NATIVE, ran("quick", 0.1)).notes == ()


def test_candidates_of_one_foreign_timer_can_be_compared() -> None:
    records = [by_another_timer(each) for each in (NATIVE, ran("quick", 0.5))]
    assert chosen(*records) == "quick"
    assert OTHER in choices_among(*records).notes[0]


def test_of_two_timers_with_as_many_cases_the_own_timer_counts() -> None:
    ours = [NATIVE, ran("quick", 0.5)]
    theirs = [by_another_timer(each) for each in (NATIVE, ran("quick", 2.0))]
    assert chosen(*ours, *theirs) == chosen(*theirs, *ours) == "quick"


def test_an_import_does_not_replace_a_record_of_the_own_timer() -> None:
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
