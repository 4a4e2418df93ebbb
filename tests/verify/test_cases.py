"""The plan of a verification: the covering array, then the case groups, each case once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from harness.cases import DISTRIBUTIONS, REPORTED, array_axes
from harness.records import Autograd, Direction
from harness.verify import DTYPES, planned_cases
from implementations import native

FULL = planned_cases(native, 3, DTYPES, "cpu")
QUICK = planned_cases(native, 2, ("float32", "bfloat16"), "cpu")
ARRAY = FULL[0].catches
GROUPS = [planned for planned in FULL if planned.catches != ARRAY]
ROWS = [planned.case for planned in QUICK if planned.catches == ARRAY]


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_case_is_planned_once_with_what_it_catches(in_turns: bool) -> None:
    planned = planned_cases(native, 2, ("float32", "bfloat16"), "cpu", in_turns=in_turns)
    times = Counter(own.case for own in planned)
    assert {*times.values()} == {1}
    assert {*times} == {own.case for own in QUICK}
    assert {own.case.dtype for own in planned} == {"float32", "bfloat16"}
    assert all(own.catches for own in planned)


def test_cases_to_leave_out_are_not_planned() -> None:
    first, *others = (own.case for own in planned_cases(native, 2, ("float32",), "cpu"))
    left = planned_cases(native, 2, ("float32",), "cpu", without={first})
    assert [own.case for own in left] == others


def test_a_target_without_a_backward_gets_forward_cases_alone() -> None:
    planned = planned_cases(replace(native, forward_only=True), 2, ("float32",), "cpu")
    assert {own.case.direction for own in planned} == {Direction.FORWARD}


# --- the array -----------------------------------------------------------------------------------


def test_every_value_of_an_axis_is_in_the_array() -> None:
    axes = array_axes()
    for name in ("distribution", "layout", "parameters", "eps", "grad_output", "threads"):
        assert {getattr(case, name) for case in ROWS} == {*axes[name].values}
    assert {case.rows for case in ROWS} >= {*axes["rows"].values} - {0}
    assert {case.hidden for case in ROWS} >= {*axes["hidden"].values} - {0}
    assert {case.normalized_dims for case in ROWS} == {*axes["normalized_axes"].values}
    leading = {len(case.shape) - case.normalized_dims for case in ROWS}
    assert leading == {*axes["leading_axes"].values}


def test_parameters_of_another_dtype_are_tried_for_halves_alone() -> None:
    assert {(case.dtype, case.param_dtype) for case in ROWS} == {
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
    }


def test_every_way_to_call_is_tried() -> None:
    forward = {Autograd.DEFAULT, Autograd.INFERENCE_MODE, Autograd.RECORDED}
    backward = {*Autograd} - forward | {Autograd.DEFAULT}
    expected = {(Direction.FORWARD, autograd) for autograd in forward}
    expected |= {(Direction.BACKWARD, autograd) for autograd in backward}
    assert {(case.direction, case.autograd) for case in ROWS} == expected


# --- the groups ----------------------------------------------------------------------------------


def test_no_input_is_square_except_where_that_is_the_point() -> None:
    reported = {function.__name__ for function in REPORTED}
    square = [
        own.case.id
        for own in GROUPS
        if own.case.rows == own.case.hidden > 1
        and own.case.distribution not in reported
        and own.catches != "an axis identified by its size alone"
    ]
    assert len(GROUPS) > 1000
    assert square == []


def test_every_distribution_has_a_group() -> None:
    assert {own.case.distribution for own in GROUPS} == {*DISTRIBUTIONS}
