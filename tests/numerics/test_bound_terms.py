"""The bound of a row as one number: above the bound of every element, and not far above."""

import pytest
import torch

from harness.numerics.bound_terms import COMPILED_LANES, condition_limit, largest_error_ulp
from harness.numerics.bounds import ErrorBound, spacing
from harness.numerics.oracle import double_double
from implementations import ALL, Algorithm, Reduction

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
