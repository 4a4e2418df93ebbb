"""The bounds of each algorithm, where they end, and the numbers of each dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from math import isfinite, log2
from typing import Any

import pytest
import torch
from factories.operands import ON_CPU
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.cases import DISTRIBUTIONS, DTYPES, Inputs, UnrepresentableError, make_inputs
from harness.numerics import (
    COMPILED_LANES,
    ColumnSums,
    ErrorBound,
    ExactRows,
    Outputs,
    Reference,
    compared,
    condition_limit,
    error_bound_of,
    grain,
    largest_error_ulp,
    measure_errors,
    spacing,
    unit_roundoff,
    verdict_of,
)
from harness.records import Case, Direction, Errors, Mode, Status
from implementations import ALL, Algorithm, Implementation, Reduction, find

SEQUENTIAL, BLOCKS, TREE = Reduction.SEQUENTIAL, Reduction.BLOCKS, Reduction.TREE
F32 = torch.float32


def error_bound(
    algorithm: Algorithm,
    reduction: Reduction = TREE,
    dtype: torch.dtype = F32,
    **more: Any,
) -> ErrorBound:
    return ErrorBound(
        algorithm=algorithm,
        reduction=reduction,
        backward_reduction=reduction,
        column_reduction=reduction,
        accumulate_dtype=dtype,
        **{"lanes": 1, **more},
    )


def exact_rows(x: Tensor, dy: Tensor | None = None, eps: float = 0.0) -> ExactRows:
    """The exact result for float64 rows, with a weight of 1 and a bias of 0."""
    case = Case(implementation="", shape=tuple(x.shape), dtype="float64", eps=eps)
    (rows,) = Reference(Inputs(x=x.double(), weight=None, bias=None, dy=dy), case)
    return rows


def bound_of_y(found: ErrorBound, x: Tensor, dtype: torch.dtype = F32) -> Tensor:
    ones = torch.ones(x.shape[1]).double()
    return found.y(exact_rows(x), ones, 0 * ones, 0.0, dtype)


COMB = (torch.arange(64).double() % 2 * 2 - 1)[None]
"""A row of deviations of 1 about 0."""


def bound_at(found: ErrorBound, condition: float) -> Tensor:
    """Bounds of y for a row of that condition number."""
    return bound_of_y(found, COMB + (condition**2 - 1) ** 0.5)


# --- from a declaration to a bound ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mode", "reductions", "lanes"),  # over a row, in its backward, and over all rows
    [
        ("native", Mode.EAGER, (TREE, BLOCKS, SEQUENTIAL), find("native").lanes),
        ("welford", Mode.EAGER, (SEQUENTIAL, SEQUENTIAL, find("welford").column_reduction), 1),
        ("two_pass", Mode.EAGER, (TREE, TREE, TREE), 1),
        ("two_pass", Mode.COMPILED, (BLOCKS, BLOCKS, SEQUENTIAL), COMPILED_LANES),
        ("welford", Mode.COMPILED, (SEQUENTIAL, SEQUENTIAL, SEQUENTIAL), 1),
    ],
)
def test_a_bound_is_of_what_is_declared_and_of_what_compiling_makes_of_it(
    name: str, mode: Mode, reductions: tuple[Reduction, ...], lanes: int
) -> None:
    implementation = find(name)
    found = error_bound_of(implementation, Case(implementation=name, shape=(2, 8), mode=mode))
    assert (found.algorithm, found.lanes) == (implementation.algorithm, lanes)
    assert (found.reduction, found.backward_reduction, found.column_reduction) == reductions
    assert found.centred_backward == (name != "native")


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_are_held_to_the_dtype_they_are_declared_in(dtype: str) -> None:
    case = Case(implementation="", shape=(2, 8), dtype=dtype)
    for name, narrowest in (("two_pass", torch.float32), ("two_pass_input_dtype", torch.float16)):
        found = error_bound_of(find(name), case).accumulate_dtype
        stored: torch.dtype = getattr(torch, dtype)
        assert found == (stored if stored.itemsize >= narrowest.itemsize else narrowest)


@pytest.mark.parametrize(
    ("reduction", "lanes", "length"),
    [(TREE, 1, 8 + 10), (SEQUENTIAL, 1, 1024 + 8), (BLOCKS, 4, 1024 / 4 + log2(4) + 8)],
)
def test_a_chain_is_as_long_as_its_reduction_makes_it(
    reduction: Reduction, lanes: int, length: float
) -> None:
    bound = error_bound(Algorithm.TWO_PASS, lanes=lanes)
    assert bound.chain(1024, reduction) == length
    assert all(isfinite(bound.chain(count, reduction)) for count in (0, 1, 2))


# --- where a bound ends --------------------------------------------------------------------------


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
        plain = error_bound(algorithm)
        beyond = replace(plain, at_any_condition=True)
        bound = bound_at(beyond, 10 * plain.condition_limit(64))
        assert bool(torch.isfinite(bound).all()) is is_bounded
        # far below the limit it changes no digit
        assert torch.allclose(bound_at(plain, 100.0), bound_at(beyond, 100.0), rtol=1e-4)


def test_recentred_is_bounded_at_any_condition() -> None:
    found = error_bound(Algorithm.RECENTRED)
    assert found.condition_limit(64) == float("inf")
    # a condition number of 1e12: fractions of the deviations still fit float64
    assert bool((bound_at(found, 1e12) < 1e-5).all())


def test_a_pivot_is_as_far_off_as_the_furthest_element() -> None:
    far = torch.eye(1, 64).double()
    near, distant = (
        bound_of_y(error_bound(Algorithm.SHIFTED), x, torch.float64) for x in (COMB, far)
    )
    assert float(distant.amin()) > 4 * float(near.amax())


def test_a_bound_is_never_below_half_an_ulp() -> None:
    bound = bound_at(error_bound(Algorithm.RECENTRED, dtype=torch.float64), 1.0)
    assert bool((bound >= 0.5 * spacing(F32, torch.ones(()).double())).all())


def test_a_constant_row_without_eps_has_no_guarantee() -> None:
    bound = bound_of_y(error_bound(Algorithm.TWO_PASS), torch.full((1, 4), 7.0))
    assert bool(torch.isinf(bound).all())


@pytest.mark.parametrize("mean", [2.9e19, 1e17])
def test_the_means_of_chunks_are_squared(mean: float) -> None:
    """torch combines 48 elements with empty chunks, whose mean is 0: NaN for means beyond 1e19."""
    x = mean + mean / 100 * torch.randn(1, 48, dtype=torch.float64)
    overflows = bool(error_bound(Algorithm.WELFORD).overflows(exact_rows(x, eps=1e-5)))
    assert overflows == bool(torch.nn.functional.layer_norm(x.float(), (48,)).isnan().any())


def test_a_row_whose_dy_is_zero_has_an_exact_dx() -> None:
    exact = exact_rows(torch.eye(4), torch.zeros(4, 4).double(), eps=1e-5)
    found = error_bound(Algorithm.WELFORD).dx(
        exact, torch.ones(4).double(), torch.zeros(4, 4), 1e-5, F32
    )
    assert bool((found < spacing(F32, torch.zeros(4).double())).all())


# --- sums over rows ------------------------------------------------------------------------------


def column_bounds(
    dy: Tensor, reduction: Reduction = SEQUENTIAL, blocks: int = 1
) -> dict[str, Tensor]:
    """Bounds of dweight and dbias for rows of 2 elements, collected in ``blocks``."""
    rows = len(dy)
    x = torch.eye(2).repeat(rows, 1)[:rows]
    found, sums = error_bound(Algorithm.TWO_PASS, reduction), ColumnSums.without_rows(2)
    for part, of_part in zip(x.chunk(blocks), dy.chunk(blocks), strict=True):
        sums += found.columns(exact_rows(part, of_part, eps=1e-5), of_part, 1e-5)
    whole = exact_rows(x, dy, eps=1e-5)
    return {
        "dweight": found.dweight(sums, rows, whole.dweight[0], F32),
        "dbias": found.dbias(sums, rows, dy.sum(0, keepdim=True), F32),
    }


def thirds(rows: int) -> Tensor:
    """A dy whose sums are rounded: 1/3 in 5 of the rows and 0 in the others."""
    dy = torch.zeros(rows, 2).double()
    dy[:: rows // 5 // 2 * 2 + 1] = 1 / 3  # odd and even rows
    return dy


ALL_THIRDS = torch.full((4000, 2), 1 / 3).double()


@pytest.mark.parametrize("blocks", [1, 3])
def test_rows_whose_dy_is_zero_do_not_count(blocks: int) -> None:
    found, expected = column_bounds(thirds(4000), blocks=blocks), column_bounds(thirds(5))
    for name in ("dweight", "dbias"):
        assert torch.allclose(found[name], expected[name], rtol=1e-12, atol=0)


def test_nan_and_subnormal_dy_count_and_negative_zero_does_not() -> None:
    dy = torch.tensor([[float("nan"), 5e-324], [-0.0, -0.0], [0.0, 1.0]], dtype=torch.float64)
    exact = exact_rows(torch.eye(3, 2), dy, eps=1e-5)
    found = error_bound(Algorithm.TWO_PASS).columns(exact, dy, 1e-5)
    assert found.addends.tolist() == [[1, 2]]


def test_few_addends_of_a_tree_meet_no_more_roundings_than_it_has_levels() -> None:
    dy = thirds(4000) + 1 / 3
    tree, running = (column_bounds(dy, reduction)["dbias"] for reduction in (TREE, SEQUENTIAL))
    assert bool((tree * 50 < running).all())


def test_integers_are_added_without_rounding_within_the_digits_of_the_dtype() -> None:
    ones = torch.ones(4000, 2).double()
    u = unit_roundoff(F32)
    assert bool((column_bounds(ones)["dbias"] <= 3 * u * 4000).all())
    assert bool((column_bounds(ALL_THIRDS)["dbias"] > 1000 * u * 4000 / 3).all())
    ones[0] = 2**24
    assert bool((column_bounds(ones)["dbias"] > 2**24 * 1000 * u).all())


def test_addends_of_both_signs_have_smaller_partial_sums() -> None:
    alternating = ALL_THIRDS.clone()
    alternating[::2] *= -1
    one, both = (column_bounds(dy)["dbias"] for dy in (ALL_THIRDS, alternating))
    assert bool((both < 0.51 * one).all())


# --- the bound of a row as one number ------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 10.0, 300.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_the_line_is_above_the_bound_of_every_element_and_near_the_largest(
    algorithm: Algorithm, dtype: str, offset: float
) -> None:
    torch.manual_seed(0)
    case = Case(implementation="", shape=(64, 256), direction=Direction.FORWARD)
    x = torch.randn(case.shape) + offset
    inputs = Inputs(x=x, weight=torch.randn(256), bias=torch.randn(256), dy=None)
    y = torch.zeros(case.shape, dtype=getattr(torch, dtype))
    reference = Reference(inputs, case)
    (part,) = compared(Outputs(y), inputs, case, error_bound(algorithm), reference, scaled=True)
    largest = (part.bound / spacing(y.dtype, part.scale)).max().item()
    condition = (1 + part.rows.mean**2 / part.rows.variance).sqrt().max().item()
    line, of_any = (
        largest_error_ulp(
            algorithm, "tree", 256, condition, statistics="float32", dtype=dtype, distance=distance
        )
        for distance in (part.rows.normalised[0].abs().max().item(), None)
    )
    # 4: twice for a power of two, twice where weight * normalised and bias cancel
    assert largest <= line <= min(of_any, 4 * largest)


def test_a_line_ends_at_the_condition_limit() -> None:
    limit = condition_limit("one_pass", 18.0, 2.0**-24)
    of_row = partial(largest_error_ulp, "one_pass", "tree", 1024)
    below, above = (
        of_row(limit * factor, statistics="float32", dtype="float32") for factor in (0.99, 1.01)
    )
    assert below < float("inf") == above


def test_no_implementation_has_fewer_lanes_than_a_line_of_blocks_assumes() -> None:
    lanes = [found.lanes for found in ALL if found.reduction is Reduction.BLOCKS]
    assert min(lanes) >= COMPILED_LANES


# --- the numbers of each dtype -------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_spacing_is_the_distance_to_the_next_number(name: str) -> None:
    dtype: torch.dtype = getattr(torch, name)
    limits = torch.finfo(dtype)
    smallest = limits.tiny * limits.eps
    special = [0.0, 1.0, 1.5, 2.0, limits.tiny, limits.tiny / 2, smallest, 3 * smallest]
    decades = torch.logspace(-4, 4, 500, dtype=torch.float64)
    at = torch.cat([torch.tensor(special).double(), decades]).to(dtype)
    after = torch.nextafter(at, torch.full_like(at, float("inf"))).double()
    for sign in (1, -1):
        assert torch.equal(spacing(dtype, sign * at.double()), after - at.double())
    assert unit_roundoff(dtype) == limits.eps / 2
    assert bool(
        spacing(dtype, torch.tensor([float("inf"), float("nan")]).double()).isfinite().all()
    )


@given(st.integers(-(2**52), 2**52), st.integers(-1074, 900))
def test_a_number_is_a_multiple_of_its_grain_and_not_of_twice_that(
    digits: int, exponent: int
) -> None:
    found = grain(torch.tensor([digits], dtype=torch.float64) * 2.0**exponent).item()
    assert found == (2.0**exponent * (digits & -digits) if digits else float("inf"))


# --- no right implementation is called wrong (experiments/calibration has longer rows) ------------

# torch's CPU kernel adds dweight and dbias in the input dtype and keeps mean and rstd in it
KNOWN_WRONG = {("native", "bfloat16"), ("native", "float16")}


def case_of(shape: tuple[int, ...], dtype: str = "float32", **axes: Any) -> Case:
    usual = {"implementation": "any", "param_dtype": dtype, "direction": Direction.BACKWARD}
    return Case(shape=shape, dtype=dtype, **usual | axes)


def verdict(
    implementation: Implementation,
    case: Case,
    inputs: Inputs | None = None,
    reference: Reference | None = None,
) -> tuple[Status, str, Errors]:
    inputs = inputs or make_inputs(case)
    is_backward = case.direction is Direction.BACKWARD
    leaves = [tensor.clone().requires_grad_(is_backward) for tensor in inputs.tensors[:3]]
    x, weight, bias = leaves
    y = implementation(x, case.normalized_shape, weight, bias, case.eps)
    gradients = torch.autograd.grad(y, leaves, inputs.dy) if is_backward else []
    outputs, bound = Outputs(y.detach(), *gradients), error_bound_of(implementation, case)
    errors = measure_errors(outputs, inputs, case, bound, reference or Reference(inputs, case))
    return *verdict_of(errors, case, bound), errors


def beyond(errors: Errors) -> dict[str, float]:
    """The outputs beyond their bound, and how far."""
    ratios = {found.output: found.bound_ratio for found in errors.outputs}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None and not ratio <= 1}


@pytest.mark.parametrize(
    ("shape", "dims", "layout", "grad_output"),
    [
        ((35, 4, 6, 43), 3, "any_view", "shifted_normal"),  # sums of 4, added one by one
        ((103, 10, 7), 1, "contiguous", "expanded_middle"),  # the same of sums over rows
        ((3, 0, 7), 1, "transposed", "shifted_normal"),
    ],
)
@pytest.mark.parametrize("name", ["two_pass", "one_pass", "recentred"])
def test_sums_over_axes_apart_in_memory_have_their_own_bound(
    name: str, shape: tuple[int, ...], dims: int, layout: str, grad_output: str
) -> None:
    axes = {"normalized_dims": dims, "layout": layout, "grad_output": grad_output}
    *_, errors = verdict(find(name), case_of(shape, distribution="constant", eps=1e-12, **axes))
    assert beyond(errors) == {}


def small_cases(distribution: str) -> Iterator[tuple[Case, Inputs]]:
    """Rows odd and even, on and off the multiples that kernels are written for."""
    shapes = [(5, 7), (5, 64)]
    if distribution in {"normal", "offset_1e2"}:
        shapes += [(5, 1), (5, 2), (5, 1000), (300, 64)]
    shapes_of = [*product(shapes, [Direction.BACKWARD]), ((5, 33), Direction.FORWARD)]
    for dtype, (shape, direction) in product(DTYPES, shapes_of):
        case = case_of(shape, dtype, distribution=distribution, direction=direction)
        with suppress(UnrepresentableError):
            yield case, make_inputs(case)


# by distribution, so that the exact result of a case is computed once for all implementations
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_no_implementation_is_called_wrong_that_is_not(distribution: str) -> None:
    for case, inputs in small_cases(distribution):
        reference = Reference(inputs, case)
        for implementation in ON_CPU:
            status, reason, errors = verdict(implementation, case, inputs, reference)
            is_known = (implementation.name, case.dtype) in KNOWN_WRONG
            excused = {"dx", "dweight", "dbias"} if is_known else set()
            assert {*beyond(errors)} <= excused, f"{implementation.name}, {case.id}: {reason}"
            assert (status is Status.WRONG) == bool(beyond(errors))


@pytest.mark.parametrize(("name", "dtype"), sorted(KNOWN_WRONG))
def test_a_known_mistake_is_wrong(name: str, dtype: str) -> None:
    status, _, errors = verdict(find(name), case_of((300, 64), dtype))
    assert status is Status.WRONG
    assert {*beyond(errors)} == {"dx", "dweight", "dbias"}


def test_uncentred_sums_of_the_backward_exceed_the_bound_of_centred_ones() -> None:
    native = find("native")
    case = case_of((4, 5120), distribution="offset_1e3", parameters="ones_weight")
    inputs = make_inputs(case)
    inputs = replace(inputs, dy=torch.full_like(inputs.x, -0.7))  # all addends have one sign
    _, _, errors = verdict(native, case, inputs)
    assert 0 < next(found.bound_ratio for found in errors.outputs if found.output == "dx") < 0.5
    _, _, centred = verdict(replace(native, centred_backward=True), case, inputs)
    assert "dx" in beyond(centred)  # 3 to 5 with AVX-512
