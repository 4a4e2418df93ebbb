"""Errors of gradients in small cases whose errors are known."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from factories.comb import COMB, DTYPES, comb_case, comb_inputs, measure

from harness.numerics.outputs import Outputs
from harness.records import Affine, Direction

ONES = [[1.0] * 4] * 2


def backward_outputs(dtype: str = "float32") -> Outputs:
    """Exact outputs for dy = 1: dx is 0, dweight the sum of y, dbias 2."""
    of = {"dtype": getattr(torch, dtype)}
    return Outputs(
        y=torch.tensor(COMB, **of).sign(),
        dx=torch.zeros(2, 4, **of),
        dweight=torch.tensor([2.0, -2.0, 2.0, -2.0], **of),
        dbias=torch.full((4,), 2.0, **of),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_gradients_have_no_error(dtype: str) -> None:
    case = comb_case(dtype, Direction.BACKWARD)
    errors = measure(backward_outputs(dtype), comb_inputs(case, dy=ONES), case)
    assert [output.output for output in errors.outputs] == ["y", "dx", "dweight", "dbias"]
    assert [output.elements for output in errors.outputs] == [8, 8, 4, 4]
    assert all(output.scaled_max_ulp == 0 for output in errors.outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("output", "scale"), [("dx", 1), ("dweight", 2), ("dbias", 2)])
def test_a_gradient_three_ulp_off_is_measured_as_three_ulp(
    output: str, scale: int, dtype: str
) -> None:
    case = comb_case(dtype, Direction.BACKWARD)
    outputs = backward_outputs(dtype)
    changed = getattr(outputs, output)
    changed.view(-1)[0] += 3 * scale * torch.finfo(changed.dtype).eps
    errors = {row.output: row for row in measure(outputs, comb_inputs(case, dy=ONES), case).outputs}
    assert errors[output].scaled_max_ulp == 3
    assert all(
        output_errors.scaled_max_ulp == 0
        for name, output_errors in errors.items()
        if name != output
    )


@pytest.mark.parametrize("output", ["dx", "dweight", "dbias"])
def test_a_gradient_that_is_nan_is_infinitely_wrong(output: str) -> None:
    case = comb_case(direction=Direction.BACKWARD)
    outputs = backward_outputs()
    getattr(outputs, output).view(-1)[0] = nan
    for found in measure(outputs, comb_inputs(case, dy=ONES), case).outputs:
        expected = (1, inf) if found.output == output else (0, 0)
        assert (found.unexpected_nonfinite, found.bound_ratio) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_column_without_gradient_does_not_hide_a_wrong_one(dtype: str) -> None:
    # where dy is 0 dweight and its bound in float64 are exactly 0, and 0/0 is NaN
    case = comb_case(dtype, Direction.BACKWARD)
    inputs = comb_inputs(case, dy=[[0.0, 1.0, 1.0, 1.0]] * 2)
    outputs = backward_outputs(dtype)
    for gradient in (outputs.dweight, outputs.dbias):
        assert gradient is not None
        gradient[0] = 0
        gradient[1] = 77
    errors = {output.output: output for output in measure(outputs, inputs, case).outputs}
    for name in ("dweight", "dbias"):
        assert errors[name].bound_ratio is not None
        assert not errors[name].bound_ratio <= 1


def test_a_column_without_gradient_must_be_exactly_zero() -> None:
    case = comb_case("float64", Direction.BACKWARD)
    inputs = comb_inputs(case, dy=[[0.0, 1.0, 1.0, 1.0]] * 2)
    outputs = backward_outputs("float64")
    errors = {output.output: output for output in measure(outputs, inputs, case).outputs}
    assert errors["dbias"].bound_ratio == inf  # it says 2 there


@pytest.mark.parametrize(
    ("affine", "expected"),
    [
        (Affine.BOTH, ["y", "dx", "dweight", "dbias"]),
        (Affine.WEIGHT, ["y", "dx", "dweight"]),
        (Affine.BIAS, ["y", "dx", "dbias"]),
        (Affine.NONE, ["y", "dx"]),
    ],
)
def test_only_gradients_of_existing_parameters_are_compared(
    affine: Affine, expected: list[str]
) -> None:
    case = replace(comb_case(direction=Direction.BACKWARD), affine=affine)
    inputs, outputs = comb_inputs(case, dy=ONES), backward_outputs()
    if "dweight" not in expected:
        inputs, outputs = replace(inputs, weight=None), replace(outputs, dweight=None)
    if "dbias" not in expected:
        inputs, outputs = replace(inputs, bias=None), replace(outputs, dbias=None)
    found = measure(outputs, inputs, case).outputs
    assert [row.output for row in found] == expected
    assert all(row.scaled_max_ulp == 0 for row in found)
