"""The red team judges compound mutants by simulation as trying each of them would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records import Case, Direction, Status
from harness.verify import red_team
from harness.verify.mutants import semantics
from harness.verify.mutants.compound import BASES, ORDERS, Compound, draw_compounds
from harness.verify.mutants.conditions import CONDITIONS, CallCondition
from harness.verify.random_cases import draw_cases
from harness.verify.red_team import Board, judge_compounds, run_red_team
from harness.verify.self_test_result import CompoundResult, Fate, RedTeam
from harness.verify.trial import try_case
from implementations import adopt

BACKWARD = Case(implementation="", shape=(6, 40), direction=Direction.BACKWARD)
SHORT, LONG = BACKWARD, replace(BACKWARD, shape=(6, 2000))


def condition(text: str) -> CallCondition:
    (found,) = (each for each in CONDITIONS if each.text == text)
    return found


def compound(base: str, *trigger: str) -> Compound:
    (found,) = (each for each in BASES if each.name == base)
    return Compound(base=found, trigger=tuple(map(condition, trigger)))


def judge(mutant: Compound, array: list[Case], elsewhere: list[Case]) -> CompoundResult:
    (result,) = judge_compounds([mutant], Board(array), Board(elsewhere)).compounds
    return result


def test_a_compound_that_a_case_fails_is_found() -> None:
    mutant = compound("weight_ignored", "N > 1024", "x is contiguous")
    result = judge(mutant, [SHORT, LONG], [])
    assert (result.fate, result.shown_by) == (Fate.FOUND, LONG.id)
    assert result.text == "weight_ignored where N > 1024 and x is contiguous"


def test_a_compound_that_only_another_valid_case_fails_is_missed() -> None:
    mutant = compound("weight_ignored", "N > 1024")
    result = judge(mutant, [SHORT], [LONG])
    assert (result.fate, result.shown_by) == (Fate.MISSED, LONG.id)


@pytest.mark.parametrize("trigger", ["N > 1024", "there is no weight"])
def test_a_compound_that_no_case_fails_is_invisible(trigger: str) -> None:
    without = replace(LONG, affine="none")
    result = judge(compound("weight_ignored", trigger), [SHORT], [without])
    assert (result.fate, result.shown_by) == (Fate.INVISIBLE, "")


def test_y_is_right_where_a_condition_reads_dy() -> None:
    finite = condition("dy is finite")
    of_gradients = Compound(base=semantics.no_root, trigger=(finite,))
    assert judge(of_gradients, [BACKWARD], []).fate is Fate.FOUND
    forward = replace(BACKWARD, direction=Direction.FORWARD)
    assert judge(of_gradients, [forward], [forward]).fate is Fate.INVISIBLE


def test_a_case_that_a_right_layer_norm_fails_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = adopt(semantics.no_root.function, "wrong")
    monkeypatch.setattr(red_team, "_right", lambda: wrong)
    board = Board([BACKWARD])
    result = judge_compounds([compound("weight_ignored", "N > 1")], board, Board([]))
    assert [each.fate for each in result.compounds] == [Fate.INVISIBLE]
    assert len(result.false_alarms) == 1
    assert result.false_alarms[0].startswith(BACKWARD.id)


@pytest.mark.parametrize("mutant", draw_compounds(12, seed=1), ids=lambda each: each.text)
def test_the_simulation_agrees_with_the_composed_function(mutant: Compound) -> None:
    cases = [each for each in draw_cases(40, "float32", seed=2) if each.rows * each.hidden < 5000]
    composed = adopt(mutant.function, "composed")
    for case in cases:
        is_wrong = try_case(composed, case).status is Status.WRONG
        assert is_wrong == Board([case]).fails(mutant, 0), case.id


def test_every_condition_holds_in_some_random_cases_and_not_in_others() -> None:
    board = Board(draw_cases(600, "float32") + draw_cases(50, "bfloat16"))
    always = (1 << len(CONDITIONS)) - 1
    ever = 0
    for place in board.where(0):
        held = board.held(place)
        ever, always = ever | held, always & held
    assert [each.text for at, each in enumerate(CONDITIONS) if not ever >> at & 1] == []
    assert [each.text for at, each in enumerate(CONDITIONS) if always >> at & 1] == []


def test_compounds_are_drawn_once_each_and_the_same_for_a_seed() -> None:
    drawn = draw_compounds(50, seed=3)
    assert [len(each.trigger) for each in drawn] == [order for order in ORDERS for _ in range(50)]
    assert len({each.text for each in drawn}) == len(drawn)
    assert all(
        len({condition.axis for condition in each.trigger}) == len(each.trigger) for each in drawn
    )
    assert [each.text for each in draw_compounds(50, seed=3)] == [each.text for each in drawn]
    assert [each.text for each in draw_compounds(50, seed=4)] != [each.text for each in drawn]


def test_every_mistake_has_a_name_of_its_own_and_shows_in_float32() -> None:
    assert len({each.name for each in BASES}) == len(BASES)
    assert [each.name for each in BASES if "float32" not in each.dtypes] == []


def results(fate: Fate, order: int, count: int) -> tuple[CompoundResult, ...]:
    result = CompoundResult(
        base="no_root", trigger=("rows > 1", "N > 4", "eps is 0")[:order], fate=fate, shown_by=""
    )
    return (result,) * count


def test_every_visible_mutant_of_one_or_two_conditions_must_be_found() -> None:
    first, second = results(Fate.FOUND, 1, 1), results(Fate.FOUND, 2, 3)
    invisible, third = results(Fate.INVISIBLE, 2, 5), results(Fate.MISSED, 3, 1)
    enough = RedTeam(compounds=(*first, *second, *invisible, *third), false_alarms=())
    assert enough.passed
    assert not replace(enough, false_alarms=("a case",)).passed
    for order in (1, 2):
        missed = (*enough.compounds, *results(Fate.MISSED, order, 1))
        assert not replace(enough, compounds=missed).passed
    assert not RedTeam(compounds=(), false_alarms=()).passed


def test_a_share_is_that_of_the_visible_ones() -> None:
    found, missed = results(Fate.FOUND, 2, 3), results(Fate.MISSED, 2, 1)
    drawn = RedTeam(compounds=(*found, *missed, *results(Fate.INVISIBLE, 2, 4)), false_alarms=())
    assert drawn.share(2) == 0.75
    assert drawn.share(1) is None


def test_a_red_team_is_drawn_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(red_team, "_MOST_ELEMENTS", 500)
    monkeypatch.setattr(red_team, "_RANDOM_CASES", 20)
    numbers: list[int] = []
    result = run_red_team(2, strength=2, on_compound=numbers.append)
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert result.orders == ORDERS
