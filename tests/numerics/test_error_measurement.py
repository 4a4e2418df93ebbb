"""Errors of y and of gradients in small cases whose errors are known."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite, nan, sqrt

import pytest
import torch
from factories.comb import COMB, DTYPES, TWO_PASS, comb_case, comb_inputs, measure
from torch import Tensor

from harness.cases import Inputs, make_inputs
from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import BoundRatio, verdict_of
from harness.numerics.outputs import Outputs
from harness.records import Affine, Case, Direction, OutputErrors, Status


def of_y(y: Tensor, inputs: Inputs, case: Case) -> OutputErrors:
    (found,) = measure(Outputs(y), inputs, case).outputs
    return found


def exact_y(case: Case) -> Tensor:
    return torch.tensor(COMB, dtype=getattr(torch, case.dtype)).sign()


# --- y -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_exact_output_has_no_error(dtype: str) -> None:
    case = comb_case(dtype)
    found = of_y(exact_y(case), comb_inputs(case), case)
    assert found == OutputErrors(
        output="y",
        elements=8,
        unexpected_nonfinite=0,
        scaled_max_ulp=0,
        scaled_p99_ulp=0,
        scaled_mean_ulp=0,
        raw_max_ulp=0,
        max_abs=0,
        normwise_ratio=0,
        bound_ratio=0,
        vacuous_elements=0,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_ulp_off_is_measured_as_three_ulp(dtype: str) -> None:
    case = comb_case(dtype)
    y = exact_y(case)
    ulp = torch.finfo(y.dtype).eps
    y[0, 0] += 3 * ulp
    found = of_y(y, comb_inputs(case), case)
    assert found.scaled_max_ulp == 3
    assert found.scaled_p99_ulp == 3
    assert found.scaled_mean_ulp == 3 / 8
    assert found.raw_max_ulp == 3
    assert found.max_abs == 3 * ulp
    assert found.normwise_ratio == 3 * ulp / 2  # over the norm of four ones


def test_an_error_counts_in_ulp_of_the_row_but_raw_in_ulp_of_the_element() -> None:
    case = comb_case()
    inputs = comb_inputs(case, weight=1.0, bias=4.0)
    y = exact_y(case) + 4
    y[0, 1] += 3 * 2.0**-21  # 3 ulp of the bias 4; the element itself is 3, with half the spacing
    found = of_y(y, inputs, case)
    assert found.scaled_max_ulp == 3
    assert found.raw_max_ulp == 6


def test_an_element_near_zero_has_the_scale_of_its_weight() -> None:
    case = comb_case()
    inputs = comb_inputs(case, weight=1.0, bias=-1.0)
    y = exact_y(case) - 1
    y[0, 0] += 2.0**-23  # 1 ulp of the weight; the exact element is 0
    found = of_y(y, inputs, case)
    assert found.scaled_max_ulp == 1
    assert found.raw_max_ulp > 1e30


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_that_is_not_finite_is_infinitely_wrong(dtype: str, bad: float) -> None:
    case = comb_case(dtype)
    y = exact_y(case)
    y[1, 2] = bad
    found = of_y(y, comb_inputs(case), case)
    assert found.unexpected_nonfinite == 1
    assert found.scaled_max_ulp == found.raw_max_ulp == found.max_abs == inf
    assert found.normwise_ratio == found.bound_ratio == inf
    assert found.scaled_mean_ulp is None


def test_nan_in_one_row_does_not_hide_an_error_in_another_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.numerics.oracle._BLOCK_ELEMENTS", 4)
    case = comb_case()
    for first, second in ((nan, 7.0), (7.0, nan)):
        y = exact_y(case)
        y[0, 0], y[1, 0] = first, second
        found = of_y(y, comb_inputs(case), case)
        assert found.unexpected_nonfinite == 1
        assert found.bound_ratio == inf


def test_nan_where_the_exact_result_is_nan_is_not_an_error() -> None:
    case = comb_case()
    inputs = comb_inputs(case)
    inputs.x[0, 0] = nan
    y = exact_y(case)
    y[0] = nan
    found = of_y(y, inputs, case)
    assert found.unexpected_nonfinite == 0
    assert found.scaled_max_ulp == 0
    assert found.vacuous_elements == 0


def test_a_number_where_the_exact_result_is_nan_is_infinitely_wrong() -> None:
    case = comb_case()
    inputs = comb_inputs(case)
    inputs.x[0, 0] = nan
    assert of_y(exact_y(case), inputs, case).scaled_max_ulp == inf


def test_the_percentile_leaves_out_one_element_in_a_hundred() -> None:
    case = replace(comb_case(), shape=(250, 4))
    inputs = replace(comb_inputs(case), x=torch.tensor(COMB[:1]).expand(250, 4))
    y = inputs.x.sign()
    y[:10, 0] += 5 * 2.0**-23
    assert of_y(y, inputs, case).scaled_p99_ulp == 0
    y[10, 0] += 5 * 2.0**-23
    assert of_y(y, inputs, case).scaled_p99_ulp == 5


def test_elements_without_a_guarantee_are_counted_and_not_bounded() -> None:
    case = comb_case()
    constant = replace(comb_inputs(case), x=torch.tensor([[1e6] * 4, [1.0, -1.0, 1.0, -1.0]]))
    case = replace(case, eps=1e-10)
    y = torch.tensor([[0.0] * 4, [1.0, -1.0, 1.0, -1.0]])
    found = of_y(y, constant, case)
    assert found.vacuous_elements == 4
    assert found.bound_ratio is not None
    assert found.bound_ratio <= 1


def test_there_is_no_bound_ratio_without_any_guarantee() -> None:
    case = replace(comb_case(), eps=1e-10)
    constant = replace(comb_inputs(case), x=torch.full((2, 4), 1e6))
    found = of_y(torch.zeros(2, 4), constant, case)
    assert found.vacuous_elements == 8
    assert found.bound_ratio is None


# --- condition of the inputs ---------------------------------------------------------------------


def test_the_condition_is_that_of_the_rows() -> None:
    case = replace(comb_case(), eps=3.0)
    inputs = replace(comb_inputs(case), x=torch.tensor([[2.0, 4, 2, 4], [1.0, -1, 1, -1]]))
    found = measure(Outputs(inputs.x), inputs, case)
    assert found.condition_max_ratio == pytest.approx(sqrt(1 + 3**2 / 1), rel=1e-12)


@pytest.mark.parametrize(("value", "condition"), [(1.0, inf), (0.0, 1.0)])
def test_a_constant_row_is_ill_conditioned_unless_it_is_zero(
    value: float, condition: float
) -> None:
    case = replace(comb_case(), eps=1e-5)
    inputs = replace(comb_inputs(case), x=torch.full((2, 4), value))
    found = measure(Outputs(torch.zeros(2, 4)), inputs, case)
    assert found.condition_max_ratio == condition


def test_errors_name_the_bound_and_the_oracle() -> None:
    case = comb_case("bfloat16")
    found = measure(Outputs(exact_y(case)), comb_inputs(case), case)
    assert (found.algorithm, found.reduction) == ("two_pass", "tree")
    assert found.accumulate_dtype == "float32"
    assert found.oracle == "float64_twice_centred"
    case = comb_case("float64")
    found = measure(Outputs(exact_y(case)), comb_inputs(case), case)
    assert (found.accumulate_dtype, found.oracle) == ("float64", "double_double")
    # an enumeration of implementations would make readers of a record import torch
    assert {type(found.algorithm), type(found.reduction)} == {str}


# --- nothing to compare --------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty_outputs_are_right(shape: tuple[int, int], dtype: str, direction: Direction) -> None:
    case = Case(
        implementation="two_pass", shape=shape, dtype=dtype, param_dtype=dtype, direction=direction
    )
    inputs = make_inputs(case)
    zeros = [torch.zeros_like(inputs.x)] * 2
    columns = [torch.zeros(shape[1], dtype=inputs.x.dtype)] * 2
    backward = direction is Direction.BACKWARD
    outputs = Outputs(*zeros, *columns) if backward else Outputs(zeros[0])
    errors = measure(outputs, inputs, case)
    assert verdict_of(errors, case, error_bound_of(TWO_PASS, case)) == (Status.OK, "")
    for found in errors.outputs:
        of_rows = found.output in {"y", "dx"}
        assert found.elements == (0 if of_rows else shape[1])
        assert isfinite(found.scaled_max_ulp)
        assert found.scaled_mean_ulp == 0


# === Errors of gradients in small cases whose errors are known


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


# === Errors over their bounds: infinities near the end of a dtype's range


def ratio_of(computed: float, exact: float, bound: float) -> BoundRatio:
    """One element of a float16 output."""
    ratio = BoundRatio("dx", torch.float16)
    high, allowed, value = (
        torch.tensor([[values]], dtype=torch.float64) for values in (exact, bound, computed)
    )
    ratio.add(value, (high, torch.zeros((), dtype=torch.float64)), allowed)
    return ratio


@pytest.mark.parametrize(("computed", "exact"), [(inf, 65_000.0), (-inf, -65_000.0)])
def test_infinity_is_right_where_a_value_within_the_bound_overflows(
    computed: float, exact: float
) -> None:
    ratio = ratio_of(computed, exact, bound=600.0)
    assert ratio.bound_ratio == 0
    assert not ratio.unexpected_nonfinite


@pytest.mark.parametrize(
    ("computed", "exact", "bound"),
    [(inf, 65_000.0, 400.0), (-inf, 65_000.0, 600.0), (float("nan"), 65_000.0, 600.0)],
)
def test_another_value_that_is_not_finite_is_wrong(
    computed: float, exact: float, bound: float
) -> None:
    ratio = ratio_of(computed, exact, bound)
    assert ratio.bound_ratio == inf
    assert ratio.unexpected_nonfinite == 1


def test_an_infinity_without_a_guarantee_is_counted() -> None:
    ratio = ratio_of(inf, 1.0, bound=inf)
    assert ratio.bound_ratio is None
    assert (ratio.unexpected_nonfinite, ratio.vacuous_elements) == (1, 1)
