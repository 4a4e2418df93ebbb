"""What is required of a choice: up to which condition number its results must be right."""

from math import inf

import pytest
from factories.choice_records import choice_among, ran, vacuous

from harness.records import Record
from harness.report.choice import (
    caveats,
    condition_text,
    pace_text,
    price_text,
    requirement_text,
)
from harness.selection import (
    Requirements,
    answers_of,
    is_required,
    requirement_levels,
)

DEFAULT = Requirements()


def reaching(condition: float) -> Record:
    return ran("exact", condition=condition, distribution=f"offset_{condition:g}")


LOST_FROM_1E6 = [
    ran("native", 1.0),
    ran("exact", 1.25),
    reaching(1e6),
    vacuous("native", 1e6, distribution="offset_1e+06"),
]


def test_by_default_native_is_not_disqualified_at_a_condition_that_no_model_reaches() -> None:
    choice = choice_among(*LOST_FROM_1E6, requirements=DEFAULT)
    assert choice.best is not None
    assert (choice.best.label, pace_text(choice.best, choice.native_s)) == ("native", "1.00x")


def test_whoever_needs_more_sees_from_where_on_and_what_it_costs() -> None:
    choice = choice_among(*LOST_FROM_1E6, requirements=DEFAULT)
    fault, instead = caveats(choice)
    assert fault.startswith("loses all digits (first failure measured at condition ")
    assert instead == "for all inputs, run exact: 0.80x [0.79x, 0.81x]"


def test_native_keeps_its_place_where_it_is_disqualified() -> None:
    choice = choice_among(*LOST_FROM_1E6, requirements=Requirements(max_condition=1e6))
    assert choice.best is not None
    assert choice.best.label == "exact"
    assert pace_text(choice.best, choice.native_s) == "0.80x [0.79x, 0.81x]"
    (native,) = (one for one in choice.candidates if one.label == "native")
    price = price_text(native, choice)
    assert price.startswith("1.00x, but loses all digits (first failure measured at condition ")


def test_an_eligible_candidate_that_fails_beyond_the_requirement_says_so() -> None:
    slow = [ran("slow", 2.0), vacuous("slow", 1e6, distribution="offset_1e+06")]
    choice = choice_among(*LOST_FROM_1E6, *slow, requirements=DEFAULT)
    (candidate,) = (one for one in choice.candidates if one.label == "slow")
    assert "loses all digits" in price_text(candidate, choice)


@pytest.mark.parametrize(("condition", "is_counted"), [(1e3, True), (1.08e3, True), (1.2e3, False)])
def test_the_worst_of_many_rows_may_lie_a_little_above_the_requirement(
    condition: float, is_counted: bool
) -> None:
    assert is_required(reaching(condition), 1e3) is is_counted


def test_a_case_that_failed_is_required_whatever_its_condition() -> None:
    assert is_required(ran("native"), 1.0)
    assert not is_required(reaching(inf), 1e12)
    assert is_required(reaching(inf), inf)


@pytest.mark.parametrize(
    ("conditions", "asked", "levels"),
    [
        ((1.0,), 1e3, (10.0, 1e3)),
        ((1.0, 100.0, 1e5, inf), 1e3, (10.0, 1e3, 1e6, inf)),
        ((1.0, 1e5), 1e4, (10.0, 1e4, 1e6)),
        ((1.0, 100.0), inf, (10.0, 1e3, inf)),
    ],
)
def test_only_requirements_that_can_differ_are_offered(
    conditions: tuple[float, ...], asked: float, levels: tuple[float, ...]
) -> None:
    assert requirement_levels([reaching(condition) for condition in conditions], asked) == levels


def test_the_answers_to_all_requirements_are_those_that_choose_gives() -> None:
    answers = answers_of(LOST_FROM_1E6)
    bests = {
        answer.requirements.max_condition: answer.choices[0].best and answer.choices[0].best.label
        for answer in answers
    }
    assert bests == {10.0: "native", 1e3: "native", 1e6: "exact"}
    assert [answer.is_default for answer in answers] == [False, True, False]
    for answer in answers:
        alone = choice_among(*LOST_FROM_1E6, requirements=answer.requirements)
        assert alone.ranking == answer.choices[0].ranking


def test_a_condition_number_is_written_plainly() -> None:
    assert [condition_text(condition) for condition in (1.0, 212.3, 10_456.0, 1.05e7)] == [
        "1", "212", "10,500", "1.05e7",
    ]  # fmt: skip
    assert requirement_text(inf) == "all inputs"
    assert requirement_text(1e3) == "inputs with a condition number up to 1,000"
