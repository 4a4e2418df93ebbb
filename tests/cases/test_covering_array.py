"""A covering array has every possible combination, and nothing that is excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cases import EXCLUSIONS, Exclusion, array_axes
from harness.cases.covering_array import covering_array
from harness.verify import Scope
from harness.verify.cases import array_within

AXES = {name: axis.values for name, axis in array_axes().items()}
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


@pytest.mark.parametrize(("strength", "most"), [(2, 430), (3, 3700)])
def test_the_array_of_the_verification_has_every_possible_combination_and_is_small(
    strength: int, most: int
) -> None:
    rows = array_within(Scope(), strength, forward_only=False)
    assert list(uncovered(rows, AXES, EXCLUSIONS, strength)) == []
    assert not any(is_excluded(row, EXCLUSIONS) for row in rows)
    assert all(set(row) == set(AXES) for row in rows)
    assert len(rows) <= most


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
