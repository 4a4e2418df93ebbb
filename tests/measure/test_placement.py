"""Places in memory: copies equal the original but for their address, and can be overwritten."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.inputs import LAYOUTS, make_inputs
from harness.measure.placement import copies_beyond, overwrite, relocate
from harness.records import Case, Direction

KIB = 1024
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EMPTY = [(0, 5), (5, 0), (0,), (2, 0, 3)]


# --- another place -------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (1, 1), (2, 3, 5)], ids=str)
def test_a_relocated_tensor_is_the_same_but_for_its_place(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...], far: bool
) -> None:
    tensor = LAYOUTS[layout](torch.randn(shape).to(dtype))
    moved = relocate(tensor, Random(0), far=far)
    assert torch.equal(moved, tensor)
    assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert moved.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("layout", ["padded_rows", "every_second"])
def test_what_lies_between_the_elements_moves_with_them(layout: str) -> None:
    tensor = LAYOUTS[layout](torch.ones(4, 8))
    moved = relocate(tensor, Random(0))
    width = tensor.stride(0)
    around = moved.as_strided((3, width), (width, 1))  # the last row's rest may be cut off
    assert around.isnan().sum() == 3 * (width - 8)


@given(
    seed=st.integers(0, 10_000),
    offset=st.integers(0, 40),
    dtype=st.sampled_from(DTYPES),
    far=st.booleans(),
)
def test_a_relocated_tensor_is_as_far_from_a_cache_line_as_before(
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


def test_the_original_is_left_alone() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    relocate(tensor, Random(0)).fill_(9)
    assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_tensor_can_be_relocated(layout: str, shape: tuple[int, ...]) -> None:
    tensor = LAYOUTS[layout](torch.empty(shape))
    moved = relocate(tensor, Random(0))
    assert (moved.shape, moved.stride()) == (tensor.shape, tensor.stride())


# --- other values in the same place --------------------------------------------------------------


def strided(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (1, 8), (2, 3, 5)], ids=str)
def test_overwriting_puts_other_values_where_the_first_ones_lie(
    layout: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    first, other = (LAYOUTS[layout](torch.randn(shape).to(dtype)) for _ in range(2))
    placed = relocate(first, Random(0))
    before = strided(placed)
    overwrite(placed, other)
    assert torch.equal(placed, other)
    assert not torch.equal(placed, first)
    assert strided(placed) == before


@pytest.mark.parametrize("layout", ["padded_rows", "every_second"])
def test_overwriting_leaves_nan_between_the_elements(layout: str) -> None:
    placed = relocate(LAYOUTS[layout](torch.ones(4, 8)), Random(0))
    overwrite(placed, LAYOUTS[layout](torch.zeros(4, 8)))
    width = placed.stride(0)
    assert placed.as_strided((3, width), (width, 1)).isnan().sum() == 3 * (width - 8)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_tensor_can_be_overwritten(layout: str, shape: tuple[int, ...]) -> None:
    first, other = (LAYOUTS[layout](torch.empty(shape)) for _ in range(2))
    placed = relocate(first, Random(0))
    overwrite(placed, other)
    assert placed.shape == shape


def test_overwriting_reaches_a_leaf_that_shares_the_place() -> None:
    placed = relocate(torch.ones(3), Random(0))
    leaf = placed.detach().requires_grad_()
    overwrite(placed, torch.zeros(3))
    assert leaf.tolist() == [0, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_another_seed_can_be_written_over_those_of_the_first(layout: str) -> None:
    one, other = (
        make_inputs(
            Case(
                implementation="",
                shape=(3, 4, 5),
                layout=layout,
                direction=Direction.BACKWARD,
                seed=seed,
            )
        ).tensors
        for seed in (0, 1)
    )
    placed = [relocate(each, Random(0)) for each in one]
    for old, new in zip(placed, other, strict=True):
        overwrite(old, new)
        assert torch.equal(old, new)


# --- as many as a cache cannot hold --------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache_bytes", "touched_bytes", "copies"),
    [
        (40 * KIB, 5 * KIB, 20),
        (40 * KIB, 6 * KIB, 17),  # rounded up: 16 of them are not beyond it
        (40 * KIB, 99 * KIB, 2),
        (40 * KIB, 0, 4096),
        (1 << 30, 1, 4096),
    ],
)
def test_copies_are_two_and_a_half_times_what_the_cache_holds(
    cache_bytes: int, touched_bytes: int, copies: int
) -> None:
    assert copies_beyond(cache_bytes, touched_bytes, None) == copies


@pytest.mark.parametrize(("free_bytes", "copies"), [(1 << 30, 20), (16 * 35 * KIB, 7), (0, 2)])
def test_copies_are_no_more_than_fit_in_memory_and_two_at_least(
    free_bytes: int, copies: int
) -> None:
    assert copies_beyond(40 * KIB, 5 * KIB, free_bytes) == copies


@given(st.integers(1, 1 << 30), st.integers(0, 1 << 30), st.none() | st.integers(0, 1 << 40))
def test_copies_are_always_two_to_4096(
    cache_bytes: int, touched_bytes: int, free_bytes: int | None
) -> None:
    assert 2 <= copies_beyond(cache_bytes, touched_bytes, free_bytes) <= 4096
