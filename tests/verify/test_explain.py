"""One row is explained step by step: exact and computed values, and the first wrong step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from factories.verify_targets import mutant, raising
from torch import Tensor

from harness.cases import make_inputs
from harness.records import Affine, Case, Status
from harness.verify import explain
from implementations import Implementation, adopt, two_pass

CASE = Case(implementation="two_pass", shape=(4, 8))
STEPS = ["mean", "variance", "rstd", "normalised", "y"]


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-5, abs=1e-6)


def changed(change: Callable[[Tensor], Any]) -> Implementation:
    return adopt(lambda *arguments: change(two_pass.function(*arguments)), "changed")


def spoiled(by: float) -> Implementation:
    """One whose y is off by that much in one element of row 3."""

    def spoil(y: Tensor) -> Tensor:
        y = y.clone()
        y[3, 5] += by
        return y

    return changed(spoil)


@pytest.mark.parametrize("affine", [Affine.BOTH, Affine.NONE])
def test_every_step_of_a_right_result_is_exact(affine: Affine) -> None:
    explanation = explain(two_pass, replace(CASE, affine=affine))
    assert explanation.status is Status.OK
    assert [own.name for own in explanation.steps] == STEPS
    for own in explanation.steps:
        assert own.computed == near(own.exact)


def test_the_exact_steps_are_those_of_the_row() -> None:
    inputs = make_inputs(CASE)
    x = inputs.x[2].double()
    variance = x.var(correction=0)
    rstd = (variance + CASE.eps) ** -0.5
    normalised = (x - x.mean()) * rstd
    y = normalised * inputs.weight + inputs.bias
    expected = (x.mean(), variance, rstd, normalised, y)
    for own, exact in zip(explain(two_pass, CASE, row=2).steps, expected, strict=True):
        assert own.exact == near(tuple(exact.reshape(-1).tolist()))


@pytest.mark.parametrize(
    ("target", "step"),
    [
        (two_pass, ""),
        (mutant("unbiased_variance"), "variance or rstd"),
        (mutant("eps_ignored"), "variance or rstd"),
        (mutant("root_mean_square"), "mean"),
        (spoiled(1.0), "normalised or y"),
    ],
    ids=["right", "N-1", "eps", "no mean", "one element"],
)
def test_the_first_wrong_step_is_named(target: Implementation, step: str) -> None:
    assert explain(target, replace(CASE, eps=0.01)).first_wrong == step


@pytest.mark.parametrize("by", [0.5, float("nan")])
def test_the_row_shown_is_the_requested_or_the_worst_one(by: float) -> None:
    worst, right = (explain(spoiled(by), CASE, row) for row in (None, 1))
    assert worst.status is right.status is Status.WRONG
    assert (worst.row, worst.worst_element, right.row) == (3, 5, 1)
    assert right.worst_ulp < 1e3 < worst.worst_ulp
    assert right.first_wrong == ""


@pytest.mark.parametrize(
    ("target", "case", "row", "message"),
    [
        (adopt(raising(RuntimeError("never")), "raising"), CASE, None, "RuntimeError: never"),
        (changed(lambda y: (y, y)), CASE, None, "y is of type tuple"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_its_reason(
    target: Implementation, case: Case, row: int | None, message: str
) -> None:
    with pytest.raises(LookupError, match=message):
        explain(target, case, row)
