"""One row is explained step by step: exact and computed values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from harness.cases import make_inputs
from harness.records import Affine, Case, Status
from harness.verify import explain
from implementations import Implementation, adopt, one_pass, two_pass

CASE = Case(implementation="two_pass", shape=(4, 8))
STEPS = ["mean", "variance", "rstd", "normalised", "y"]


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-5, abs=1e-6)


def changed(change: Callable[[Tensor], Any]) -> Implementation:
    return adopt(lambda *arguments: change(two_pass.function(*arguments)), "changed")


@pytest.mark.parametrize("affine", [Affine.BOTH, Affine.NONE])
def test_every_step_of_a_right_result_is_exact(affine: Affine) -> None:
    explanation = explain(two_pass, replace(CASE, affine=affine))
    assert explanation.status is Status.OK
    assert [own.name for own in explanation.steps] == STEPS
    for own in explanation.steps:
        assert own.computed == near(own.exact)


def test_the_exact_steps_are_those_of_the_row() -> None:
    explanation = explain(two_pass, CASE, row=2)
    inputs = make_inputs(CASE)
    x = inputs.x[2].double()
    variance = x.var(correction=0)
    rstd = (variance + CASE.eps) ** -0.5
    normalised = (x - x.mean()) * rstd
    assert inputs.weight is not None
    assert inputs.bias is not None
    y = normalised * inputs.weight + inputs.bias
    exact = {own.name: own.exact for own in explanation.steps}
    assert [exact[name] for name in ("mean", "variance", "rstd")] == [
        near((float(value),)) for value in (x.mean(), variance, rstd)
    ]
    assert exact["normalised"] == near(tuple(normalised.tolist()))
    assert exact["y"] == near(tuple(y.tolist()))


@pytest.mark.parametrize(
    ("target", "case", "wrong"),
    [
        (one_pass, replace(CASE, distribution="offset_1e3"), {"variance", "rstd"}),
        (changed(lambda y: 2 * y), replace(CASE, affine=Affine.NONE), {"variance", "rstd"}),
    ],
    ids=["cancellation", "scale"],
)
def test_a_mistake_shows_in_the_statistic_that_it_is_in(
    target: Implementation, case: Case, wrong: set[str]
) -> None:
    statistics = explain(target, case).steps[:3]
    found = {own.name for own in statistics if own.computed != pytest.approx(own.exact, rel=1e-3)}
    assert found == wrong
    assert None not in {own.computed for own in statistics}


def test_a_constant_row_implies_no_statistics() -> None:
    steps = explain(two_pass, replace(CASE, distribution="constant")).steps
    assert [own.computed for own in steps[:3]] == [None, None, None]


@pytest.mark.parametrize("by", [0.5, float("nan")])
@pytest.mark.parametrize("row", [None, 1])
def test_the_row_shown_is_the_requested_or_the_worst_one(by: float, row: int | None) -> None:
    def spoiled(y: Tensor) -> Tensor:
        y = y.clone()
        y[3, 5] += by
        return y

    explanation = explain(changed(spoiled), CASE, row)
    assert explanation.status is Status.WRONG
    assert explanation.row == (3 if row is None else row)
    assert (explanation.worst_ulp > 1e3) is (row is None)
    assert row is not None or explanation.worst_element == 5


def raising(*arguments: Any) -> Tensor:
    raise RuntimeError("never")


@pytest.mark.parametrize(
    ("target", "case", "row", "message"),
    [
        (two_pass, CASE, 4, "row 4: x has rows 0 to 3"),
        (two_pass, replace(CASE, shape=(0, 5)), None, "there is no element to explain"),
        (adopt(raising, "raising"), CASE, None, "RuntimeError: never"),
        (changed(lambda y: (y, y)), CASE, None, "y is of type tuple"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_its_reason(
    target: Implementation, case: Case, row: int | None, message: str
) -> None:
    with pytest.raises(LookupError, match=message):
        explain(target, case, row)
