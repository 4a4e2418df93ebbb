"""The axes of a case, in one registry, and the covering array of their combinations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from itertools import combinations, product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cases import (
    AXES,
    EXCLUSIONS,
    Condition,
    Exclusion,
    Relation,
    array_axes,
    changed,
    python_line,
)
from harness.cases.covering_array import covering_array
from harness.records import Affine, Case, Direction
from harness.verify import Scope
from harness.verify.cases import array_within

CASE = Case(implementation="native", shape=(2, 3, 4, 5), normalized_dims=2)


def test_every_field_of_a_case_is_an_axis_that_users_set() -> None:
    settable = [axis.name for axis in AXES.values() if axis.key]
    assert {*settable} == {field.name for field in fields(Case)}


# --- a case with another value --------------------------------------------------------------------


@pytest.mark.parametrize("name", array_axes())
def test_a_value_that_is_set_is_the_value_that_is_found(name: str) -> None:
    case = replace(CASE, dtype="bfloat16", param_dtype="bfloat16", direction=Direction.BACKWARD)
    found = {value: changed(case, name, value) for value in AXES[name].values}
    possible = {value: case for value, case in found.items() if case is not None}
    assert len(possible) > 1
    assert all(AXES[name].get(case) == value for value, case in possible.items())


def test_any_axis_may_be_the_largest() -> None:
    of_rows = [changed(replace(CASE, shape=(1, 1, 1, n)), "rows", 30) for n in range(1, 7)]
    leading = [case.leading_shape for case in of_rows if case is not None]
    assert {shape.index(max(shape)) for shape in leading} == {0, 1}
    of_hidden = [changed(replace(CASE, shape=(rows, 1, 1)), "hidden", 30) for rows in range(1, 7)]
    normalized = [case.normalized_shape for case in of_hidden if case is not None]
    assert {shape.index(max(shape)) for shape in normalized} == {0, 1}


def test_what_two_axes_exclude_is_no_case() -> None:
    assert changed(CASE, "rows", -1) is None
    assert changed(replace(CASE, parameters="transposed"), "normalized_axes", 1) is None
    plain = replace(CASE, affine=Affine.NONE)
    assert changed(plain, "parameters", "nan_bias") is None
    assert changed(replace(CASE, parameters="nan_bias"), "affine", Affine.NONE) == plain


# --- conditions -----------------------------------------------------------------------------------


def test_a_condition_holds_for_a_case_and_for_facts() -> None:
    expected = {
        **{(Relation.AT_LEAST, 20): True, (Relation.AT_LEAST, 21): False},
        **{(Relation.AT_MOST, 20): True, (Relation.AT_MOST, 19): False},
        **{(Relation.MULTIPLE, 4): True, (Relation.NOT_MULTIPLE, 4): False},
        **{(Relation.IS, 20): True, (Relation.IS_NOT, 20): False},
        **{(Relation.ONE_OF, (19, 20)): True, (Relation.ONE_OF, (19, 21)): False},
    }
    for facts in (CASE, {"hidden": 20}):
        assert expected == {
            (relation, value): Condition(axis="hidden", relation=relation, value=value).holds(facts)
            for relation, value in expected
        }


# --- how to repeat a case -------------------------------------------------------------------------


def test_the_line_of_python_names_only_unusual_settings() -> None:
    line = python_line(replace(CASE, affine=Affine.BIAS, eps=0.5))
    assert line == (
        "from layernorm_bench import verify_case; print(verify_case('native', "
        "shape=(2, 3, 4, 5), normalized_dims=2, affine='bias', eps=0.5))"
    )


# --- a covering array has every possible combination, and nothing that is excluded ----------------

VALUES = {name: axis.values for name, axis in array_axes().items()}
Axes = Mapping[str, Sequence[Any]]
Row = Mapping[str, Any]


def is_excluded(row: Row, exclusions: Sequence[Exclusion]) -> bool:
    """Whether a row, or a part of one, has an excluded pair."""
    return any(
        row.get(exclusion.axis, exclusion) in exclusion.values
        and row.get(exclusion.other, exclusion) in exclusion.other_values
        for exclusion in exclusions
    )


def can_be_completed(row: Row, axes: Axes, exclusions: Sequence[Exclusion]) -> bool:
    if is_excluded(row, exclusions):
        return False
    missing = next((axis for axis in axes if axis not in row), None)
    return missing is None or any(
        can_be_completed({**row, missing: value}, axes, exclusions) for value in axes[missing]
    )


def uncovered(
    rows: Sequence[Row], axes: Axes, exclusions: Sequence[Exclusion], strength: int
) -> Iterator[Row]:
    """Yield the possible combinations that no row has, found by trying every combination."""
    for subset in combinations(axes, strength):
        covered = {tuple(row[axis] for axis in subset) for row in rows}
        for values in product(*(axes[axis] for axis in subset)):
            combination = dict(zip(subset, values, strict=True))
            if values not in covered and can_be_completed(combination, axes, exclusions):
                yield combination


@pytest.mark.parametrize(("strength", "most"), [(2, 500 / (14 * 13)), (3, 4500 / (14 * 13 * 12))])
def test_the_array_of_the_verification_has_every_possible_combination_and_is_small(
    strength: int, most: float
) -> None:
    rows = array_within(Scope(), strength, forward_only=False)
    assert list(uncovered(rows, VALUES, EXCLUSIONS, strength)) == []
    assert not any(is_excluded(row, EXCLUSIONS) for row in rows)
    assert all(set(row) == set(VALUES) for row in rows)
    least = prod(sorted(map(len, VALUES.values()))[-strength:])  # rows that no array can do without
    assert len(rows) <= most * least


small_axes = st.lists(st.integers(2, 4), min_size=3, max_size=5).map(
    lambda sizes: {f"axis {place}": list(range(size)) for place, size in enumerate(sizes)}
)


@given(st.data())
def test_any_axes_and_exclusions_are_covered(data: st.DataObject) -> None:
    axes = data.draw(small_axes)
    pairs = st.lists(st.sampled_from([*axes]), min_size=2, max_size=2, unique=True)
    exclusions = [
        Exclusion(one, (data.draw(st.sampled_from(axes[one])),),
                  other, (data.draw(st.sampled_from(axes[other])),))
        for one, other in data.draw(st.lists(pairs, max_size=4))
    ]  # fmt: skip
    strength = data.draw(st.integers(2, 3))
    rows = covering_array(axes, exclusions, strength)
    assert list(uncovered(rows, axes, exclusions, strength)) == []
    assert not any(is_excluded(row, exclusions) for row in rows)


def test_the_array_is_the_same_on_every_machine() -> None:
    """Drawn from the raw bits of PCG64; a new numpy must not change it."""
    axes = {"a": range(5), "b": range(4), "c": range(3), "d": range(2)}
    rows = covering_array(axes, (Exclusion("a", (0,), "b", (0, 1)),), 2)
    text = "\n".join(" ".join(str(value) for value in row.values()) for row in rows)
    assert sha256(text.encode()).hexdigest()[:16] == "a4da62c93b013fab"
