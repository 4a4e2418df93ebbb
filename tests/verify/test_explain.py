"""One row step by step: exact beside computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.explain import Explanation, Step, explain, explanation_lines
from implementations import Implementation, adopt, one_pass, two_pass

CASE = Case(implementation="two_pass", shape=(4, 8))
STEPS = ["mean", "variance", "rstd", "normalised", "y"]


def step(said: Explanation, name: str) -> Step:
    (found,) = (each for each in said.steps if each.name == name)
    return found


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-5, abs=1e-6)


def changed(change: Callable[[Tensor], Any]) -> Implementation:
    return adopt(lambda *arguments: change(two_pass.function(*arguments)), "changed")


# --- the steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", list(Affine))
def test_every_step_of_a_right_one_is_the_exact_one(affine: Affine) -> None:
    said = explain(two_pass, replace(CASE, affine=affine))
    assert said.status is Status.OK
    assert [each.name for each in said.steps] == STEPS
    for each in said.steps:
        assert each.computed == near(each.exact)


def test_the_exact_steps_are_those_of_the_row() -> None:
    said = explain(two_pass, CASE, row=2)
    inputs = make_inputs(CASE)
    x = inputs.x[2].double()
    variance = x.var(correction=0)
    rstd = (variance + CASE.eps) ** -0.5
    assert inputs.weight is not None
    assert inputs.bias is not None
    assert step(said, "mean").exact == near((float(x.mean()),))
    assert step(said, "variance").exact == near((float(variance),))
    assert step(said, "rstd").exact == near((float(rstd),))
    normalised = (x - x.mean()) * rstd
    assert step(said, "normalised").exact == near(tuple(normalised.tolist()))
    y = normalised * inputs.weight + inputs.bias
    assert step(said, "y").exact == near(tuple(y.tolist()))


def test_cancellation_shows_in_the_variance() -> None:
    said = explain(one_pass, replace(CASE, implementation="one_pass", distribution="offset_1e3"))
    variance, mean = step(said, "variance"), step(said, "mean")
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


def test_the_steps_have_the_shapes_of_the_whole() -> None:
    said = explain(two_pass, Case(implementation="two_pass", shape=(2, 3, 5, 7), normalized_dims=2))
    assert [each.shape for each in said.steps] == [(2, 3, 1, 1)] * 3 + [(2, 3, 5, 7)] * 2


def test_what_is_not_finite_implies_nothing() -> None:
    said = explain(changed(lambda y: y * float("nan")), CASE)
    assert said.worst_ulp == float("inf")
    for name in ("mean", "variance", "rstd"):
        assert step(said, name).computed is None
    assert "  computed  not implied by y" in explanation_lines(said)


def test_a_constant_row_implies_nothing() -> None:
    said = explain(two_pass, replace(CASE, distribution="constant"))
    assert step(said, "mean").computed is None


# --- which row -----------------------------------------------------------------------------------


def spoiled(row: int, element: int, by: float) -> Implementation:
    def change(y: Tensor) -> Tensor:
        y = y.clone()
        y[row, element] += by
        return y

    return changed(change)


@pytest.mark.parametrize("by", [0.5, float("nan"), float("inf")])
def test_the_row_shown_is_the_worst(by: float) -> None:
    said = explain(spoiled(3, 5, by), CASE)
    assert (said.row, said.worst_element) == (3, 5)
    assert said.status is Status.WRONG
    assert said.worst_ulp > 1e3


def test_the_row_shown_is_the_one_asked_for() -> None:
    said = explain(spoiled(3, 5, 0.5), CASE, row=1)
    assert said.row == 1
    assert said.worst_ulp < 100
    assert said.status is Status.WRONG


@pytest.mark.parametrize("row", [-1, 4, 10**9])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    with pytest.raises(IndexError, match=f"row {row}: x has rows 0 to 3"):
        explain(two_pass, CASE, row)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_a_case_without_elements_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LookupError, match="there is no element to explain"):
        explain(two_pass, replace(CASE, shape=shape))


def test_a_result_that_is_none_is_refused_with_its_reason() -> None:
    def raising(*arguments: Any) -> Tensor:
        raise RuntimeError("never")

    with pytest.raises(LookupError, match="RuntimeError: never"):
        explain(adopt(raising, "raising"), CASE)
    with pytest.raises(LookupError, match="y is a tuple"):
        explain(changed(lambda y: (y, y)), CASE)


def test_a_row_of_a_later_block_is_found() -> None:
    case = Case(implementation="two_pass", shape=(5000, 1000))
    said = explain(two_pass, case, row=4999)
    x = make_inputs(case).x[4999].double()
    assert step(said, "mean").exact == near((float(x.mean()),))


@pytest.mark.parametrize("name", ["", "another"])
def test_the_name_in_the_case_changes_no_number(name: str) -> None:
    assert (
        explain(two_pass, replace(CASE, implementation=name)).steps == explain(two_pass, CASE).steps
    )


def test_a_backward_case_is_explained_by_its_y() -> None:
    said = explain(two_pass, replace(CASE, direction=Direction.BACKWARD))
    assert step(said, "y").computed == near(step(said, "y").exact)


# --- by hand -------------------------------------------------------------------------------------


def test_the_loop_ends_at_the_exact_y() -> None:
    said = explain(two_pass, CASE)
    assert len(said.loop) == 3 + 8
    by_hand = [float(each.rpartition("= ")[2]) for each in said.loop]
    assert by_hand[0] == near(step(said, "mean").exact[0])
    assert by_hand[1] == near(step(said, "variance").exact[0])
    assert by_hand[2] == near(step(said, "rstd").exact[0])
    assert by_hand[3:] == near(list(step(said, "y").exact))


@pytest.mark.parametrize(("hidden", "lines"), [(64, 67), (65, 0)])
def test_the_loop_is_for_small_rows(hidden: int, lines: int) -> None:
    assert len(explain(two_pass, replace(CASE, shape=(2, hidden))).loop) == lines


def test_eps_of_zero_and_a_constant_row_divide_by_nothing() -> None:
    said = explain(two_pass, replace(CASE, distribution="constant", eps=0.0))
    assert said.loop[2].endswith("= inf")


# --- in words ------------------------------------------------------------------------------------


def test_an_explanation_in_words() -> None:
    said = explain(two_pass, CASE, row=1)
    lines = explanation_lines(said)
    assert lines[0] == "two_pass/forward/4x8/float32/normal: ok"
    assert lines[1].startswith("row 1 of 4; its worst element is ")
    assert [each.partition(",")[0] for each in lines[2:17:3]] == STEPS
    assert "mean, shape 4x1" in lines
    assert "y, shape 4x8" in lines
    assert "by hand, in float64:" in lines
    assert f"  {said.loop[-1]}" == lines[-1]


def test_a_large_row_is_explained_without_its_loop() -> None:
    said = explain(two_pass, replace(CASE, shape=(2, 1000)))
    lines = explanation_lines(said)
    assert "by hand, in float64:" not in lines
    assert len(step(said, "y").exact) == 8
    assert len(lines) == 2 + 3 * 5


def test_a_wrong_one_says_why() -> None:
    lines = explanation_lines(explain(changed(lambda y: y + 1), CASE))
    assert lines[0].startswith("two_pass/forward/4x8/float32/normal: wrong: y is ")


def test_one_row_is_explained_by_its_torch_dtype() -> None:
    said = explain(two_pass, replace(CASE, dtype="bfloat16", param_dtype="bfloat16"))
    assert said.status is Status.OK
    assert torch.isfinite(torch.tensor(step(said, "y").exact)).all()
