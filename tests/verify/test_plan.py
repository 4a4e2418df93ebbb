"""The plan of a verification: the covering array, then the case groups, each case once."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.records import Direction
from harness.verify import planned_cases
from implementations import native

DTYPES = ("float32", "bfloat16")


@pytest.mark.parametrize("in_turns", [False, True])
def test_each_case_is_planned_once(in_turns: bool) -> None:
    planned = planned_cases(native, 2, DTYPES, "cpu", in_turns=in_turns)
    twice = [each.id for each, count in Counter(p.case for p in planned).items() if count > 1]
    assert twice == []
    assert {each.case.dtype for each in planned} == set(DTYPES)
    assert all(each.catches for each in planned)


def test_a_higher_strength_tries_more() -> None:
    two, three = (planned_cases(native, strength, ("float32",), "cpu") for strength in (2, 3))
    assert len(three) > 4 * len(two)


def test_in_turns_every_group_has_begun_before_the_array_ends() -> None:
    planned = planned_cases(native, 2, ("float32",), "cpu", in_turns=True)
    groups = {each.catches for each in planned}
    first = planned[: 2 * len(groups)]
    assert {each.catches for each in first} == groups


def test_a_target_without_a_backward_gets_forward_cases_alone() -> None:
    from dataclasses import replace

    forward_only = replace(native, forward_only=True)
    planned = planned_cases(forward_only, 2, ("float32",), "cpu")
    assert {each.case.direction for each in planned} == {Direction.FORWARD}
