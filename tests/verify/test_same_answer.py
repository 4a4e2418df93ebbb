"""Two answers to one question are told apart where right ones could not differ as much."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction
from harness.verify.checks.answers import differing_outputs, is_same_answer
from harness.verify.exact_outputs import limits_of
from harness.verify.trial import first_case, outputs_of
from implementations import Algorithm, Implementation, native, one_pass

CASE = first_case("implementation", "float32", "cpu")
DOUBLE = first_case("implementation", "float64", "cpu")  # so that a share of a bound can be written


def differing(
    first: Tensor, again: Tensor, case: Case = CASE, implementation: Implementation = native
) -> list[str]:
    inputs = make_inputs(case)
    return differing_outputs(implementation, case, inputs, Outputs(y=first), Outputs(y=again))


def exact_and_bound(case: Case = CASE) -> tuple[Tensor, Tensor]:
    limits = limits_of(native, case, make_inputs(case))
    return limits.exact["y"][0], limits.bounds["y"]


def test_two_answers_within_their_bounds_are_one() -> None:
    exact, bound = exact_and_bound(DOUBLE)
    assert differing(exact + 0.9 * bound, exact - 0.9 * bound, DOUBLE) == []


def test_a_right_answer_and_one_beyond_its_bound_by_another_are_two() -> None:
    exact, bound = exact_and_bound(DOUBLE)
    assert differing(exact, exact + 3 * bound, DOUBLE) == ["y"]
    assert differing(exact + 3 * bound, exact, DOUBLE) == ["y"]


def test_answers_are_compared_at_the_precision_of_their_dtype() -> None:
    inputs = make_inputs(CASE)
    y = native(inputs.x, (32,), inputs.weight, inputs.bias)
    assert differing(y, y * (1 + 1e-4)) == ["y"]  # once taken for the same


@pytest.mark.parametrize(("noise", "expected"), [(1.5, []), (5.0, ["y"])])
def test_two_wrong_answers_are_one_up_to_noise_of_the_size_of_the_error(
    noise: float, expected: list[str]
) -> None:
    exact, bound = exact_and_bound(DOUBLE)
    wrong = exact + 1000 * bound
    changed = wrong + 1000 * noise * bound
    assert differing(wrong, changed, DOUBLE) == expected
    assert differing(changed, wrong, DOUBLE) == expected


def test_the_same_nan_is_the_same_answer() -> None:
    exact, _ = exact_and_bound(DOUBLE)
    holed = exact.clone()
    holed[1, 2] = float("nan")
    assert differing(holed, holed.clone(), DOUBLE) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_another_answer_than_what_is(value: float) -> None:
    exact, _ = exact_and_bound(DOUBLE)
    holed = exact.clone()
    holed[1, 2] = value
    assert differing(holed, exact, DOUBLE) == ["y"]
    assert differing(exact, holed, DOUBLE) == ["y"]


def test_nothing_is_said_where_nothing_is_promised() -> None:
    case = Case(implementation="one_pass", shape=(6, 32), distribution="offset_1e6")
    zeros = torch.zeros(6, 32)
    assert one_pass.algorithm is Algorithm.ONE_PASS
    assert differing(zeros, zeros + 1, case, one_pass) == []
    assert differing(zeros, zeros / 0, case, one_pass) == []


def test_gradients_are_told_apart_by_name() -> None:
    case = Case(implementation="native", shape=(5, 16), direction=Direction.BACKWARD)
    inputs = make_inputs(case)
    outputs = outputs_of(native, case)
    assert outputs is not None
    assert outputs.dx is not None
    assert outputs.dbias is not None
    other = Outputs(outputs.y, outputs.dx + 1e-3, outputs.dweight, outputs.dbias + 1e-3)
    assert differing_outputs(native, case, inputs, outputs, other) == ["dx", "dbias"]


def test_no_answer_is_the_same_as_none_only() -> None:
    answer = outputs_of(native, CASE)
    assert answer is not None
    assert is_same_answer(native, CASE, None, None)
    assert is_same_answer(native, CASE, answer, answer)
    assert not is_same_answer(native, CASE, answer, None)
    assert not is_same_answer(native, CASE, None, answer)


def test_another_answer_is_not_the_same() -> None:
    answer = outputs_of(native, CASE)
    assert answer is not None
    assert not is_same_answer(native, CASE, answer, Outputs(y=answer.y + 1e-4))
