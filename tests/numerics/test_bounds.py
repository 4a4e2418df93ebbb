"""The bounds of each algorithm, and where they end."""

from __future__ import annotations

from math import isfinite, log2
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.numerics.bounds import Guarantee, guarantee_of, spacing, unit_roundoff
from harness.numerics.oracle import double_double
from harness.records import Case, Mode
from implementations import Algorithm, Reduction, find

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NATIVE, WELFORD, TWO_PASS = find("native"), find("welford"), find("two_pass")


# --- spacing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 32, 64])
@given(data=st.data())
def test_spacing_is_numpys(width: Literal[16, 32, 64], data: st.DataObject) -> None:
    value = data.draw(st.floats(width=width, allow_nan=False, allow_infinity=False))
    dtype, numpys = getattr(torch, f"float{width}"), np.dtype(f"float{width}").type
    if abs(value) < np.finfo(numpys).max:  # numpy calls the last spacing infinite
        found = spacing(dtype, torch.tensor(value, dtype=torch.float64)).item()
        assert found == float(np.spacing(numpys(abs(value))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    smallest = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).double()
    at = torch.tensor([0.0, 1.0, 1.5, 2.0, 3.14, 100.0, limits.tiny, limits.tiny / 2]).to(dtype)
    at = torch.cat([at, smallest[None].to(dtype), 3 * smallest[None].to(dtype)])
    after = torch.nextafter(at, torch.full_like(at, float("inf")))
    assert torch.equal(spacing(dtype, at.double()), after.double() - at.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_roundoff_is_half_the_spacing_at_one(dtype: torch.dtype) -> None:
    assert unit_roundoff(dtype) == torch.finfo(dtype).eps / 2


# --- guarantees ----------------------------------------------------------------------------------


def guarantee(
    algorithm: Algorithm,
    reduction: Reduction = Reduction.TREE,
    dtype: torch.dtype = torch.float32,
    lanes: int = 1,
) -> Guarantee:
    return Guarantee(
        algorithm=algorithm,
        reduction=reduction,
        backward_reduction=reduction,
        column_reduction=reduction,
        lanes=lanes,
        accumulate_dtype=dtype,
    )


def test_a_guarantee_is_what_the_implementation_declares() -> None:
    found = guarantee_of(NATIVE, Case(implementation="native", shape=(2, 8)))
    assert found.algorithm is Algorithm.WELFORD
    assert found.reduction is Reduction.TREE
    assert found.backward_reduction is Reduction.BLOCKS
    assert found.column_reduction is Reduction.SEQUENTIAL
    assert found.lanes == NATIVE.lanes


def test_the_backward_sums_as_the_forward_unless_declared() -> None:
    found = guarantee_of(WELFORD, Case(implementation="welford", shape=(2, 8)))
    assert found.backward_reduction is Reduction.SEQUENTIAL


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("two_pass", "bfloat16", torch.float32),
        ("two_pass", "float16", torch.float32),
        ("two_pass", "float32", torch.float32),
        ("two_pass", "float64", torch.float64),
        ("two_pass_input_dtype", "bfloat16", torch.bfloat16),
        ("two_pass_input_dtype", "float16", torch.float16),
        ("two_pass_input_dtype", "float64", torch.float64),
    ],
)
def test_statistics_are_held_to_the_dtype_they_are_declared_in(
    name: str, dtype: str, expected: torch.dtype
) -> None:
    case = Case(implementation=name, shape=(2, 8), dtype=dtype)
    assert guarantee_of(find(name), case).accumulate_dtype == expected


def test_compiled_trees_become_running_sums() -> None:
    case = Case(implementation="two_pass", shape=(2, 8), mode=Mode.COMPILED)
    found = guarantee_of(TWO_PASS, case)
    assert found.reduction is found.backward_reduction is Reduction.BLOCKS
    assert found.column_reduction is Reduction.SEQUENTIAL
    assert found.lanes == 4


def test_a_running_sum_over_a_row_stays_one_when_compiled() -> None:
    case = Case(implementation="welford", shape=(2, 8), mode=Mode.COMPILED)
    found = guarantee_of(WELFORD, case)
    assert found.reduction is found.column_reduction is Reduction.SEQUENTIAL


def test_a_chain_is_as_long_as_its_reduction_makes_it() -> None:
    assert guarantee(Algorithm.TWO_PASS).chain(1024, Reduction.TREE) == 8 + 10
    assert guarantee(Algorithm.TWO_PASS).chain(1024, Reduction.SEQUENTIAL) == 1024 + 8
    blocks = guarantee(Algorithm.TWO_PASS, lanes=4).chain(1024, Reduction.BLOCKS)
    assert blocks == 1024 / 4 + log2(4) + 8


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_chain_of_nothing_is_a_number(reduction: Reduction, count: int) -> None:
    assert isfinite(guarantee(Algorithm.TWO_PASS).chain(count, reduction))


# --- where a bound ends --------------------------------------------------------------------------


def bound_at(found: Guarantee, condition: float, hidden: int = 64) -> Tensor:
    """Bounds of y for a row of that condition number: deviations of 1 about a mean."""
    comb = torch.ones(1, hidden, dtype=torch.float64)
    comb[:, ::2] = -1
    ones, zeros = (torch.full((hidden,), each, dtype=torch.float64) for each in (1.0, 0.0))
    exact = double_double(comb + (condition**2 - 1) ** 0.5, ones, zeros, 0.0, None)
    return found.y(exact, ones, zeros, 0.0, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("algorithm", [Algorithm.ONE_PASS, Algorithm.TWO_PASS, Algorithm.WELFORD])
def test_a_bound_turns_infinite_at_the_condition_limit(
    algorithm: Algorithm, dtype: torch.dtype
) -> None:
    found = guarantee(algorithm, dtype=dtype)
    limit = found.condition_limit(64)
    assert limit > 1
    assert bool(torch.isfinite(bound_at(found, max(1.0, 0.99 * limit))).all())
    assert bool(torch.isinf(bound_at(found, 1.01 * limit)).all())


def test_recentred_is_bounded_at_any_condition() -> None:
    found = guarantee(Algorithm.RECENTRED)
    assert found.condition_limit(64) == float("inf")
    # a condition number of 1e12: fractions of the deviations still fit float64
    assert bool((bound_at(found, 1e12) < 1e-5).all())


@pytest.mark.parametrize("reduction", Reduction)
def test_shifted_has_a_bound_for_long_rows_under_every_reduction(reduction: Reduction) -> None:
    bound = bound_at(guarantee(Algorithm.SHIFTED, reduction, torch.float64, lanes=4), 2.0, 4096)
    assert bool(torch.isfinite(bound).all())


def test_a_bound_is_never_below_half_an_ulp() -> None:
    bound = bound_at(guarantee(Algorithm.RECENTRED, dtype=torch.float64), 1.0)
    assert bool((bound >= 0.5 * spacing(torch.float32, torch.ones(()).double())).all())


def test_a_constant_row_without_eps_has_no_guarantee() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    exact = double_double(torch.full((1, 4), 7.0).double(), ones, ones, 0.0, None)
    bound = guarantee(Algorithm.TWO_PASS).y(exact, ones, ones, 0.0, torch.float32)
    assert bool(torch.isinf(bound).all())


def test_a_forward_case_has_no_bound_of_dx() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    exact = double_double(torch.eye(4).double(), ones, ones, 1e-5, None)
    with pytest.raises(ValueError, match="no dx"):
        guarantee(Algorithm.TWO_PASS).dx(exact, ones, ones, 1e-5, torch.float32)
