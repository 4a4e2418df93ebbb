"""The exact results against rational arithmetic and closed forms, whole and in blocks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import chain
from math import inf, nan
from typing import Any

import pytest
import torch
from factories.exact import ExactLayerNorm, Rows, as_fraction, exact_layer_norm
from torch import Tensor

from harness.cases import DISTRIBUTIONS, Inputs, UnrepresentableError, make_inputs
from harness.numerics import ExactRows, Reference
from harness.records import Case, Direction

# Units of 2^-53: 13 were measured for the normalised value and 47 for dx up to a condition number
# of 1e12, and the inputs here reach 1e8.
TWICE_CENTRED_ERROR = Fraction(50, 2**53)

# Units of 2^-106: each result takes some ten operations of at most 8. The mean is off by as many
# units of itself, which the condition number turns into units of the deviations.
DOUBLE_DOUBLE_ERROR = Fraction(16, 2**106)

HIDDEN = (2, 3, 16, 17)  # even and odd, whole and broken trees
either_oracle = pytest.mark.parametrize("dtype", ["float64", "float32"])


def case_of(dtype: str, hidden: int, **axes: Any) -> Case:
    """A backward case of three rows."""
    return Case(
        implementation="none",
        direction=Direction.BACKWARD,
        dtype=dtype,
        param_dtype=dtype,
        **{"shape": (3, hidden), **axes},
    )


def result_of(case: Case, inputs: Inputs | None = None) -> ExactRows:
    (block,) = Reference(make_inputs(case) if inputs is None else inputs, case)
    return block


def rationals_of(case: Case, inputs: Inputs) -> ExactLayerNorm:
    x, weight, bias, dy = inputs.tensors
    return exact_layer_norm(x, weight, bias, dy, case.eps)


def scales_of(exact: ExactLayerNorm, inputs: Inputs) -> dict[str, Rows]:
    """The sizes that errors are relative to, near zero those of the row or the column."""
    _, weight, _, dy = (tensor.double() for tensor in inputs.tensors)
    sizes, norms = as_fraction(weight.abs()), as_fraction(dy.square().sum(0).sqrt())
    rms = as_fraction((dy * weight).square().mean(-1).sqrt())
    least = {
        "y": [sizes] * len(dy),  # the normalised value is off by a share of its row's size, 1
        "dx": [[rstd * size] * len(weight) for rstd, size in zip(exact.rstd, rms, strict=True)],
        "dweight": [norms],
        "dbias": [norms],
    }
    return {
        name: [
            [max(abs(value), size) for value, size in zip(values, sizes_of_row, strict=True)]
            for values, sizes_of_row in zip(getattr(exact, name), rows, strict=True)
        ]
        for name, rows in least.items()
    }


def flat(rows: Rows) -> list[Fraction]:
    return [*chain.from_iterable(rows)]


def largest_error(found: tuple[Tensor, ...], exact: Rows, scale: Rows) -> Fraction:
    # where the scale is 0 nothing may be off; any error there is larger than every tolerance
    return max(
        abs(value - truth) / size if size else Fraction(value != truth)
        for value, truth, size in zip(as_fraction(*found), flat(exact), flat(scale), strict=True)
    )


def error_of(found: ExactRows, case: Case, inputs: Inputs) -> Fraction:
    """Return the largest error of any output."""
    exact = rationals_of(case, inputs)
    return max(
        largest_error(getattr(found, name), getattr(exact, name), scale)
        for name, scale in scales_of(exact, inputs).items()
    )


def condition(case: Case, inputs: Inputs) -> Fraction:
    """Largest K^2 = (mean^2 + variance)/(variance + eps), rooted, and at least 1."""
    exact = rationals_of(case, inputs)
    squares = (
        (mean * mean + variance) / (variance + Fraction(case.eps))
        for mean, variance in zip(exact.mean, exact.variance, strict=True)
    )
    return max(Fraction(1), *(Fraction(float(square) ** 0.5) for square in squares))


# --- against rationals ---------------------------------------------------------------------------

# NaN and infinity are not rational; they have their own tests below
RATIONAL = [
    name
    for name in DISTRIBUTIONS
    if not name.endswith(("nan_row", "nan_after_row", "infinity_row", "nonfinite"))
]
# rows of one value; of sparse ones, short rows are all zero
CONSTANT = {"mixed_outliers", "onnxruntime_21935", "pytorch_108072", "pytorch_188372", "sparse"}
NO_LOW_PART = {"square_overflow", "sum_overflow", "near_max"}  # of dx, which is below 1e-290


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize(
    ("distribution", "eps"),
    [
        *((name, 1e-5) for name in RATIONAL if name not in NO_LOW_PART),
        *(
            (name, 0.0)
            for name in RATIONAL
            # dx of subnormal rows is beyond the largest float64
            if name not in {*NO_LOW_PART, *CONSTANT, "subnormal"} and "constant" not in name
        ),
    ],
)
def test_double_double_is_exact_to_106_bits_and_the_condition(
    distribution: str, eps: float, hidden: int
) -> None:
    case = case_of("float64", hidden, distribution=distribution, eps=eps)
    inputs = make_inputs(case)
    error = error_of(result_of(case), case, inputs)
    assert error <= DOUBLE_DOUBLE_ERROR * condition(case, inputs)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize(
    ("dtype", "eps"),
    [("float32", 0.0), ("float32", 1e-5), ("bfloat16", 1e-5), ("float16", 1e-5)],
)
@pytest.mark.parametrize("distribution", RATIONAL)
def test_twice_centred_is_far_more_exact_than_the_dtypes_it_serves(
    distribution: str, dtype: str, eps: float, hidden: int
) -> None:
    case = case_of(dtype, hidden, distribution=distribution, eps=eps)
    try:
        inputs = make_inputs(case)
    except UnrepresentableError:
        return  # tests/cases tests which
    x = inputs.x.double()
    if eps == 0 and bool((x == x[:, :1]).all(-1).any()):
        return  # the dtype rounded a whole row to one value
    assert error_of(result_of(case), case, inputs) <= TWICE_CENTRED_ERROR


def test_a_simpler_algorithm_is_not_exact_enough() -> None:
    case = case_of("float64", 33)
    inputs = make_inputs(case)
    in_float64 = result_of(replace(case, dtype="float32"), inputs)
    assert error_of(in_float64, case, inputs) > DOUBLE_DOUBLE_ERROR


@either_oracle
def test_mean_variance_and_rstd_are_those_of_the_row(dtype: str) -> None:
    case = case_of(dtype, 33, distribution="offset_1e2")
    exact, found = rationals_of(case, make_inputs(case)), result_of(case)
    for name in ("mean", "variance", "rstd"):
        expected = [float(part) for part in getattr(exact, name)]
        # float64 once rounded, or a few times: these only scale errors and bounds
        assert getattr(found, name).flatten().tolist() == pytest.approx(expected, rel=1e-13)


# --- closed forms --------------------------------------------------------------------------------


@either_oracle
def test_a_constant_row_without_eps_is_not_a_number(dtype: str) -> None:
    case = case_of(dtype, 33, distribution="constant", eps=0.0)
    assert bool(result_of(case).y[0].isnan().all())


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("scale", [1e300, 1e150, 1e-150, 1e-300])
def test_double_double_neither_overflows_nor_underflows(scale: float, eps: float) -> None:
    case = case_of("float64", 5, eps=eps)
    x = torch.tensor([[3.0, -1.0, 4.0, -1.5, 9.0]] * 3, dtype=torch.float64) * scale
    inputs = replace(make_inputs(case), x=x)
    exact, found = rationals_of(case, inputs), result_of(case, inputs)
    error = largest_error(found.y, exact.y, scales_of(exact, inputs)["y"])
    assert error <= DOUBLE_DOUBLE_ERROR * condition(case, inputs)
    # dx of the largest x is some 1e-300, where the low part is no longer a normal number
    expected = [float(value) for value in flat(exact.dx)]
    assert found.dx[0].flatten().tolist() == pytest.approx(expected, rel=1e-12)


@either_oracle
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_row_that_is_not_finite_has_no_finite_y_and_affects_no_other_row(
    dtype: str, bad: float
) -> None:
    case = case_of(dtype, 16)
    inputs = make_inputs(case)
    clean = result_of(case, inputs)
    inputs.x[1, 3] = bad
    found = result_of(case, inputs)
    assert not bool(found.y[0][1].isfinite().any())
    for name in ("y", "dx", "normalised"):
        after, before = getattr(found, name)[0], getattr(clean, name)[0]
        assert torch.equal(after[[0, 2]], before[[0, 2]])


@either_oracle
def test_a_missing_parameter_is_neutral(dtype: str) -> None:
    case = case_of(dtype, 9)
    block = result_of(case, replace(make_inputs(case), weight=None, bias=None))
    assert torch.equal(block.y[0], block.normalised[0])


# --- block by block, kept or computed again ------------------------------------------------------

HALF_A_BLOCK = (1 << 15) + 1  # elements, a little more: each row is a block


@either_oracle
def test_a_block_has_its_rows_and_their_share_of_the_sums(dtype: str) -> None:
    case = case_of(dtype, 0, shape=(2, 2, HALF_A_BLOCK))
    inputs = make_inputs(case)
    blocks = list(Reference(inputs, case))
    assert [(block.start, block.stop) for block in blocks] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    x, dy = (rows.reshape(4, 1, -1) for rows in (inputs.x, inputs.tensors[-1]))
    for row, block in enumerate(blocks):
        single = replace(case, shape=(1, HALF_A_BLOCK))
        alone = result_of(single, replace(inputs, x=x[row], dy=dy[row]))
        for name in ("y", "dx", "dweight", "dbias"):
            assert torch.equal(getattr(block, name)[0], getattr(alone, name)[0])
