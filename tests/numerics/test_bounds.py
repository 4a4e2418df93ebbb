"""The bounds of each algorithm, where they end, and the numbers of each dtype."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, log2
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.numerics.bound_terms import COMPILED_LANES, condition_limit, largest_error_ulp
from harness.numerics.bounds import (
    ColumnSums,
    ErrorBound,
    error_bound_of,
    grain,
    spacing,
    unit_roundoff,
)
from harness.numerics.oracle import double_double
from harness.records import Case, Mode
from implementations import ALL, Algorithm, Reduction, find

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NATIVE, WELFORD, TWO_PASS = find("native"), find("welford"), find("two_pass")


# --- guarantees ----------------------------------------------------------------------------------


def error_bound(
    algorithm: Algorithm,
    reduction: Reduction = Reduction.TREE,
    dtype: torch.dtype = torch.float32,
    lanes: int = 1,
) -> ErrorBound:
    return ErrorBound(
        algorithm=algorithm,
        reduction=reduction,
        backward_reduction=reduction,
        column_reduction=reduction,
        lanes=lanes,
        accumulate_dtype=dtype,
    )


def test_a_guarantee_is_what_the_implementation_declares() -> None:
    found = error_bound_of(NATIVE, Case(implementation="native", shape=(2, 8)))
    assert found.algorithm is Algorithm.WELFORD
    assert found.reduction is Reduction.TREE
    assert found.backward_reduction is Reduction.BLOCKS
    assert found.column_reduction is Reduction.SEQUENTIAL
    assert found.lanes == NATIVE.lanes
    assert not found.centred_backward


def test_the_backward_sums_as_the_forward_unless_declared() -> None:
    found = error_bound_of(WELFORD, Case(implementation="welford", shape=(2, 8)))
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
    assert error_bound_of(find(name), case).accumulate_dtype == expected


def test_compiled_trees_become_running_sums() -> None:
    case = Case(implementation="two_pass", shape=(2, 8), mode=Mode.COMPILED)
    found = error_bound_of(TWO_PASS, case)
    assert found.reduction is found.backward_reduction is Reduction.BLOCKS
    assert found.column_reduction is Reduction.SEQUENTIAL
    assert found.lanes == 4


def test_a_running_sum_over_a_row_stays_one_when_compiled() -> None:
    case = Case(implementation="welford", shape=(2, 8), mode=Mode.COMPILED)
    found = error_bound_of(WELFORD, case)
    assert found.reduction is found.column_reduction is Reduction.SEQUENTIAL


def test_a_chain_is_as_long_as_its_reduction_makes_it() -> None:
    assert error_bound(Algorithm.TWO_PASS).chain(1024, Reduction.TREE) == 8 + 10
    assert error_bound(Algorithm.TWO_PASS).chain(1024, Reduction.SEQUENTIAL) == 1024 + 8
    blocks = error_bound(Algorithm.TWO_PASS, lanes=4).chain(1024, Reduction.BLOCKS)
    assert blocks == 1024 / 4 + log2(4) + 8


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_chain_of_nothing_is_a_number(reduction: Reduction, count: int) -> None:
    assert isfinite(error_bound(Algorithm.TWO_PASS).chain(count, reduction))


# --- where a bound ends --------------------------------------------------------------------------


def bound_at(found: ErrorBound, condition: float, hidden: int = 64) -> Tensor:
    """Bounds of y for a row of that condition number: deviations of 1 about a mean."""
    comb = torch.ones(1, hidden, dtype=torch.float64)
    comb[:, ::2] = -1
    ones, zeros = (torch.full((hidden,), value, dtype=torch.float64) for value in (1.0, 0.0))
    exact = double_double(comb + (condition**2 - 1) ** 0.5, ones, zeros, 0.0, None)
    return found.y(exact, ones, zeros, 0.0, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("algorithm", [Algorithm.ONE_PASS, Algorithm.TWO_PASS, Algorithm.WELFORD])
def test_a_bound_turns_infinite_at_the_condition_limit(
    algorithm: Algorithm, dtype: torch.dtype
) -> None:
    found = error_bound(algorithm, dtype=dtype)
    limit = found.condition_limit(64)
    assert limit > 1
    assert bool(torch.isfinite(bound_at(found, max(1.0, 0.99 * limit))).all())
    assert bool(torch.isinf(bound_at(found, 1.01 * limit)).all())


def test_beyond_the_limit_two_passes_are_bounded_and_welford_is_not() -> None:
    for algorithm, is_bounded in ((Algorithm.TWO_PASS, True), (Algorithm.WELFORD, False)):
        found = replace(error_bound(algorithm), at_any_condition=True)
        bound = bound_at(found, 10 * found.condition_limit(64))
        assert bool(torch.isfinite(bound).all()) is is_bounded


def test_far_below_the_limit_beyond_limit_changes_no_digit() -> None:
    plain = error_bound(Algorithm.TWO_PASS)
    beyond = replace(plain, at_any_condition=True)
    assert torch.allclose(bound_at(plain, 100.0), bound_at(beyond, 100.0), rtol=1e-4)


def test_recentred_is_bounded_at_any_condition() -> None:
    found = error_bound(Algorithm.RECENTRED)
    assert found.condition_limit(64) == float("inf")
    # a condition number of 1e12: fractions of the deviations still fit float64
    assert bool((bound_at(found, 1e12) < 1e-5).all())


@pytest.mark.parametrize("reduction", Reduction)
def test_shifted_has_a_bound_for_long_rows_under_every_reduction(reduction: Reduction) -> None:
    bound = bound_at(error_bound(Algorithm.SHIFTED, reduction, torch.float64, lanes=4), 2.0, 4096)
    assert bool(torch.isfinite(bound).all())


def test_a_bound_is_never_below_half_an_ulp() -> None:
    bound = bound_at(error_bound(Algorithm.RECENTRED, dtype=torch.float64), 1.0)
    assert bool((bound >= 0.5 * spacing(torch.float32, torch.ones(()).double())).all())


def test_a_constant_row_without_eps_has_no_guarantee() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    exact = double_double(torch.full((1, 4), 7.0).double(), ones, ones, 0.0, None)
    bound = error_bound(Algorithm.TWO_PASS).y(exact, ones, ones, 0.0, torch.float32)
    assert bool(torch.isinf(bound).all())


def test_a_forward_case_has_no_bound_of_dx() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    exact = double_double(torch.eye(4).double(), ones, ones, 1e-5, None)
    with pytest.raises(ValueError, match="no dx"):
        error_bound(Algorithm.TWO_PASS).dx(exact, ones, ones, 1e-5, torch.float32)


# --- sums over rows ------------------------------------------------------------------------------


def column_bounds(
    dy: Tensor, reduction: Reduction = Reduction.SEQUENTIAL, blocks: int = 1
) -> dict[str, Tensor]:
    """Bounds of dweight and dbias for rows of 2 elements, collected in ``blocks``."""
    rows = len(dy)
    x, one, zero = torch.eye(2).double().repeat(rows, 1)[:rows], torch.ones(2), torch.zeros(2)
    found, of_rows = error_bound(Algorithm.TWO_PASS, reduction), ColumnSums.without_rows(2)
    for part, dy_part in zip(x.chunk(blocks), dy.chunk(blocks), strict=True):
        exact = double_double(part, one.double(), zero.double(), 1e-5, dy_part)
        of_rows += found.columns(exact, dy_part, 1e-5)
    whole = double_double(x, one.double(), zero.double(), 1e-5, dy)
    assert whole.dweight is not None
    return {
        "dweight": found.dweight(of_rows, rows, whole.dweight[0], torch.float32),
        "dbias": found.dbias(of_rows, rows, dy.sum(0, keepdim=True), torch.float32),
    }


def thirds(rows: int) -> Tensor:
    """A dy whose sums are rounded: 1/3 in 5 of the rows and 0 in the others."""
    dy = torch.zeros(rows, 2).double()
    dy[:: rows // 5 // 2 * 2 + 1] = 1 / 3  # odd and even rows
    return dy


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", ["dweight", "dbias"])
def test_rows_whose_dy_is_zero_do_not_count(name: str, blocks: int) -> None:
    few, many = thirds(5), thirds(4000)
    found, expected = column_bounds(many, blocks=blocks)[name], column_bounds(few)[name]
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)


def test_nan_and_subnormal_dy_count_and_negative_zero_does_not() -> None:
    rows = [[float("nan"), 5e-324], [-0.0, -0.0], [0.0, 1.0]]
    dy = torch.tensor(rows, dtype=torch.float64)
    exact = double_double(torch.eye(3, 2).double(), *torch.eye(2).double(), 1e-5, dy)
    found = error_bound(Algorithm.TWO_PASS).columns(exact, dy, 1e-5)
    assert found.addends.tolist() == [[1, 2]]


def test_few_addends_of_a_tree_meet_no_more_roundings_than_it_has_levels() -> None:
    dy = thirds(4000) + 1 / 3
    tree, running = (
        column_bounds(dy, reduction) for reduction in (Reduction.TREE, Reduction.SEQUENTIAL)
    )
    assert bool((tree["dbias"] * 50 < running["dbias"]).all())


def test_integers_are_added_without_rounding() -> None:
    ones, thirds_ = torch.ones(4000, 2).double(), torch.full((4000, 2), 1 / 3).double()
    u = unit_roundoff(torch.float32)
    assert bool((column_bounds(ones)["dbias"] <= 3 * u * 4000).all())
    assert bool((column_bounds(thirds_)["dbias"] > 1000 * u * 4000 / 3).all())


def test_integers_beyond_the_digits_of_the_dtype_are_rounded() -> None:
    dy = torch.ones(4000, 2).double()
    dy[0] = 2**24
    assert bool((column_bounds(dy)["dbias"] > 2**24 * 1000 * 2.0**-24).all())


@pytest.mark.parametrize("mean", [2.9e19, 1e17])
def test_the_means_of_chunks_are_squared(mean: float) -> None:
    """torch combines 48 elements with empty chunks, whose mean is 0: NaN for means beyond 1e19."""
    x = mean + mean / 100 * torch.randn(1, 48, dtype=torch.float64)
    exact = double_double(x, *torch.ones(2, 48).double(), 1e-5, None)
    overflows = bool(error_bound(Algorithm.WELFORD).overflows(exact))
    assert overflows == bool(torch.nn.functional.layer_norm(x.float(), (48,)).isnan().any())


def test_addends_of_both_signs_have_smaller_partial_sums() -> None:
    dy = torch.full((4000, 2), 1 / 3).double()
    dy[::2] *= -1
    one, both = column_bounds(dy.abs())["dbias"], column_bounds(dy)["dbias"]
    assert bool((both < 0.51 * one).all())


def test_a_row_whose_dy_is_zero_has_an_exact_dx() -> None:
    ones, zeros = torch.ones(4).double(), torch.zeros(4).double()
    exact = double_double(torch.eye(4).double(), ones, zeros, 1e-5, torch.eye(4).double() * 0)
    bound = error_bound(Algorithm.WELFORD).dx(exact, ones, torch.zeros(4, 4), 1e-5, torch.float32)
    assert bool((bound < spacing(torch.float32, zeros)).all())


def test_a_pivot_is_as_far_off_as_the_furthest_element() -> None:
    comb = torch.ones(1, 64).double()
    comb[:, ::2] = -1
    far = torch.zeros(1, 64).double()
    far[:, 0] = 1
    ones, zeros = torch.ones(64).double(), torch.zeros(64).double()
    near, distant = (
        error_bound(Algorithm.SHIFTED).y(
            double_double(x, ones, zeros, 0.0, None), ones, zeros, 0.0, torch.float64
        )
        for x in (comb, far)
    )
    assert float(distant.amin()) > 4 * float(near.amax())


# === The bound of a row as one number: above the bound of every element, and not far above


HIDDEN = 256


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_the_line_is_above_the_bound_of_every_element_and_near_the_largest(
    algorithm: Algorithm, dtype: str
) -> None:
    claim = ErrorBound(
        algorithm=algorithm,
        reduction=Reduction.TREE,
        backward_reduction=Reduction.TREE,
        column_reduction=Reduction.TREE,
        lanes=1,
        accumulate_dtype=torch.float32,
    )
    torch.manual_seed(0)
    noise, weight, bias = torch.randn(64, HIDDEN), torch.randn(HIDDEN), torch.randn(HIDDEN)
    for offset in (0.0, 10.0, 300.0):
        x = (noise + offset).double()
        exact = double_double(x, weight.double(), bias.double(), 1e-5, None)
        bound = claim.y(exact, weight.double(), bias.double(), 1e-5, getattr(torch, dtype))
        rho = (exact.variance / (exact.variance + 1e-5)).sqrt()
        scale = torch.maximum(exact.y[0].abs(), torch.maximum(weight.abs() * rho, bias.abs()))
        largest = (bound / spacing(getattr(torch, dtype), scale)).max().item()
        condition = (1 + exact.mean**2 / exact.variance).sqrt().max().item()
        distance = exact.normalised[0].abs().max().item()
        line, of_any = (
            largest_error_ulp(
                algorithm, "tree", HIDDEN, condition,
                statistics="float32", dtype=dtype, distance=furthest,
            )
            for furthest in (distance, None)
        )  # fmt: skip
        assert largest <= line <= of_any
        # 4: twice for a power of two, twice where weight * normalised and bias cancel
        assert line <= 4 * largest


def test_a_line_ends_at_the_condition_limit() -> None:
    limit = condition_limit("one_pass", 18.0, 2.0**-24)
    below, above = (
        largest_error_ulp(
            "one_pass", "tree", 1024, condition_number, statistics="float32", dtype="float32"
        )
        for condition_number in (limit * 0.99, limit * 1.01)
    )
    assert below < float("inf") == above


def test_no_implementation_has_fewer_lanes_than_a_line_of_blocks_assumes() -> None:
    lanes = [
        implementation.lanes
        for implementation in ALL
        if implementation.reduction is Reduction.BLOCKS
    ]
    assert all(lane >= COMPILED_LANES for lane in lanes)


# === The numbers of each dtype: how far apart, and with how many digits


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


@given(st.integers(-(2**52), 2**52), st.integers(-1074, 900))
def test_a_number_is_a_multiple_of_its_grain_and_not_of_twice_that(
    digits: int, exponent: int
) -> None:
    value = torch.tensor([digits], dtype=torch.float64) * 2.0**exponent
    found = grain(value)
    if digits == 0:
        assert found.item() == float("inf")
    else:
        multiple = (value / found).item()
        assert multiple % 2 == 1
        assert found.item() == 2.0**exponent * (digits & -digits)


def test_the_grain_of_a_negated_view_is_that_of_its_numbers() -> None:
    assert grain(torch._neg_view(torch.tensor([0.75]).double())).tolist() == [0.25]
