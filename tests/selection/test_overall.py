"""The overall choice of the report: one implementation for all cases of a device and direction."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from factories.choice_records import SHAPES, failed, ran, timed, vacuous

from harness.records import Direction, Record, Status
from harness.selection import (
    Decider,
    DisqualificationKind,
    OverallChoice,
    Slice,
    answers_of,
    cost_of,
)

ELSEWHERE = {"shape": (9, 9), "distribution": "offset_1e6"}


NATIVE, QUICK = timed("native", 1.0), timed("quick", 0.5)


def choices_of(records: Sequence[Record]) -> dict[Slice, OverallChoice]:
    """Return the choices for inputs of any condition number."""
    return answers_of(records, inf)[-1].overall


def overall(*records: Record) -> OverallChoice:
    (choice,) = choices_of(records).values()
    return choice


def best_of(*records: Record) -> str | None:
    best = overall(*records).ranking.best
    return None if best is None else best.label


def faster(*records: Record) -> dict[str, DisqualificationKind]:
    """Return the kinds of the disqualified candidates that are faster than the best."""
    choice = overall(*records)
    best = choice.ranking.best
    reasons = {
        candidate.label: candidate.disqualification
        for candidate in choice.candidates
        if cost_of(candidate) < cost_of(best)
    }
    return {label: reason.kind for label, reason in reasons.items() if reason is not None}


def test_the_fastest_is_chosen_and_counted() -> None:
    choice = overall(*timed("slow", 2.0), *QUICK, *NATIVE)
    assert [candidate.label for candidate in choice.ranking.eligible] == ["quick", "native", "slow"]
    assert choice.fastest_in == 3
    assert choice.ranking.eligible[0].cost is not None
    assert choice.ranking.eligible[0].cost.value == pytest.approx(0.5)


def test_the_best_need_not_be_the_fastest_in_every_case() -> None:
    mixed = [*timed("mixed", 1.2, SHAPES[:1]), *timed("mixed", 0.5, SHAPES[1:])]
    choice = overall(*NATIVE, *mixed)
    assert choice.ranking.best is not None
    assert (choice.ranking.best.label, choice.fastest_in) == ("mixed", 2)


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("wrong", [*QUICK, ran("quick", status=Status.WRONG, **ELSEWHERE)]),
        ("out_of_guarantee", [*QUICK, ran("native", **ELSEWHERE), vacuous("quick", **ELSEWHERE)]),
        *(
            (status, [*QUICK, ran("native", **ELSEWHERE), failed("quick", status, **ELSEWHERE)])
            for status in (Status.CRASHED, Status.UNSUPPORTED, Status.OUT_OF_MEMORY)
        ),
        ("too_few_samples", timed("quick", 0.5, interval=(0.0, inf))),
        ("unverified", [replace(record, errors=None) for record in QUICK]),
    ],
)
def test_one_untimed_case_or_a_time_without_interval_or_errors_disqualifies(
    kind: str, records: list[Record]
) -> None:
    assert best_of(*records, *NATIVE) == "native"
    assert faster(*records, *NATIVE) == {"quick": kind}


@pytest.mark.parametrize("status", [Status.UNSUPPORTED, Status.OUT_OF_GUARANTEE])
def test_a_case_that_no_candidate_can_do_disqualifies_none(status: Status) -> None:
    none = [failed(name, status, **ELSEWHERE) for name in ("quick", "native")]
    assert best_of(*QUICK, *NATIVE, *none) == "quick"


def test_a_candidate_that_was_not_timed_disqualifies_none() -> None:
    lost = vacuous("native", **ELSEWHERE)
    assert best_of(*NATIVE, ran("exact", **ELSEWHERE), lost) == "native"


def test_means_over_different_cases_are_not_compared() -> None:
    shapes = (*SHAPES, (1024, 2048))
    one = [*timed("one", 0.5, shapes[:1]), *timed("one", 0.7, shapes[1:3])]
    two = [*timed("two", 0.6, shapes[1:3]), *timed("two", 0.9, shapes[3:])]
    assert best_of(*one, *two) is None
    assert set(faster(*one, *two).values()) == {DisqualificationKind.UNTIMED}
    assert [len(candidate.timed) for candidate in overall(*one, *two).candidates] == [3, 3]
    assert best_of(*one, *two, *timed("native", 1.0, shapes)) == "native"


@pytest.mark.parametrize(
    ("best", "decider", "records"),
    [
        ("one", Decider.NOTHING,
         [*timed("one", 0.5, spread=0.03), *timed("two", 0.52, spread=0.03)]),
        ("one", Decider.NOTHING,
         [*timed("one", 0.5, processes=1), *timed("two", 0.52, processes=1)]),
        ("one", Decider.TIME, [*timed("one", 0.5, processes=1), *timed("two", 0.56, processes=1)]),
        ("two", Decider.MEMORY,
         [*timed("one", 0.5, spread=0.03, peak_bytes=2),
          *timed("two", 0.52, spread=0.03, peak_bytes=1)]),
        ("one", Decider.ESTIMATE,
         [*timed("one", 0.5, error_ulp=9.0), *timed("two", 0.8, spread=0.5)]),
    ],
)  # fmt: skip
def test_means_are_ranked_as_times_of_one_scenario_are(
    best: str, decider: Decider, records: list[Record]
) -> None:
    ranking = overall(*records).ranking
    assert ranking.best is not None
    assert (ranking.best.label, ranking.decider) == (best, decider)


def test_a_candidate_disqualified_for_one_scenario_is_so_overall() -> None:
    backward = {"direction": Direction.BACKWARD}
    lost = [ran("native", **ELSEWHERE), vacuous("quick", **ELSEWHERE)]
    choices = choices_of([
        *timed("quick", 0.5, **backward),
        *timed("native", 1.0, **backward),
        *lost,
    ])
    ((where, choice),) = choices.items()
    assert where.direction is Direction.BACKWARD
    assert choice.ranking.best is not None
    assert choice.ranking.best.label == "native"


def test_every_environment_device_dtype_and_direction_has_its_own_choice() -> None:
    axes: list[dict[str, object]] = [
        {}, {"environment": "there"}, {"device": "cuda"}, {"dtype": "float64"},
        {"direction": Direction.BACKWARD},
    ]  # fmt: skip
    assert len(choices_of([ran("native", 1.0, **values) for values in axes])) == 5  # type: ignore[arg-type]


def test_without_a_ratio_to_the_reference_there_is_no_choice() -> None:
    assert choices_of([ran("native"), ran("quick", 0.5, is_valid=False)]) == {}
