"""Two results of one call differ if two right results could not be as far apart."""

from __future__ import annotations

import pytest
import torch
from factories.verify_targets import CASE, case_in
from torch import Tensor

from harness.cases.inputs import make_inputs
from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import compared
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.run.attempt import attempt
from harness.verify.checks.calls import Call
from implementations import Algorithm, Implementation, native, one_pass

DOUBLE = case_in("float64")  # so that a fraction of a bound can be represented


def differing(
    first: Tensor, again: Tensor, case: Case = CASE, implementation: Implementation = native
) -> list[str]:
    inputs = make_inputs(case)
    return Call(implementation, case, inputs).differing(Outputs(y=first), Outputs(y=again))


def exact_and_bound(case: Case = CASE) -> tuple[Tensor, Tensor]:
    inputs = make_inputs(case)
    outputs = Outputs(y=torch.zeros_like(inputs.x))
    bounds, reference = error_bound_of(native, case), Reference(inputs, case)
    (part,) = compared(outputs, inputs, case, bounds, reference)
    return part.exact[0], part.bound


def test_two_results_within_their_bounds_agree() -> None:
    exact, bound = exact_and_bound(DOUBLE)
    assert differing(exact + 0.9 * bound, exact - 0.9 * bound, DOUBLE) == []


def test_a_right_result_and_one_three_bounds_away_differ() -> None:
    exact, bound = exact_and_bound(DOUBLE)
    assert differing(exact, exact + 3 * bound, DOUBLE) == ["y"]
    assert differing(exact + 3 * bound, exact, DOUBLE) == ["y"]


def test_results_are_compared_at_the_precision_of_their_dtype() -> None:
    inputs = make_inputs(CASE)
    y = native(inputs.x, (32,), inputs.weight, inputs.bias)
    assert differing(y, y * (1 + 1e-4)) == ["y"]


@pytest.mark.parametrize(("noise", "expected"), [(1.5, []), (5.0, ["y"])])
def test_two_wrong_results_agree_up_to_noise_of_the_size_of_their_error(
    noise: float, expected: list[str]
) -> None:
    exact, bound = exact_and_bound(DOUBLE)
    wrong = exact + 1000 * bound
    changed = wrong + 1000 * noise * bound
    assert differing(wrong, changed, DOUBLE) == expected
    assert differing(changed, wrong, DOUBLE) == expected


def test_nan_in_the_same_place_agrees() -> None:
    exact, _ = exact_and_bound(DOUBLE)
    holed = exact.clone()
    holed[1, 2] = float("nan")
    assert differing(holed, holed.clone(), DOUBLE) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_finite_and_a_non_finite_result_differ(value: float) -> None:
    exact, _ = exact_and_bound(DOUBLE)
    holed = exact.clone()
    holed[1, 2] = value
    assert differing(holed, exact, DOUBLE) == ["y"]
    assert differing(exact, holed, DOUBLE) == ["y"]


def test_results_without_a_bound_never_differ() -> None:
    case = Case(implementation="one_pass", shape=(6, 32), distribution="offset_1e6")
    zeros = torch.zeros(6, 32)
    assert one_pass.algorithm is Algorithm.ONE_PASS
    assert differing(zeros, zeros + 1, case, one_pass) == []
    assert differing(zeros, zeros / 0, case, one_pass) == []


def test_differing_gradients_are_named() -> None:
    case = Case(implementation="native", shape=(5, 16), direction=Direction.BACKWARD)
    inputs = make_inputs(case)
    outputs = attempt(native, case, is_judged=False).outputs
    assert outputs is not None
    assert outputs.dx is not None
    assert outputs.dbias is not None
    other = Outputs(outputs.y, outputs.dx + 1e-3, outputs.dweight, outputs.dbias + 1e-3)
    assert Call(native, case, inputs).differing(outputs, other) == ["dx", "dbias"]
