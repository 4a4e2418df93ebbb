"""Relocated copies equal the original in all but their address, and can be overwritten."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.cases.inputs import LAYOUTS
from harness.measure.memory import copies_beyond, overwrite, relocate

KIB = 1024
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(7, 33), (1, 1), (2, 3, 5), (0, 5), (5, 0), (0,), (2, 0, 3)]


# --- another place -------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_relocated_tensor_differs_only_in_its_address(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...], far: bool
) -> None:
    tensor = LAYOUTS[layout](torch.randn(shape).to(dtype))
    moved = relocate(tensor, Random(0), far=far)
    assert torch.equal(moved, tensor)
    assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert not tensor.numel() or moved.data_ptr() != tensor.data_ptr()


@given(
    seed=st.integers(0, 10_000),
    offset=st.integers(0, 40),
    dtype=st.sampled_from(DTYPES),
    far=st.booleans(),
)
def test_a_relocated_tensor_keeps_its_offset_within_a_cache_line(
    seed: int, offset: int, dtype: torch.dtype, far: bool
) -> None:
    tensor = torch.zeros(100, dtype=dtype)[offset:]
    moved = relocate(tensor, Random(seed), far=far)
    assert moved.data_ptr() % 64 == offset * dtype.itemsize % 64


@pytest.mark.parametrize("far", [True, False])
def test_relocations_land_on_different_lines_of_a_page(far: bool) -> None:
    random, tensor = Random(3), torch.zeros(4, 4)
    places = {relocate(tensor, random, far=far).data_ptr() % 4096 for _ in range(50)}
    assert len(places) > 10


# --- other values in the same place --------------------------------------------------------------


def strided(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_overwriting_changes_the_values_and_keeps_the_address(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    first, other = (LAYOUTS[layout](torch.randn(shape).to(dtype)) for _ in range(2))
    placed = relocate(first, Random(0))
    before = strided(placed)
    overwrite(placed, other)
    assert torch.equal(placed, other)
    assert not first.numel() or not torch.equal(placed, first)
    assert strided(placed) == before


@pytest.mark.parametrize("layout", ["padded_rows", "every_second"])
def test_the_nan_between_the_elements_is_copied_and_kept(layout: str) -> None:
    placed = relocate(LAYOUTS[layout](torch.ones(4, 8)), Random(0))
    width = placed.stride(0)
    around = placed.as_strided((3, width), (width, 1))  # the last row's rest may be cut off
    assert around.isnan().sum() == 3 * (width - 8)
    overwrite(placed, LAYOUTS[layout](torch.zeros(4, 8)))
    assert around.isnan().sum() == 3 * (width - 8)


def test_overwriting_reaches_a_leaf_that_shares_the_memory() -> None:
    placed = relocate(torch.ones(3), Random(0))
    leaf = placed.detach().requires_grad_()
    overwrite(placed, torch.zeros(3))
    assert leaf.tolist() == [0, 0, 0]


# --- as many as a cache cannot hold --------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache_bytes", "touched_bytes", "free_bytes", "copies"),
    [
        (40 * KIB, 5 * KIB, None, 20),
        (40 * KIB, 6 * KIB, None, 17),  # rounded up: 16 of them are not beyond the cache
        (40 * KIB, 99 * KIB, None, 2),
        (40 * KIB, 0, None, 4096),
        (1 << 30, 1, None, 4096),
        (40 * KIB, 5 * KIB, 1 << 30, 20),
        (40 * KIB, 5 * KIB, 16 * 35 * KIB, 7),
        (40 * KIB, 5 * KIB, 0, 2),
    ],
)
def test_copies_are_two_and_a_half_times_the_cache_and_fit_into_memory(
    cache_bytes: int, touched_bytes: int, free_bytes: int | None, copies: int
) -> None:
    assert copies_beyond(cache_bytes, touched_bytes, free_bytes) == copies
