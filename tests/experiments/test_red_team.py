"""The red team judges compound mutants by simulation as trying each of them would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from red_team import compounds
from red_team.compounds import (
    Board,
    Fate,
    draw_cases,
    draw_compounds,
    judge_compounds,
    run_red_team,
)

from harness.mutants import CONDITIONS, Mutant, named
from harness.records import Case, Direction, Status
from harness.run.attempt import attempt
from implementations import adopt

BACKWARD = Case(implementation="", shape=(6, 40), direction=Direction.BACKWARD)
SHORT, LONG = BACKWARD, replace(BACKWARD, shape=(6, 2000))
WITHOUT = replace(LONG, affine="none")


def compound(base: str, *trigger: str) -> Mutant:
    by_text = {condition.text: condition for condition in CONDITIONS}
    return replace(named(base), where=tuple(by_text[text] for text in trigger))


@pytest.mark.parametrize(
    ("trigger", "array", "elsewhere", "fate", "shown_by"),
    [
        (("N > 1024", "x is contiguous"), [SHORT, LONG], [], Fate.FOUND, LONG.id),
        (("N > 1024",), [SHORT], [LONG], Fate.MISSED, LONG.id),
        (("N > 1024",), [SHORT], [WITHOUT], Fate.INVISIBLE, ""),
    ],
)
def test_the_fate_of_a_compound_is_that_of_the_cases_that_fail(
    trigger: tuple[str, ...], array: list[Case], elsewhere: list[Case], fate: Fate, shown_by: str
) -> None:
    mutant = compound("weight_ignored", *trigger)
    (result,) = judge_compounds([mutant], Board(array), Board(elsewhere)).compounds
    assert (result.fate, result.shown_by) == (fate, shown_by)
    assert result.text == f"weight_ignored where {' and '.join(trigger)}"


@pytest.mark.parametrize("mutant", draw_compounds(12, seed=1), ids=lambda mutant: mutant.sentence)
def test_the_simulation_agrees_with_the_composed_function(mutant: Mutant) -> None:
    cases = [case for case in draw_cases(40, "float32", seed=2) if case.rows * case.hidden < 5000]
    composed = adopt(mutant.fresh(), "composed")
    for case in cases:
        is_wrong = attempt(composed, case).status in {Status.WRONG, Status.INACCURATE}
        assert is_wrong == Board([case]).fails(mutant, case), case.id


def test_a_red_team_is_drawn_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compounds, "_MOST_ELEMENTS", 500)
    monkeypatch.setattr(compounds, "_RANDOM_CASES", 20)
    numbers: list[int] = []
    result = run_red_team(2, strength=2, on_compound=numbers.append)
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert [len(judged.trigger) for judged in result.compounds] == [1, 1, 2, 2, 3, 3]
