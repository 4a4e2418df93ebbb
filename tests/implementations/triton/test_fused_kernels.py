"""The fused kernels are LayerNorms, whatever the data, the arguments and the length of a row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused_kernels import (
    DEVICE,
    DTYPES,
    NAMES,
    RUN_SOMEWHERE,
    assert_right,
    every_dtype,
    every_name,
    gradients,
    tensors,
    trial,
)

from harness.records import Affine, Case, Direction, Status
from harness.verify import verify
from harness.verify.text import verdict_lines
from harness.verify.trial import try_case
from implementations import find
from implementations.triton import layout as layouts

pytestmark = RUN_SOMEWHERE

DISTRIBUTIONS = (
    "normal",
    "offset_1e1",
    "offset_1e4",
    "last_digit",
    "constant",
    "tiny_variance",
    "outlier_first",
    "row_scales",
    "nan_row",
)


def test_the_recentred_one_passes_the_short_verification() -> None:
    verdict = verify(
        "triton_recentred", quick=True, dtypes=["float32"], device=DEVICE, fail_fast=True
    )
    assert verdict.passed, verdict_lines(verdict)
    assert verdict.out_of_guarantee == 0
    assert [each for each in verdict.declined if "beyond the largest" not in each.reason] == []


@every_dtype
@every_name
def test_each_is_within_its_bound_whatever_the_data(name: str, dtype: str) -> None:
    assert_right(
        *(trial(name, (5, 64), dtype, distribution=each) for each in DISTRIBUTIONS),
        trial(name, (2, 1008), dtype),  # read by 16 bytes, the last of which are beyond the row
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((each, "float32") for each in NAMES), *(("triton_recentred", each) for each in DTYPES[1:])],
)
def test_each_is_within_its_bound_whatever_the_arguments(name: str, dtype: str) -> None:
    assert_right(
        *(trial(name, shape, dtype) for shape in [(1, 1), (67, 2), (3, 7), (33, 129)]),
        *(trial(name, (3, 31), dtype, affine=each) for each in Affine),
        *(trial(name, (3, 31), dtype, eps=each) for each in (0.0, 1e-12, 0.5)),
        *(trial(name, (3, 31), dtype, param_dtype=each) for each in ("float32", "float64")),
        *(trial(name, (2, 3, 5, 7), dtype, normalized_dims=each) for each in (2, 3)),
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


# the first length that has another kernel or another layout, on and off 16-byte reads
LENGTHS = [
    (1030, "float32"),  # one row a program
    (9000, "float32"),  # dweight by a kernel of its own
    (9008, "bfloat16"),
    (17000, "float32"),  # y and all gradients in blocks
    (33008, "bfloat16"),
    (5000, "float64"),  # the gradients in blocks, y not
]


@pytest.mark.parametrize(("hidden", "dtype"), LENGTHS)
def test_rows_of_every_length_are_within_the_bound(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (2, hidden), dtype))


@every_name
def test_so_are_long_rows_whatever_the_statistic(name: str) -> None:
    assert_right(
        *(
            trial(name, (2, 17000), "float32", distribution=each)
            for each in ("offset_1e1", "nan_row")
        ),
        trial(name, (2, 17008), "float32", layout="padded_rows", affine=Affine.WEIGHT),
    )


@every_name
def test_so_are_those_of_more_blocks_than_are_added_up_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "JOINING", replace(layouts.JOINING, columns=2))
    monkeypatch.setattr(layouts, "GRADIENTS", replace(layouts.GRADIENTS, programs=64))
    assert layouts.gradient_parts(3, 17000, 4) == 3
    assert_right(trial(name, (3, 17000), "float32", distribution="outlier_first"))


def test_an_infinite_dy_of_a_long_row_leaves_the_other_columns_of_dbias_alone() -> None:
    x, weight, bias, dy = tensors((2, 17000), 17000)
    expected = dy.double().sum(0).float()
    dy[1, 16500] = expected[16500] = float("inf")
    (dbias,) = gradients(find("triton_recentred"), (x, weight, bias), dy, (2,))
    torch.testing.assert_close(dbias, expected)


# 24 rows of 768: among so many are some that centring twice is not enough for
@pytest.mark.parametrize("shape", [(24, 768), (2, 17000)])
def test_the_condition_does_not_matter_to_the_recentred_one(shape: tuple[int, int]) -> None:
    for distribution in ("offset_1e7", "last_digit"):
        found = trial("triton_recentred", shape, "float32", distribution=distribution)
        assert (found.status, found.reason) == (Status.OK, "")
        assert found.errors is not None
        assert found.errors.condition_max_ratio > 5e6


def test_without_centring_again_the_bound_is_not_met() -> None:
    claim = replace(find("triton_two_pass"), algorithm=find("triton_recentred").algorithm)
    case = Case(implementation=claim.name, shape=(4, 300), device=DEVICE, distribution="offset_1e4")
    assert try_case(claim, case).status is Status.WRONG
