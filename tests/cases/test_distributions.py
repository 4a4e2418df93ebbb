"""Distributions of x: each is what its description says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.cases import DISTRIBUTIONS, UnrepresentableError, describe, make_inputs
from harness.records import Case

ALL_DTYPES = ["float32", "float64", "bfloat16", "float16"]


def drawn(distribution: str, **changes: object) -> Tensor:
    """x in float64 of a case with that distribution."""
    shape = changes.pop("shape", (50, 1024))
    case = Case(
        implementation="native",
        shape=shape,
        dtype=changes.pop("dtype", "float64"),
        distribution=distribution,
    )
    return make_inputs(case).x.double()


def conditions(x: Tensor) -> Tensor:
    return (1 + x.mean(-1).square() / x.var(-1, correction=0)).sqrt()


POISONED = {"mixed_nonfinite", "nan_row", "positive_infinity_row", "negative_infinity_row"}
BEYOND_FLOAT16 = {
    "offset_1e5",
    "offset_1e6",
    "offset_1e7",
    "constant_1e30",
    "pytorch_81090",
    "pytorch_162489",
    "pytorch_188372",
}


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_is_finite_or_refused(distribution: str, dtype: str) -> None:
    for shape in ((4, 1000), (4, 1), (4, 2), (0, 5), (5, 0)):
        try:
            x = drawn(distribution, dtype=dtype, shape=shape)
        except UnrepresentableError:
            assert dtype == "float16"
            assert distribution in BEYOND_FLOAT16
        else:
            poisoned = distribution in POISONED and x.numel() > 0
            assert int((~torch.isfinite(x)).sum()) == poisoned


def test_reported_rows_hold_the_reported_numbers() -> None:
    assert drawn("onnxruntime_28463", shape=(1, 4)).tolist() == [[40000, 40001, 40002, 40003]]
    assert drawn("pytorch_108072", shape=(4, 2)).tolist() == [[2, 2], [14, 14], [2, 2], [14, 14]]
    mlx = drawn("mlx_2238", shape=(2, 16))
    assert abs(float(mlx.mean()) - 1449.568) < 0.001
    assert torch.equal(mlx[0], mlx[1])
    counted = drawn("pytorch_81090", shape=(100, 32))
    assert bool((counted.flatten().diff() == 1).all())
    assert float(counted.max()) == 6_399_999


def test_near_max_has_either_sign_and_nearly_reaches_the_end_of_the_range() -> None:
    x = drawn("near_max", dtype="float16")
    assert float(x.max()) > 0.98 * 65504
    assert float(x.min()) < -0.98 * 65504


def test_uniform_is_between_zero_and_one_with_a_condition_of_two() -> None:
    x = drawn("uniform")
    assert 0 <= float(x.min()) < 0.01
    assert 0.99 < float(x.max()) < 1
    # mean 1/2 over deviation 1/sqrt(12) is 1.73: with the root of 1 + 3, the condition is 2
    assert float((conditions(x) - 2).abs().max()) < 0.2


@pytest.mark.parametrize("exponent", range(1, 7))
def test_an_offset_has_the_condition_number_in_its_name(exponent: int) -> None:
    found = conditions(drawn(f"offset_1e{exponent}"))
    assert float((found / 10.0**exponent - 1).abs().max()) < 0.15
    assert f"1e{exponent}" in describe(DISTRIBUTIONS[f"offset_1e{exponent}"])


def test_tiny_variance_is_far_below_eps() -> None:
    assert float(drawn("tiny_variance").var(-1, correction=0).max()) < 1e-5 / 500


@pytest.mark.parametrize("distribution", ["outlier", "outlier_first"])
def test_one_outlier_makes_all_of_the_variance(distribution: str) -> None:
    x = drawn(distribution)
    column = 512 if distribution == "outlier" else 0
    assert bool((x[:, column] == 1e4).all())
    assert int((x.abs() > 100).sum()) == len(x)


def test_transformer_outlier_has_two_large_channels() -> None:
    x = drawn("transformer_outlier")
    assert bool((x[:, 7] == 60).all())
    assert bool((x[:, 515] == -35).all())
    assert int((x.abs() > 10).sum()) == 2 * len(x)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_ulp_comb_is_held_exactly_and_its_teeth_are_neighbours(dtype: str) -> None:
    x = drawn("ulp_comb", dtype=dtype, shape=(2, 9))
    c = 1 / torch.finfo(getattr(torch, dtype)).eps
    assert (x[0] - c).tolist() == [2, 3, 1, 3, 1, 3, 1, 3, 1]
    stored = x.to(getattr(torch, dtype))
    above = torch.nextafter(stored, torch.full_like(stored, float("inf")))
    assert bool((above.double() - x == 1).all())


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_last_digit_has_only_adjacent_numbers_and_no_constant_row(dtype: str) -> None:
    for shape in ((50, 3), (50, 1024)):
        x = drawn("last_digit", dtype=dtype, shape=shape)
        stored = x.amin(-1).to(getattr(torch, dtype))
        above = torch.nextafter(stored, torch.full_like(stored, float("inf"))).double()
        assert torch.equal(x.amax(-1), above)
        assert bool((above - stored.double() == 1).all())
