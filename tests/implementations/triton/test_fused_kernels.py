"""The fused kernels are LayerNorms for all data, arguments and lengths of a row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from factories.fused_kernels import (
    DEVICE,
    INTERPRETED,
    LONG,
    LONG_ALIGNED,
    RUN_SOMEWHERE,
    UNIT,
    assert_right,
    every_dtype,
    every_name,
    gradients,
    tensors,
    trial,
)
from factories.small_catalogue import use_small_catalogue

from harness.records import Affine, Case, Direction, Status
from harness.report.verdict import headline
from harness.run.attempt import attempt
from harness.verify import verify
from harness.verify.checks import contract_checks
from harness.verify.checks.contract_checks import SMALL
from implementations import find
from implementations.triton import layout as layouts

pytestmark = RUN_SOMEWHERE

COMMON = ("normal", "last_digit", "nan_row")
DISTRIBUTIONS = (
    *COMMON,
    "offset_1e1",
    "offset_1e4",
    "constant",
    "tiny_variance",
    "outlier_first",
    "row_scales",
)


def test_the_recentred_kernel_passes_the_short_verification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if INTERPRETED:  # the rest takes minutes; test_fused_on_gpu.py has the whole catalogue
        use_small_catalogue(monkeypatch, largest=200)
        monkeypatch.setattr(contract_checks, "settings_of", lambda check: (SMALL,))
        # the interpreter runs in one thread, whatever torch is told
        monkeypatch.setattr("harness.verify.checks.surroundings._SHAPES", ((3, 96),))
    verdict = verify(
        "triton_recentred",
        quick=True,
        dtypes=["float32"],
        directions=[Direction.BACKWARD],
        device=DEVICE,
        fail_fast=True,
    )
    assert verdict.passed, headline(verdict)
    assert [
        finding for finding in verdict.declined if "beyond the largest" not in finding.reason
    ] == []


@every_dtype
@every_name
def test_each_is_within_its_bound_for_all_data(name: str, dtype: str) -> None:
    assert_right(
        *(
            trial(name, (5, 64), dtype, distribution=distribution)
            for distribution in (DISTRIBUTIONS if dtype == "float32" else COMMON)
        ),
        trial(name, (2, 1008), dtype),  # read by 16 bytes, the last of which are beyond the row
        trial(name, (3, 7), dtype, direction=Direction.FORWARD, param_dtype="float32"),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_recentred_kernel_is_within_its_bound_for_all_arguments(dtype: str) -> None:
    name = "triton_recentred"
    assert_right(
        *(trial(name, shape, dtype) for shape in [(1, 1), (67, 2), (3, 7), (33, 129)]),
        *(trial(name, (3, 31), dtype, affine=affine) for affine in Affine),
        *(trial(name, (3, 31), dtype, eps=eps) for eps in (0.0, 1e-12, 0.5)),
        *(
            trial(name, (3, 31), dtype, param_dtype=dtype_of_parameters)
            for dtype_of_parameters in ("float32", "float64")
        ),
        *(trial(name, (2, 3, 5, 7), dtype, normalized_dims=dims) for dims in (2, 3)),
        trial(name, (5, 33), dtype, direction=Direction.FORWARD),
    )


@pytest.mark.parametrize(
    "layout", ["storage_offset", "padded_rows", "every_second", "expanded", "negated"]
)
@every_name
def test_each_reads_rows_wherever_they_are(name: str, layout: str) -> None:
    assert_right(
        trial(name, (7, 33), "float32", layout=layout),
        trial(name, (2, 3, 5, 7), "bfloat16", layout="channels_last", normalized_dims=2),
    )


# the first length with another kernel or layout, read element by element and by 16 bytes
LENGTHS = [
    (UNIT + 6, "float32"),  # one row per program
    (8 * UNIT + 51, "float32"),  # dweight by a kernel of its own
    (9 * UNIT, "bfloat16"),
    (LONG, "float32"),  # y and all gradients in blocks
    (LONG_ALIGNED, "bfloat16"),
    (5 * UNIT + 3, "float64"),  # the gradients in blocks, y not
]


@pytest.mark.usefixtures("shrunk")
@pytest.mark.parametrize(("hidden", "dtype"), LENGTHS)
def test_rows_of_every_length_are_within_the_bound(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (2, hidden), dtype))


def test_a_row_longer_than_the_largest_tile_is_within_the_bound() -> None:
    assert_right(trial("triton_recentred", (2, 17000), "float32"))


@pytest.mark.usefixtures("shrunk")
@every_name
def test_each_is_within_its_bound_for_long_rows_with_gaps(name: str) -> None:
    axes = {"layout": "padded_rows", "affine": Affine.WEIGHT, "distribution": "offset_1e1"}
    assert_right(trial(name, (2, LONG_ALIGNED), "float32", **axes))


@pytest.mark.usefixtures("shrunk")
@every_name
def test_each_is_within_its_bound_for_rows_of_many_blocks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "JOINING", replace(layouts.JOINING, columns=2))
    monkeypatch.setattr(layouts, "GRADIENTS", replace(layouts.GRADIENTS, programs=64))
    assert layouts.gradient_parts(3, LONG, 4) == 3
    assert_right(
        trial(name, (3, LONG), "float32", distribution="outlier_first"),
        trial(name, (2, LONG), "float32", distribution="nan_row", direction=Direction.FORWARD),
    )


@pytest.mark.usefixtures("shrunk")
def test_an_infinite_dy_of_a_long_row_affects_only_its_column_of_dbias() -> None:
    x, weight, bias, dy = tensors((2, LONG), LONG)
    expected = dy.double().sum(0).float()
    dy[1, LONG - 30] = expected[LONG - 30] = float("inf")
    (dbias,) = gradients(find("triton_recentred"), (x, weight, bias), dy, (2,))
    torch.testing.assert_close(dbias, expected)


# 24 rows of 768: centring twice is not enough for some of them
@pytest.mark.parametrize("shape", [(24, 768), (2, LONG)])
def test_the_recentred_kernel_is_accurate_at_every_condition_number(
    shape: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    if shape[1] == LONG:
        request.getfixturevalue("shrunk")
    for distribution in ("offset_1e7", "last_digit"):
        found = trial("triton_recentred", shape, "float32", distribution=distribution)
        assert (found.status, found.reason) == (Status.OK, "")
        assert found.errors is not None
        assert found.errors.condition_max_ratio > 5e6


def test_centring_once_is_outside_the_bound_of_recentring() -> None:
    claim = replace(find("triton_two_pass"), algorithm=find("triton_recentred").algorithm)
    case = Case(implementation=claim.name, shape=(4, 300), device=DEVICE, distribution="offset_1e4")
    assert attempt(claim, case).status is Status.WRONG
