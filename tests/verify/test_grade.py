"""The algorithm that a function behaves like, found by calling it."""

from __future__ import annotations

from typing import Any

import pytest
from factories import running_sums
from factories.verify_targets import target
from torch import Tensor

from harness.mutants import RIGHT
from harness.verify.case_results import grade
from implementations import Implementation, adopt, one_pass, two_pass, two_pass_input_dtype

RECENTRED = next(each for each in RIGHT if each.name == "recentred")

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def raising(*arguments: Any) -> Tensor:
    raise RuntimeError("never")


@both_dtypes
@pytest.mark.parametrize("implementation", [one_pass, two_pass, RECENTRED])
def test_the_strictest_algorithm_met_is_its_own(implementation: Implementation, dtype: str) -> None:
    assert grade(implementation, dtype, "cpu").meets == f"{implementation.algorithm} (tree)"


def test_a_running_sum_is_no_cancellation() -> None:
    found = grade(target(running_sums.two_passes), "float32", "cpu")
    assert found.meets == "two_pass (sequential)"


def test_the_declaration_does_not_matter() -> None:
    claimed = adopt(one_pass.function, "claimed")  # as a kernel that keeps more
    assert grade(claimed, "float32", "cpu").meets == "one_pass (tree)"


@pytest.mark.parametrize(("dtype", "low", "high"), [("float32", 50, 500), ("float64", 1e5, 1e8)])
def test_one_pass_keeps_two_digits_up_to_a_condition(dtype: str, low: float, high: float) -> None:
    limit = grade(one_pass, dtype, "cpu").condition_limit
    assert limit is not None
    assert low < limit < high


@both_dtypes
def test_a_recentred_one_keeps_two_digits_at_every_condition(dtype: str) -> None:
    assert grade(RECENTRED, dtype, "cpu").condition_limit is None


def test_statistics_in_bfloat16_meet_no_bound() -> None:
    assert grade(two_pass_input_dtype, "bfloat16", "cpu").meets is None


def test_a_wrong_result_meets_no_bound() -> None:
    shifted = target(lambda *arguments: two_pass.function(*arguments) + 0.1)
    assert grade(shifted, "float32", "cpu").meets is None


def test_nan_meets_no_bound() -> None:
    spoiled = target(lambda *arguments: two_pass.function(*arguments) * float("nan"))
    found = grade(spoiled, "float32", "cpu")
    assert found.meets is None
    assert found.condition_limit == 1


def test_a_target_that_raises_meets_no_bound() -> None:
    found = grade(target(raising), "float32", "cpu")
    assert found.meets is None
