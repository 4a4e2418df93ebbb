"""One row is explained step by step: exact and computed values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from harness.cases import make_inputs
from harness.records import Affine, Case, Status
from harness.verify import Explanation, Step
from harness.verify.explain import explain
from implementations import Implementation, adopt, one_pass, two_pass

CASE = Case(implementation="two_pass", shape=(4, 8))
STEPS = ["mean", "variance", "rstd", "normalised", "y"]


def step(explanation: Explanation, name: str) -> Step:
    (found,) = (each for each in explanation.steps if each.name == name)
    return found


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-5, abs=1e-6)


def changed(change: Callable[[Tensor], Any]) -> Implementation:
    return adopt(lambda *arguments: change(two_pass.function(*arguments)), "changed")


@pytest.mark.parametrize("affine", list(Affine))
def test_every_step_of_a_right_result_is_exact(affine: Affine) -> None:
    explanation = explain(two_pass, replace(CASE, affine=affine))
    assert explanation.status is Status.OK
    assert [each.name for each in explanation.steps] == STEPS
    for each in explanation.steps:
        assert each.computed == near(each.exact)


def test_the_exact_steps_are_those_of_the_row() -> None:
    explanation = explain(two_pass, CASE, row=2)
    inputs = make_inputs(CASE)
    x = inputs.x[2].double()
    variance = x.var(correction=0)
    rstd = (variance + CASE.eps) ** -0.5
    assert inputs.weight is not None
    assert inputs.bias is not None
    assert step(explanation, "mean").exact == near((float(x.mean()),))
    assert step(explanation, "variance").exact == near((float(variance),))
    assert step(explanation, "rstd").exact == near((float(rstd),))
    normalised = (x - x.mean()) * rstd
    assert step(explanation, "normalised").exact == near(tuple(normalised.tolist()))
    y = normalised * inputs.weight + inputs.bias
    assert step(explanation, "y").exact == near(tuple(y.tolist()))


def test_cancellation_shows_in_the_variance() -> None:
    explanation = explain(
        one_pass, replace(CASE, implementation="one_pass", distribution="offset_1e3")
    )
    variance, mean = step(explanation, "variance"), step(explanation, "mean")
    assert variance.computed is not None
    assert variance.computed != pytest.approx(variance.exact, rel=1e-2)
    assert mean.computed is not None
    assert mean.computed == pytest.approx(mean.exact, rel=1e-6)


def test_a_wrong_scale_shows_in_rstd_and_a_wrong_shift_in_the_mean() -> None:
    case = replace(CASE, affine=Affine.NONE)
    scaled = explain(changed(lambda y: 2 * y), case)
    rstd = step(scaled, "rstd")
    assert rstd.computed == near((2 * rstd.exact[0],))
    assert step(scaled, "mean").computed == near(step(scaled, "mean").exact)
    shifted = explain(changed(lambda y: y - 0.5), case)
    mean, rstd = step(shifted, "mean"), step(shifted, "rstd")
    assert rstd.computed == near(rstd.exact)
    assert mean.computed == near((mean.exact[0] + 0.5 / rstd.exact[0],))


def test_a_step_has_the_shape_of_its_quantity_for_all_of_x() -> None:
    explanation = explain(
        two_pass, Case(implementation="two_pass", shape=(2, 3, 5, 7), normalized_dims=2)
    )
    assert [each.shape for each in explanation.steps] == [(2, 3, 1, 1)] * 3 + [(2, 3, 5, 7)] * 2


def test_a_non_finite_y_implies_no_statistics() -> None:
    explanation = explain(changed(lambda y: y * float("nan")), CASE)
    assert explanation.worst_ulp == float("inf")
    for name in ("mean", "variance", "rstd"):
        assert step(explanation, name).computed is None


def test_a_constant_row_implies_no_mean() -> None:
    explanation = explain(two_pass, replace(CASE, distribution="constant"))
    assert step(explanation, "mean").computed is None


def spoiled(row: int, element: int, by: float) -> Implementation:
    def change(y: Tensor) -> Tensor:
        y = y.clone()
        y[row, element] += by
        return y

    return changed(change)


@pytest.mark.parametrize("by", [0.5, float("nan"), float("inf")])
def test_the_row_shown_is_the_worst(by: float) -> None:
    explanation = explain(spoiled(3, 5, by), CASE)
    assert (explanation.row, explanation.worst_element) == (3, 5)
    assert explanation.status is Status.WRONG
    assert explanation.worst_ulp > 1e3


def test_the_row_shown_is_the_requested_one() -> None:
    explanation = explain(spoiled(3, 5, 0.5), CASE, row=1)
    assert explanation.row == 1
    assert explanation.worst_ulp < 100
    assert explanation.status is Status.WRONG


@pytest.mark.parametrize("row", [-1, 4, 10**9])
def test_a_row_beyond_x_is_refused(row: int) -> None:
    with pytest.raises(IndexError, match=f"row {row}: x has rows 0 to 3"):
        explain(two_pass, CASE, row)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_a_case_without_elements_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LookupError, match="there is no element to explain"):
        explain(two_pass, replace(CASE, shape=shape))


def test_a_call_without_a_result_is_refused_with_its_reason() -> None:
    def raising(*arguments: Any) -> Tensor:
        raise RuntimeError("never")

    with pytest.raises(LookupError, match="RuntimeError: never"):
        explain(adopt(raising, "raising"), CASE)
    with pytest.raises(LookupError, match="y is of type tuple"):
        explain(changed(lambda y: (y, y)), CASE)


def test_a_row_of_a_later_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.numerics.oracle._BLOCK_ELEMENTS", 2 * 8)
    case = replace(CASE, seed=1)  # the blocks of CASE are kept
    explanation = explain(two_pass, case, row=3)
    x = make_inputs(case).x[3].double()
    assert step(explanation, "mean").exact == near((float(x.mean()),))
