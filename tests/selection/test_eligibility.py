"""Which candidates are eligible: for each rule a case that it alone decides."""

from dataclasses import replace
from math import inf, nan

import pytest
from factories.choice_records import choice_among, chosen, failed, ran, vacuous

from harness.records import Record, Status
from harness.selection import Accuracy, DisqualificationKind, Requirements

NATIVE, QUICK = ran("native", 1.0), ran("quick", 0.5)
UNIFORM = ran("native", distribution="uniform")
HELD = ran("native", distribution="offset_1e4", condition=1e4)


def kind_against(
    name: str, *records: Record, requirements: Requirements | None = None
) -> DisqualificationKind | None:
    choice = choice_among(*records, requirements=requirements)
    (reason,) = (
        candidate.disqualification for candidate in choice.candidates if candidate.label == name
    )
    return None if reason is None else reason.kind


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("wrong", [UNIFORM, ran("quick", distribution="uniform", status=Status.WRONG)]),
        ("out_of_guarantee", [HELD, vacuous("quick")]),
        ("unverified", [ran("native", distribution="constant")]),
        *(
            (status.value, [UNIFORM, failed("quick", status, distribution="uniform")])
            for status in Status
            if not status.is_measured
        ),
    ],
)
def test_a_case_that_only_another_candidate_can_do_disqualifies(
    kind: str, records: list[Record]
) -> None:
    assert kind_against("quick", NATIVE, QUICK, *records) == kind
    assert chosen(NATIVE, QUICK, *records) == "native"


@pytest.mark.parametrize(
    "records",
    [
        [vacuous("native"), vacuous("quick")],
        [failed(name, Status.UNSUPPORTED, distribution="max") for name in ("native", "quick")],
    ],
    ids=["out of guarantee", "unsupported"],
)
def test_a_case_that_no_candidate_can_do_disqualifies_none(records: list[Record]) -> None:
    assert chosen(NATIVE, QUICK, *records) == "quick"


def test_a_candidate_that_is_out_of_guarantee_everywhere_is_not_chosen_even_alone() -> None:
    assert chosen(replace(NATIVE, status=Status.OUT_OF_GUARANTEE)) is None


def test_a_time_without_any_error_measured_is_not_enough() -> None:
    assert chosen(replace(NATIVE, errors=None)) is None


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("untimed", ran("quick")),
        ("invalid_time", ran("quick", 0.1, is_valid=False)),
        *(
            ("invalid_time", ran("quick", value, interval=(value, value)))
            for value in (nan, inf, 0.0, -1.0)
        ),
        ("invalid_time", ran("quick", 0.5, interval=(nan, nan))),
        ("too_few_samples", ran("quick", 0.1, interval=(0.0, inf))),
        ("too_few_samples", ran("quick", 585.0, interval=(0.0, inf))),
    ],
)
def test_a_time_that_cannot_be_compared_disqualifies(kind: str, bad: Record) -> None:
    assert kind_against("quick", NATIVE, bad) == kind
    assert chosen(NATIVE, bad) == "native"


def test_a_time_of_one_epoch_is_not_chosen_even_alone() -> None:
    assert chosen(ran("once", 0.5, interval=(0.0, inf))) is None


def test_an_invalid_time_of_the_reference_disqualifies_no_other() -> None:
    assert chosen(ran("native", 0.0, interval=(0.0, 0.0)), QUICK) == "quick"


# --- requirements ---------------------------------------------------------------------------------


def test_an_error_above_the_required_one_disqualifies() -> None:
    records = (ran("native", 1.0, error_ulp=2.0), ran("quick", 0.5, error_ulp=2.1))
    required = Requirements(max_error_ulp=2.0)
    assert kind_against("quick", *records, requirements=required) == "above_max_error"
    assert chosen(*records) == "quick"
    assert chosen(*records, requirements=required) == "native"


@pytest.mark.parametrize("error_ulp", [inf, nan])
def test_an_error_that_is_not_finite_is_above_every_required_one(error_ulp: float) -> None:
    required = Requirements(max_error_ulp=1e300)
    assert chosen(ran("native", 1.0, error_ulp=error_ulp), requirements=required) is None


def test_records_beyond_the_required_condition_are_ignored() -> None:
    records = (NATIVE, HELD, QUICK, vacuous("quick", 1e4))
    assert chosen(*records, requirements=Requirements(max_condition=1e3)) == "quick"
    assert chosen(*records, requirements=Requirements(max_condition=1e4)) == "native"


# --- accuracy -------------------------------------------------------------------------------------

ADMITTED = Requirements(accuracy=Accuracy.INACCURATE)
SUMMED_IN_BFLOAT16 = ran("quick", distribution="uniform", status=Status.INACCURATE, error_ulp=21.9)


@pytest.mark.parametrize(
    ("by_default", "admitted", "records"),
    [
        ("inaccurate", None, [SUMMED_IN_BFLOAT16]),
        # what the option does not remove is the reason
        ("wrong", "wrong", [SUMMED_IN_BFLOAT16, ran("quick", seed=1, status=Status.WRONG)]),
        ("out_of_guarantee", "out_of_guarantee", [SUMMED_IN_BFLOAT16, HELD, vacuous("quick")]),
        (
            "crashed",
            "crashed",
            [SUMMED_IN_BFLOAT16, ran("native", seed=1), failed("quick", Status.CRASHED, seed=1)],
        ),
        # no bound covers the point for any candidate
        ("inaccurate", None, [SUMMED_IN_BFLOAT16, vacuous("native"), vacuous("quick")]),
        # the narrower bound of native covers it
        (
            "inaccurate",
            "out_of_guarantee",
            [
                SUMMED_IN_BFLOAT16,
                replace(vacuous("native"), status=Status.INACCURATE),
                vacuous("quick"),
            ],
        ),
    ],
)
def test_an_inaccurate_candidate_is_eligible_only_if_that_is_accepted(
    by_default: str, admitted: str | None, records: list[Record]
) -> None:
    run = (NATIVE, QUICK, UNIFORM, *records)
    unlimited = replace(ADMITTED, max_condition=inf)
    assert kind_against("quick", *run) == by_default
    assert kind_against("quick", *run, requirements=unlimited) == admitted


def test_a_scenario_whose_candidates_are_inaccurate_has_a_choice_only_if_that_is_accepted() -> None:
    records = [replace(one, status=Status.INACCURATE) for one in (NATIVE, QUICK)]
    assert chosen(*records) is None
    assert chosen(*records, requirements=ADMITTED) == "quick"


def test_a_tie_with_an_inaccurate_candidate_is_decided_by_accuracy() -> None:
    quick = ran("quick", 0.99, spread=0.02, status=Status.INACCURATE, error_ulp=21.9)
    assert chosen(NATIVE, quick, requirements=ADMITTED) == "native"
