"""The class that a function behaves like, found from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import running_sums
import torch
from torch import Tensor

from harness.verify.grade import Grade, grade
from harness.verify.mutants import RIGHT
from implementations import Implementation, adopt, native, one_pass, two_pass

RECENTRED = next(each for each in RIGHT if each.name == "recentred")

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def implementation(function: Callable[..., Any]) -> Implementation:
    return adopt(function, "implementation")


def raising(*arguments: Any) -> Tensor:
    raise RuntimeError("never")


@both_dtypes
@pytest.mark.parametrize(
    ("implementation", "order"), [(one_pass, 2), (two_pass, 1), (native, 1), (RECENTRED, 0)]
)
def test_the_order_is_that_of_the_class(
    implementation: Implementation, order: int, dtype: str
) -> None:
    assert grade(implementation, dtype, "cpu").order == order


@both_dtypes
@pytest.mark.parametrize("implementation", [one_pass, two_pass, RECENTRED])
def test_the_strictest_class_met_is_its_own(implementation: Implementation, dtype: str) -> None:
    assert grade(implementation, dtype, "cpu").meets == f"{implementation.algorithm} (tree)"


def test_a_running_sum_is_no_cancellation() -> None:
    found = grade(implementation(running_sums.two_passes), "float32", "cpu")
    assert found.meets == "two_pass (sequential)"


def test_what_is_claimed_does_not_matter() -> None:
    claimed = adopt(one_pass.function, "claimed")  # as a kernel that keeps more
    assert grade(claimed, "float32", "cpu").meets == "one_pass (tree)"


def test_one_pass_in_float32_is_lost_at_a_condition_of_hundreds() -> None:
    limit = grade(one_pass, "float32", "cpu").condition_limit
    assert limit is not None
    assert 50 < limit < 500


def test_one_pass_in_float64_reaches_further() -> None:
    limit = grade(one_pass, "float64", "cpu").condition_limit
    assert limit is not None
    assert 1e5 < limit < 1e8


@both_dtypes
def test_a_recentred_one_is_lost_nowhere(dtype: str) -> None:
    assert grade(RECENTRED, dtype, "cpu").condition_limit is None


def test_more_is_lost_by_two_passes_than_by_recentring_but_less_than_by_one_pass() -> None:
    two = grade(two_pass, "float32", "cpu").condition_limit
    one = grade(one_pass, "float32", "cpu").condition_limit
    assert one is not None
    assert two is not None
    assert one < two


def test_rounding_hides_the_order_in_bfloat16() -> None:
    assert grade(two_pass, "bfloat16", "cpu").order is None


def test_a_benign_result_loses_few_bits() -> None:
    lost = grade(two_pass, "float32", "cpu").lost_bits
    assert lost is not None
    assert 0 <= lost < 8


def test_bits_that_are_rounded_away_are_lost() -> None:
    def coarse(*arguments: Any) -> Tensor:
        return two_pass.function(*arguments).to(torch.bfloat16).to(torch.float32)

    lost = grade(implementation(coarse), "float32", "cpu").lost_bits
    assert lost is not None
    assert lost > 12


def test_a_wrong_one_meets_no_class() -> None:
    shifted = implementation(lambda *arguments: two_pass.function(*arguments) + 0.1)
    assert grade(shifted, "float32", "cpu").meets is None


def test_nan_meets_no_class_and_keeps_nothing() -> None:
    spoiled = implementation(lambda *arguments: two_pass.function(*arguments) * float("nan"))
    found = grade(spoiled, "float32", "cpu")
    assert found.meets is None
    assert found.lost_bits is None
    assert found.condition_limit == 1


def test_what_raises_everywhere_meets_no_class() -> None:
    found = grade(implementation(raising), "float32", "cpu")
    assert found.meets is None
    assert found.lost_bits is None


@pytest.mark.parametrize(
    ("order", "limit", "words"),
    [
        (
            0,
            None,
            "in float32 its error does not depend on the condition of its input; two digits are "
            "left at every condition tried",
        ),
        (
            1,
            1.04e5,
            "in float32 its error grows with the condition of its input, as that of a mean kept in "
            "one word does; two digits are left up to condition 1.04e+05",
        ),
        (
            2,
            103.1,
            "in float32 its error grows with the square of the condition of its input: one-pass "
            "cancellation, E[x^2] - E[x]^2; "
            "two digits are left up to condition 103",
        ),
        (
            None,
            None,
            "in float32 its error is hidden by the rounding of the result; two digits are left at "
            "every condition tried",
        ),
    ],
)
def test_a_grade_in_words(order: int | None, limit: float | None, words: str) -> None:
    assert (
        Grade(dtype="float32", meets="any", order=order, condition_limit=limit, lost_bits=0.0).words
        == words
    )


def test_the_words_of_a_square_say_of_what() -> None:
    # "its square" alone would be the square of the error
    assert "condition" in grade(one_pass, "float32", "cpu").words.partition(":")[0]


def test_what_meets_no_class_is_not_praised_for_its_order() -> None:
    grade = Grade(dtype="float32", meets=None, order=0, condition_limit=None, lost_bits=0.0)
    assert grade.words == (
        "in float32 it loses more than any class of algorithm may that keeps its statistics in "
        "float32 or wider"
    )
