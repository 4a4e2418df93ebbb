"""Recentred and shifted are accurate at every condition number; other algorithms are not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.numerics.error_measurement import measure_errors
from harness.records import Case, Direction, Mode, OutputErrors, Status
from harness.run.attempt import Judged, attempt
from harness.run.call import function_of
from implementations import Algorithm, Implementation, recentred, shifted, two_pass
from implementations.contract import implementation

# normal rows with condition numbers from 10 to 1e7, and rows with one of 2e8
CONDITIONED = [*(f"offset_1e{exponent}" for exponent in range(1, 8)), "last_digit"]
FEW_ULP = 64  # a benign row is 4 to 12 ulp off; two passes are 2000 ulp off at 1e3
FOLDED_ULP = 1e6  # the error at 1e8 with a single centring

accurate = pytest.mark.parametrize("norm", [recentred, shifted], ids=lambda norm: norm.name)


def tried(norm: Implementation, distribution: str, **axes: object) -> Judged:
    """Try 64 rows of 1000 elements with weight and bias."""
    case = Case(implementation=norm.name, shape=(64, 1000), distribution=distribution)
    dtype = axes.get("dtype", case.dtype)
    return attempt(norm, replace(case, **{"param_dtype": dtype, **axes}), measure=measure_errors)  # type: ignore[arg-type]


def outputs(trial: Judged) -> Sequence[OutputErrors]:
    assert trial.errors is not None, trial.reason
    return trial.errors.outputs


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize(
    ("distribution", "dtype"),
    [
        *((distribution, "float32") for distribution in CONDITIONED),
        *((distribution, "float64") for distribution in CONDITIONED[-2:]),
    ],
)
@accurate
def test_no_digits_are_lost_at_condition_numbers_of_10_to_1e8(
    norm: Implementation, distribution: str, dtype: str, direction: Direction
) -> None:
    trial = tried(norm, distribution, dtype=dtype, direction=direction)
    assert trial.status is Status.OK, trial.reason
    assert all(output.scaled_max_ulp < FEW_ULP for output in outputs(trial))


def test_two_passes_lose_digits_at_high_condition_numbers() -> None:
    (y,) = outputs(tried(two_pass, "offset_1e5"))
    assert y.scaled_max_ulp > 100 * FEW_ULP
    (y,) = outputs(tried(two_pass, "last_digit"))
    assert y.scaled_max_ulp > FOLDED_ULP


@implementation(source="this test", algorithm=Algorithm.RECENTRED)
def centred_twice(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Subtract the mean of the deviations once."""
    deviation = x - x.mean(-1, keepdim=True)
    deviation = deviation - deviation.mean(-1, keepdim=True)
    y = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return y if weight is None or bias is None else y * weight + bias


def test_centring_twice_is_enough_at_1e7_and_not_at_1e8() -> None:
    assert tried(centred_twice, "offset_1e7").status is Status.OK
    assert tried(centred_twice, "last_digit").status is Status.INACCURATE


@pytest.mark.parametrize("hidden", [2, 33, 768, 4097, 20000])
@accurate
def test_rows_that_differ_in_their_last_digit_are_within_the_bound_at_every_length(
    norm: Implementation, hidden: int
) -> None:
    trial = tried(norm, "last_digit", shape=(64, hidden))
    assert trial.status is Status.OK, trial.reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@accurate
def test_half_precision_is_correctly_rounded(norm: Implementation, dtype: str) -> None:
    (y,) = outputs(tried(norm, "last_digit", dtype=dtype))
    assert y.scaled_max_ulp < 0.501  # float32 inside is off by a thousandth of an ulp of these


@pytest.mark.parametrize(
    ("distribution", "axes"),
    [
        *((name, {}) for name in ("outlier", "outlier_first", "outlier_last")),
        ("outlier_first", {"shape": (64, 10, 100), "normalized_dims": 2}),
    ],
)
def test_an_outlier_is_never_the_pivot(distribution: str, axes: dict[str, object]) -> None:
    (y,) = outputs(tried(shifted, distribution, **axes))
    assert y.scaled_max_ulp < FEW_ULP  # the first element as pivot costs over a thousand


# torch's own inductor uses what torch itself has deprecated
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
@accurate
def test_the_compiler_does_not_fold_a_centring_away(norm: Implementation) -> None:
    compiled = replace(norm, function=function_of(norm, Mode.COMPILED))
    axes = {"mode": Mode.COMPILED, "direction": Direction.BACKWARD}
    trial = tried(compiled, "last_digit", **axes)
    assert trial.status is Status.OK, trial.reason
    # no FEW_ULP: its sums run in the lanes of a vector, and have more roundings
    assert all(output.scaled_max_ulp < FOLDED_ULP / 100 for output in outputs(trial))
