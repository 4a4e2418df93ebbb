"""Choices for whole runs: several files and machines, filters, and runs that hold no choice."""

from dataclasses import replace

import pytest
from factories.choice_records import (
    HERE,
    OTHER_MACHINE,
    choices_among,
    failed,
    ran,
    results_of,
    vacuous,
)
from factories.results_factory import make_run

from harness.records import Record, Status
from harness.records.refusal import NotComparableError, NotMeasuredError
from harness.selection import choose
from harness.store import Results

NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)


def test_each_machine_has_its_own_choice() -> None:
    there = OTHER_MACHINE.fingerprint
    others = [ran("native", 1.0, environment=there), ran("slow", 2.0, environment=there)]
    found = choices_among(NATIVE, QUICK, *others)
    best = {
        choice.scenario.environment: choice.best and choice.best.label for choice in found.choices
    }
    assert best == {HERE.fingerprint: "quick", there: "native"}
    assert found.environments.keys() == best.keys()
    assert any("2 environments" in note for note in found.notes)


def test_of_a_case_in_two_files_the_later_counts() -> None:
    (choice,) = choose([results_of([NATIVE, QUICK]), results_of([ran("quick", 2.0)])]).choices
    assert choice.best is not None
    assert choice.best.label == "native"


def test_a_filter_keeps_the_evidence_of_other_shapes() -> None:
    elsewhere = {"shape": (16, 512)}
    held = ran("native", distribution="offset_1e4", condition=1e4, **elsewhere)
    only = {"shape": [(64, 768)]}
    (choice,) = choices_among(
        NATIVE, QUICK, held, vacuous("quick", **elsewhere), wanted=only
    ).choices
    assert choice.best is not None
    assert choice.best.label == "native"


def test_a_filter_without_a_match_is_refused_with_what_there_is() -> None:
    with pytest.raises(NotComparableError, match="shape: 64x768; dtype: float32; device: cpu"):
        choices_among(NATIVE, wanted={"dtype": ["float16"]})


def test_a_value_of_the_filter_without_a_match_is_noted() -> None:
    found = choices_among(NATIVE, wanted={"dtype": ["float32", "float31"]})
    assert "float31" in found.notes[0]


@pytest.mark.parametrize(
    ("message", "records"),
    [
        ("^no case was measured$", []),
        (
            r"such as native/.*SIGSEGV",
            [failed(name, Status.CRASHED, "SIGSEGV") for name in ("native", "quick")],
        ),
        ("--measure errors,latency,memory", [ran("native")]),
        ("--measure errors,latency,memory", [ran("native", 0.1, is_valid=False)]),
    ],
)
def test_a_run_without_a_valid_time_is_refused(message: str, records: list[Record]) -> None:
    with pytest.raises(NotMeasuredError, match=message):
        choose([Results(records=tuple(records), runs=(), environments={})])


def test_a_scenario_measured_for_errors_only_is_listed_as_untimed() -> None:
    found = choices_among(NATIVE, ran("native", shape=(16, 512)))
    assert len(found.choices) == 1
    assert [scenario.case.shape for scenario in found.untimed] == [(16, 512)]


def test_a_scenario_in_which_every_case_failed_has_no_best() -> None:
    found = choices_among(NATIVE, failed("native", Status.CRASHED, shape=(8, 8)))
    assert [choice.best is None for choice in found.choices] == [False, True]
    assert not found.is_complete


def test_one_candidate_and_a_run_that_was_cut_short_are_noted() -> None:
    short = replace(results_of([NATIVE]), runs=(make_run(planned=40, wall_s=None),))
    cut_short, only = choose([short]).notes
    assert "1 of its 40 cases" in cut_short
    assert "native" in only
