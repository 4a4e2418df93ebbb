"""A number and its noun."""

from __future__ import annotations

import pytest

from harness.records.text import count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 cases"), (1, "1 case"), (2, "2 cases"), (11, "11 cases")]
)
def test_one_case_is_one_case_and_the_others_are_cases(number: int, text: str) -> None:
    assert count(number, "case") == text


def test_a_noun_may_have_a_plural_of_its_own() -> None:
    assert (count(1, "axis", "axes"), count(2, "axis", "axes")) == ("1 axis", "2 axes")
