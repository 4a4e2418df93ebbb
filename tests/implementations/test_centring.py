"""Recentred and shifted: right at every condition, where others are not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.numerics.computed import function_of
from harness.records import Case, Direction, Mode, OutputErrors, Status
from harness.verify.trial import Trial, try_case
from implementations import Algorithm, Implementation, recentred, shifted, two_pass
from implementations.contract import implementation

# condition numbers of 10 to 1e7 for normal ones moved by so much, and of 2e8
CONDITIONED = [*(f"offset_1e{exponent}" for exponent in range(1, 8)), "last_digit"]
FEW_ULP = 64  # ours: a benign row costs four to twelve, and two passes two thousand at 1e3
FOLDED_ULP = 1e6  # what is lost at 1e8 by whom all centrings but one were taken away

accurate = pytest.mark.parametrize("norm", [recentred, shifted], ids=lambda each: each.name)


def tried(norm: Implementation, distribution: str, **axes: object) -> Trial:
    """What comes of 64 rows of 1000 with weight and bias."""
    case = Case(implementation=norm.name, shape=(64, 1000), distribution=distribution)
    dtype = axes.get("dtype", case.dtype)
    return try_case(norm, replace(case, **{"param_dtype": dtype, **axes}))  # type: ignore[arg-type]


def outputs(trial: Trial) -> Sequence[OutputErrors]:
    assert trial.errors is not None, trial.reason
    return trial.errors.outputs


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("distribution", CONDITIONED)
@accurate
def test_float32_loses_no_more_digits_at_a_condition_of_1e8_than_at_one_of_10(
    norm: Implementation, distribution: str, direction: Direction
) -> None:
    trial = tried(norm, distribution, direction=direction)
    assert trial.status is Status.OK, trial.reason
    assert all(each.scaled_max_ulp < FEW_ULP for each in outputs(trial))


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("distribution", ["offset_1e7", "last_digit"])
@accurate
def test_float64_does_not_either(
    norm: Implementation, distribution: str, direction: Direction
) -> None:
    trial = tried(norm, distribution, dtype="float64", direction=direction)
    assert trial.status is Status.OK, trial.reason
    assert all(each.scaled_max_ulp < FEW_ULP for each in outputs(trial))


def test_two_passes_lose_what_these_keep() -> None:
    (y,) = outputs(tried(two_pass, "offset_1e5"))
    assert y.scaled_max_ulp > 100 * FEW_ULP
    (y,) = outputs(tried(two_pass, "last_digit"))
    assert y.scaled_max_ulp > FOLDED_ULP


@implementation(source="ours", algorithm=Algorithm.RECENTRED)
def centred_twice(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Removes the mean of the deviations once."""
    deviation = x - x.mean(-1, keepdim=True)
    deviation = deviation - deviation.mean(-1, keepdim=True)
    y = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return y if weight is None or bias is None else y * weight + bias


def test_centring_twice_is_enough_at_1e7_and_not_at_1e8() -> None:
    assert tried(centred_twice, "offset_1e7").status is Status.OK
    assert tried(centred_twice, "last_digit").status is Status.WRONG


@pytest.mark.parametrize("hidden", [2, 33, 768, 4097, 20000])
@accurate
def test_rows_of_any_length_keep_the_bound_in_their_last_digit(
    norm: Implementation, hidden: int
) -> None:
    trial = tried(norm, "last_digit", shape=(64, hidden))
    assert trial.status is Status.OK, trial.reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@accurate
def test_half_precision_is_correctly_rounded(norm: Implementation, dtype: str) -> None:
    (y,) = outputs(tried(norm, "last_digit", dtype=dtype))
    assert y.scaled_max_ulp < 0.501  # float32 inside is off by a thousandth of an ulp of these


@pytest.mark.parametrize("distribution", ["outlier", "outlier_first", "outlier_last"])
def test_an_outlier_is_never_the_pivot_wherever_it_lies(distribution: str) -> None:
    (y,) = outputs(tried(shifted, distribution))
    assert y.scaled_max_ulp < FEW_ULP  # the first element as pivot costs over a thousand


def test_the_pivot_is_found_over_several_axes_too() -> None:
    trial = tried(shifted, "outlier_first", shape=(64, 10, 100), normalized_dims=2)
    assert outputs(trial)[0].scaled_max_ulp < FEW_ULP


@accurate
def test_an_empty_row_has_an_empty_result(norm: Implementation) -> None:
    assert norm(torch.ones(3, 0), (0,)).shape == (3, 0)
    assert norm(torch.ones(2, 0, 3), (0, 3)).shape == (2, 0, 3)


@accurate
def test_a_constant_row_becomes_the_bias(norm: Implementation) -> None:
    bias = torch.arange(1000.0)
    y = norm(torch.full((2, 1000), 0.1), (1000,), torch.ones(1000), bias)
    assert torch.equal(y, bias.expand(2, 1000))


# torch's own inductor uses what torch itself has deprecated
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
@accurate
def test_the_compiler_folds_no_centring_away(norm: Implementation) -> None:
    compiled = replace(norm, function=function_of(norm, Mode.COMPILED))
    axes = {"mode": Mode.COMPILED, "direction": Direction.BACKWARD}
    trial = tried(compiled, "last_digit", **axes)
    assert trial.status is Status.OK, trial.reason
    # no FEW_ULP: its sums run in the lanes of a vector, and have more roundings
    assert all(each.scaled_max_ulp < FOLDED_ULP / 100 for each in outputs(trial))
