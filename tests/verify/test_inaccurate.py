"""What is right, inaccurate or wrong, and how accurate: the lines between, shown by functions.

Running sums, rows relative to their first element, sums over the rows in half precision, and
statistics in a narrower dtype are inaccurate; what is only rounded again is right; a mistake beside
any of them is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from factories import running_sums
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import mutant, quick, target
from torch import Tensor

from harness.mutants import RIGHT
from harness.records import Severity, Status
from harness.verify import Grade, Outcome, verify_case
from implementations import (
    Algorithm,
    Implementation,
    Reduction,
    implementation,
    native,
    one_pass,
    two_pass,
    two_pass_input_dtype,
)

CASE = {"shape": (3, 1000), "distribution": "constant"}
NORMAL = {"shape": (3, 1000)}
FIRST = {"shape": (130, 1032), "distribution": "outlier_first"}
OFFSET = {"shape": (64, 768), "distribution": "offset_1e3"}
DOUBLE = {"dtype": "float64", "param_dtype": "float64"}
HALF = {
    "shape": (300, 24),
    "direction": "backward",
    "dtype": "bfloat16",
    "param_dtype": "bfloat16",
}
TWO_PASS = {"source": "", "algorithm": Algorithm.TWO_PASS}
OVERFLOW = {
    "shape": (5, 64),
    "direction": "backward",
    "dtype": "float16",
    "param_dtype": "float16",
    "distribution": "tiny_variance",
    "grad_output": "huge",
    "eps": 1e-6,
}
LARGE_BIAS = {"shape": (5, 31), "parameters": "large_bias"}
RUNNING_SUMS = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(running_sums.two_passes)
IN_TREES = implementation(**TWO_PASS)(running_sums.two_passes)

# torch warns of a variance over one element
pytestmark = pytest.mark.filterwarnings(
    r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning"
)


def then(change: Callable[[Tensor], Tensor]) -> Implementation:
    """A plain loop whose result is changed."""
    return target(lambda *arguments: change(running_sums.two_passes(*arguments)))


def shifted(change: Callable[[Tensor], Tensor] = lambda y: y) -> Implementation:
    """A right LayerNorm of rows relative to their first element, whose result is changed."""

    def function(x: Tensor, *others: Any) -> Tensor:
        first = x.select(-1, 0).unsqueeze(-1)
        return change(native(x - first, *others))

    return target(function)


@pytest.mark.parametrize(
    ("function", "case", "status", "kind"),
    [
        (running_sums.two_passes, CASE, Status.INACCURATE, "running_sums"),
        (native, HALF, Status.INACCURATE, "column_sums"),
        (mutant("float64_in_float32"), NORMAL | DOUBLE, Status.INACCURATE, "statistics"),
        (mutant("float64_in_float32"), LARGE_BIAS | DOUBLE, Status.INACCURATE, "statistics"),
        (mutant("dx_saturated"), OVERFLOW, Status.WRONG, None),
        (shifted(), FIRST, Status.INACCURATE, "shifted"),
        (shifted(), FIRST | DOUBLE, Status.INACCURATE, "shifted"),
        (shifted(), NORMAL, Status.OK, None),
        (shifted(lambda y: y * (1 + 1e-4)), FIRST, Status.WRONG, None),
        (RUNNING_SUMS, CASE, Status.OK, None),  # it is declared
        (mutant("normalised_in_bfloat16"), HALF, Status.OK, "rounded_again"),
        (mutant("unbiased_variance"), HALF, Status.WRONG, None),
        (mutant("one_pass_in_disguise"), OFFSET, Status.WRONG, None),
        # counting 4097 elements as 4096 is within the bound of 4097 roundings
        (mutant("count_in_float16"), {"shape": (3, 4097)}, Status.WRONG, None),
    ],
)
def test_the_line_between_right_inaccurate_and_wrong(
    function: Any, case: dict[str, Any], status: Status, kind: str | None
) -> None:
    found = verify_case(function, **case)
    strictest = {*map(str, found.explained_by.values())}
    assert found.status is status, found.reason
    assert kind in strictest if kind else not strictest
    assert bool(found.reason) is (status is not Status.OK or kind is not None)


def test_a_plain_running_sum_is_inaccurate(monkeypatch: pytest.MonkeyPatch) -> None:
    # running sums exceed the bound of trees in few small cases, and in long rows
    use_small_catalogue(monkeypatch, largest=140_000, one_in=8, contract=False, source=False)
    verdict = quick(running_sums.two_passes, fail_fast=True)
    assert verdict.outcome is Outcome.INACCURATE
    assert verdict.failures == ()
    (finding,) = verdict.of(Severity.INACCURATE)
    assert (finding.kind, finding.dtypes) == ("running_sums", ("float32",))


# --- grades --------------------------------------------------------------------------------------

RECENTRED = next(right for right in RIGHT if right.name == "recentred")


def grade(function: Any, monkeypatch: pytest.MonkeyPatch, dtype: str = "float32") -> Grade:
    use_small_catalogue(monkeypatch, largest=4, one_in=20, contract=False, source=False)
    return quick(function, dtype).grades[0]


@pytest.mark.parametrize(
    ("function", "dtype", "meets", "low", "high"),
    [
        (one_pass, "float32", "one_pass (tree)", 50, 500),
        (two_pass, "float32", "two_pass (tree)", 1e3, 1e7),
        (RECENTRED, "float32", "recentred (tree)", inf, nan),
        # a running sum is no cancellation
        (IN_TREES, "float32", "two_pass (sequential)", 1e3, 1e7),
        (two_pass_input_dtype, "bfloat16", None, 1, 500),
    ],
)
def test_a_grade_is_the_strictest_algorithm_met_and_the_condition_of_two_digits(
    function: Any,
    dtype: str,
    meets: str | None,
    low: float,
    high: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = grade(function, monkeypatch, dtype)
    assert found.meets == meets
    limit = inf if found.condition_limit is None else found.condition_limit
    assert low <= limit
    assert not limit >= high


def test_a_target_that_is_wrong_where_it_is_graded_meets_no_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(x: Tensor, *others: Any) -> Tensor:
        y = two_pass.function(x, *others)
        return y * float("nan") if x.shape == (16, 1000) else y

    found = grade(wrong, monkeypatch)
    assert (found.meets, found.condition_limit) == (None, 1)
