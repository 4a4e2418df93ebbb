"""The red team judges compound mutants by simulation as trying each of them would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.mutants import (
    BASES,
    CONDITIONS,
    ORDERS,
    CallCondition,
    Mutant,
    draw_compounds,
    named,
)
from harness.records import Case, Direction, Status
from harness.run.attempt import attempt
from harness.verify import red_team
from harness.verify.red_team import (
    Board,
    CompoundResult,
    Fate,
    RedTeam,
    conditions_in,
    draw_cases,
    judge_compounds,
    run_red_team,
)
from implementations import adopt

BACKWARD = Case(implementation="", shape=(6, 40), direction=Direction.BACKWARD)
SHORT, LONG = BACKWARD, replace(BACKWARD, shape=(6, 2000))


def condition(text: str) -> CallCondition:
    (found,) = (known for known in CONDITIONS if known.text == text)
    return found


def compound(base: str, *trigger: str) -> Mutant:
    return replace(named(base), where=tuple(map(condition, trigger)))


def judge(mutant: Mutant, array: list[Case], elsewhere: list[Case]) -> CompoundResult:
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
    of_gradients = replace(named("no_root"), where=(finite,))
    assert judge(of_gradients, [BACKWARD], []).fate is Fate.FOUND
    forward = replace(BACKWARD, direction=Direction.FORWARD)
    assert judge(of_gradients, [forward], [forward]).fate is Fate.INVISIBLE


def test_a_case_that_a_right_layer_norm_fails_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = adopt(named("no_root").fresh(), "wrong")
    monkeypatch.setattr(red_team, "_right", lambda: wrong)
    board = Board([BACKWARD])
    result = judge_compounds([compound("weight_ignored", "N > 1")], board, Board([]))
    assert [judged.fate for judged in result.compounds] == [Fate.INVISIBLE]
    assert len(result.false_alarms) == 1
    assert result.false_alarms[0].startswith(BACKWARD.id)


@pytest.mark.parametrize("mutant", draw_compounds(12, seed=1), ids=lambda mutant: mutant.text)
def test_the_simulation_agrees_with_the_composed_function(mutant: Mutant) -> None:
    cases = [case for case in draw_cases(40, "float32", seed=2) if case.rows * case.hidden < 5000]
    composed = adopt(mutant.fresh(), "composed")
    for case in cases:
        is_wrong = attempt(composed, case).status is Status.WRONG
        assert is_wrong == Board([case]).fails(mutant, case), case.id


def test_every_condition_holds_in_some_random_cases_and_not_in_others() -> None:
    board = Board(draw_cases(600, "float32") + draw_cases(50, "bfloat16"))
    held = [conditions_in(case) for case in board.where(())]
    assert frozenset.union(*held) == set(CONDITIONS)
    assert frozenset.intersection(*held) == set()


def test_compounds_are_drawn_once_each_and_the_same_for_a_seed() -> None:
    drawn = draw_compounds(50, seed=3)
    assert [len(mutant.where) for mutant in drawn] == [order for order in ORDERS for _ in range(50)]
    texts = [mutant.text for mutant in drawn]
    assert len(set(texts)) == len(drawn)
    assert all(len({part.about for part in mutant.where}) == len(mutant.where) for mutant in drawn)
    assert [mutant.text for mutant in draw_compounds(50, seed=3)] == texts
    assert [mutant.text for mutant in draw_compounds(50, seed=4)] != texts


def test_every_mistake_has_a_name_of_its_own_and_shows_in_float32() -> None:
    assert len({base.name for base in BASES}) == len(BASES)
    assert [base.name for base in BASES if "float32" not in base.dtypes] == []


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
