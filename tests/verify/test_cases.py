"""The plan of a verification: the covering array, then the case groups, each case once.

A group finds mistakes of public bug reports without the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from harness.cases import DISTRIBUTIONS, array_axes
from harness.mutants import named
from harness.mutants.conditions import conditions_of
from harness.records import Autograd, Case, Direction, Status
from harness.run.attempt import attempt
from harness.verify import DTYPES, PlannedCase, planned_cases
from implementations import adopt, native

FULL = planned_cases(native, 3, DTYPES, "cpu")
QUICK = planned_cases(native, 2, ("float32", "bfloat16"), "cpu")
ARRAY = FULL[0].catches
GROUPS = [planned for planned in FULL if planned.catches != ARRAY]
OF_GROUPS = [planned for planned in QUICK if planned.catches != ARRAY]
ROWS = [planned.case for planned in QUICK if planned.catches == ARRAY]


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_case_is_planned_once_with_what_it_catches(in_turns: bool) -> None:
    planned = planned_cases(native, 2, ("float32", "bfloat16"), "cpu", in_turns=in_turns)
    times = Counter(own.case for own in planned)
    assert {*times.values()} == {1}
    assert {*times} == {own.case for own in QUICK}
    assert {own.case.dtype for own in planned} == {"float32", "bfloat16"}
    assert all(own.catches for own in planned)


def test_small_cases_come_first_where_time_may_not_be_enough() -> None:
    planned = planned_cases(native, 2, ("float32",), "cpu", in_turns=True)
    is_large = [prod(own.case.shape) > 4_095 for own in planned]
    assert is_large == sorted(is_large)
    small = planned[: is_large.index(True)]
    assert len({own.catches for own in small}) > 20


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


def test_every_distribution_has_a_group() -> None:
    assert {own.case.distribution for own in GROUPS} == {*DISTRIBUTIONS}


def is_small(case: Case) -> bool:
    return case.shape[0] < 87_383


def is_long(case: Case) -> bool:
    return case.shape[0] == 87_383 and case.hidden < 9


def groups_that_find(
    name: str, planned: list[PlannedCase], is_tried: Callable[[Case], bool], **declared: Any
) -> set[str]:
    """Return what the groups catch of which a case is wrong, in float32."""
    target = adopt(replace(named(name), **declared).fresh(), name)
    tried = (own for own in planned if own.case.dtype == "float32" and is_tried(own.case))
    return {own.catches for own in tried if attempt(target, own.case).status is Status.WRONG}


@pytest.mark.parametrize(
    ("name", "catches"),
    [
        ("next_row_read_by_a_tail", "a NaN or an infinity that is hidden"),
        ("weight_of_almost_ones_left_out", "a weight and a bias taken for the initial ones"),
        ("dy_storage_offset_ignored", "strides of which one is taken for known"),
        ("dweight_of_no_rows_unwritten", "a crash for an empty x with several normalized axes"),
    ],
)
def test_a_quick_group_alone_finds_its_mutant(name: str, catches: str) -> None:
    (found,) = groups_that_find(name, OF_GROUPS, is_small)
    assert found.startswith(catches)


@pytest.mark.parametrize(
    ("name", "condition", "catches"),
    [
        ("row_index_of_16_bits", "several normalized axes", "several normalized axes"),
        ("rows_beyond_16_bits_left_out", "x is frozen", "frozen tensors"),
    ],
)
def test_16_bit_row_indices_are_found_with_other_conditions(
    name: str, condition: str, catches: str
) -> None:
    (found,) = groups_that_find(name, GROUPS, is_long, where=conditions_of(condition))
    assert catches in found
