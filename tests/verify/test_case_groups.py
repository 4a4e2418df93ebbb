"""Case groups: every name exists, no case occurs twice, every shape reveals a wrong axis."""

from __future__ import annotations

from collections import Counter

from harness.cases import DISTRIBUTIONS, REPORTED
from harness.records import Case, Direction
from harness.verify import DTYPES
from harness.verify.cases import FULL, CaseGroup, cases_of


def cases(tier: tuple[CaseGroup, ...], *, forward_only: bool = False) -> list[Case]:
    return [
        case
        for dtype in DTYPES
        for group in tier
        for case in cases_of(group, "target", dtype, "cpu", forward_only)
    ]


# --- what no case may be; the full catalogue contains the quick one -------------------------------


def test_no_case_is_tried_twice() -> None:
    assert [case.id for case, count in Counter(cases(FULL)).items() if count > 1] == []


def test_no_input_is_square_except_for_public_bugs() -> None:
    square = {
        each.id
        for group in FULL
        if not set(group.axes.get("distribution", ()))
        <= {function.__name__ for function in REPORTED}
        and group.catches != "an axis identified by its size alone"
        for dtype in DTYPES
        for each in cases_of(group, "target", dtype, "cpu", False)
        if each.rows == each.hidden > 1
    }
    assert sorted(square) == []


def test_forward_only_selects_only_forward_cases() -> None:
    assert {each.direction for each in cases(FULL, forward_only=True)} == {Direction.FORWARD}


def test_every_distribution_has_a_story() -> None:
    assert {each.distribution for each in cases(FULL)} == set(DISTRIBUTIONS)


# --- a group --------------------------------------------------------------------------------------

BOTH = (Direction.BACKWARD, Direction.FORWARD)


def a_group(dtypes: tuple[str, ...] = DTYPES, **axes: tuple[object, ...]) -> CaseGroup:
    return CaseGroup("x", {"shape": ((2, 3),), "direction": BOTH, **axes}, dtypes)


def test_a_story_has_no_case_in_a_dtype_not_its_own() -> None:
    group = a_group(dtypes=("float16",))
    assert list(cases_of(group, "target", "float32", "cpu", False)) == []
    assert len(list(cases_of(group, "target", "float16", "cpu", True))) == 1


def test_inference_is_tried_once_for_all_grad_outputs() -> None:
    group = a_group(grad_output=("ones", "one_row"))
    found = list(cases_of(group, "target", "float32", "cpu", False))
    assert [(case.direction, case.grad_output) for case in found] == [
        (Direction.BACKWARD, "ones"),
        (Direction.FORWARD, "shifted_normal"),
        (Direction.BACKWARD, "one_row"),
    ]
