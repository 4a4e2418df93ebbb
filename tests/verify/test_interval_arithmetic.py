"""Sums and products of intervals contain the exact values, and bounds are those of the errors."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.bounds import guarantee_of
from harness.numerics.error_measurement import measure_errors
from harness.numerics.oracle import Reference
from harness.records import Affine, Case, Direction
from harness.verify.exact_outputs import exact_outputs, wide_outputs
from harness.verify.interval_arithmetic import Enclosed, exactly, statistic
from harness.verify.trial import outputs_of
from implementations import native

SIZES = st.floats(-1e6, 1e6)
BOUNDS = st.floats(0, 1e3)
WHERE = st.floats(-1, 1)  # in an interval


def enclosed(value: float, bound: float) -> Enclosed:
    return replace(exactly(tensor(value)), bound=tensor(bound))


def tensor(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def holds(found: Enclosed, exact: Fraction) -> bool:
    """Whether a number is in an interval, up to the rounding of the bound itself."""
    high, low = (Fraction(float(each)) for each in found.value)
    bound = Fraction(float(found.bound))
    return abs(high + low - exact) <= bound * Fraction(1 + 1e-12) + Fraction(1e-300)


@given(a=SIZES, b=SIZES, bound_a=BOUNDS, bound_b=BOUNDS, in_a=WHERE, in_b=WHERE)
def test_sums_differences_and_products_contain_the_exact_value(
    a: float, b: float, bound_a: float, bound_b: float, in_a: float, in_b: float
) -> None:
    one, two = enclosed(a, bound_a), enclosed(b, bound_b)
    exact_a = Fraction(a) + Fraction(bound_a) * Fraction(in_a)
    exact_b = Fraction(b) + Fraction(bound_b) * Fraction(in_b)
    assert holds(one + two, exact_a + exact_b)
    assert holds(one - two, exact_a - exact_b)
    assert holds(one * two, exact_a * exact_b)


def test_the_bound_of_a_row_sum_is_the_sum_of_the_bounds() -> None:
    found = replace(exactly(tensor(1, 2, 3)), bound=tensor(0.5, 0.25, 0.25)).row_sums()
    assert float(found.value[0]) == 6
    assert float(found.bound) == 1


def test_a_row_sum_of_exact_values_is_exact() -> None:
    found = exactly(tensor(1e16, 1, -1e16)).row_sums()
    assert float(found.value[0]) == 1
    assert found.may_be_zero() is False


def test_columns_keep_their_bounds() -> None:
    order = torch.tensor([2, 0, 1])
    found = replace(exactly(tensor(1, 2, 3)), bound=tensor(10, 20, 30)).columns(order)
    assert found.value[0].tolist() == [[3, 1, 2]]
    assert found.bound.tolist() == [[30, 10, 20]]


@pytest.mark.parametrize(
    ("value", "bound", "expected"),
    [
        (0.0, 0.0, True),
        (1.0, 1.0, True),
        (-1.0, 1.0, True),
        (1.0, 0.99, False),
        (float("nan"), 1.0, False),
        (float("inf"), 1.0, False),
        (1.0, float("inf"), None),
        (float("nan"), float("inf"), None),
    ],
)
def test_zero_is_possible_within_the_bound_and_unknown_without_one(
    value: float, bound: float, expected: bool | None
) -> None:
    assert enclosed(value, bound).may_be_zero() is expected


def test_one_number_that_cannot_be_zero_decides() -> None:
    bound = tensor(1, float("inf"), 1)
    assert replace(exactly(tensor(0, 0, 2)), bound=bound).may_be_zero() is False
    assert replace(exactly(tensor(0, 0, 0)), bound=bound).may_be_zero() is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite_is_never_zero(value: float) -> None:
    assert (enclosed(value, 1.0) * enclosed(2.0, 1.0)).may_be_zero() is False


@pytest.mark.parametrize("factor", [0.0, 3.0])
def test_a_product_with_an_unknown_value_is_unknown(factor: float) -> None:
    assert (enclosed(2.0, float("inf")) * exactly(factor)).may_be_zero() is None


def test_a_statistic_is_within_the_rounding_of_the_reference() -> None:
    third = tensor(1 / 3)
    assert (statistic(third) - exactly(third * (1 + 2**-48))).may_be_zero() is True
    assert (statistic(third) - exactly(third * (1 + 2**-40))).may_be_zero() is False


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("affine", Affine)
def test_the_bounds_are_those_that_errors_are_measured_by(affine: Affine, dtype: str) -> None:
    case = Case(
        implementation="native",
        shape=(7, 33),
        dtype=dtype,
        param_dtype=dtype,
        affine=affine,
        direction=Direction.BACKWARD,
    )
    inputs, outputs = make_inputs(case), outputs_of(native, case)
    assert outputs is not None
    guarantee = guarantee_of(native, case)
    measured = measure_errors(outputs, inputs, case, guarantee, Reference(inputs, case))
    expected, computed = exact_outputs(native, case, inputs), wide_outputs(outputs, case)
    assert list(expected.bounds) == list(computed) == [each.output for each in measured.outputs]
    for each in measured.outputs:
        high, low = expected.exact[each.output]
        ratio = ((computed[each.output] - high) - low).abs() / expected.bounds[each.output]
        assert float(ratio.max()) == pytest.approx(each.bound_ratio)


def test_a_forward_case_has_bounds_of_y_alone() -> None:
    case = Case(implementation="native", shape=(7, 33))
    assert list(exact_outputs(native, case, make_inputs(case)).bounds) == ["y"]
