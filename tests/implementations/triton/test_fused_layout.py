"""A layout for every length of a row, and the calls that the fused kernels refuse."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from implementations import UnsupportedError, find
from implementations.triton import arguments
from implementations.triton import layout as layouts
from implementations.triton.layout import Layout

HIDDEN = [1, 2, 3, 7, 64, 65, 768, 1000, 1024, 1025, 4096, 8191, 8192, 14336, 16384, 16385, 10**6]
SIZES = [2, 4, 8]
MULTIPROCESSORS = [4, 20, 132]
# of an H100 or H200; smaller devices have less, and there the table needs its own measurements
REGISTERS, SHARED_BYTES = 64 << 10, 227 << 10

every_length = pytest.mark.parametrize("hidden", HIDDEN)
every_size = pytest.mark.parametrize("itemsize", SIZES)


@every_length
@every_size
def test_a_tile_is_the_smallest_power_of_two_that_holds_a_row(hidden: int, itemsize: int) -> None:
    for layout in (layouts.forward(hidden, itemsize), layouts.backward(hidden, itemsize)):
        if layout is None:
            assert hidden > layouts.LONG_BLOCK // 2
            continue
        assert layout.columns // 2 < hidden <= layout.columns
        for power in (layout.columns, layout.rows):
            assert power & (power - 1) == 0


@every_length
@every_size
def test_a_program_fits_into_the_registers_of_a_multiprocessor(hidden: int, itemsize: int) -> None:
    for layout, held in (
        (layouts.forward(hidden, itemsize), 1),  # x; weight and bias are read once more instead
        (layouts.backward(hidden, itemsize), 4),  # dy, x and two running sums
    ):
        words = max(itemsize // 4, 1)
        if layout is None:
            continue
        assert layout.rows * layout.columns * held * words <= REGISTERS
        assert layout.rows * layout.columns <= 32 * 32 * layout.warps


@every_length
@every_size
def test_prefetched_tiles_fit_into_shared_memory(hidden: int, itemsize: int) -> None:
    for layout, tensors in (
        (layouts.forward(hidden, itemsize), 1),
        (layouts.backward(hidden, itemsize), 2),
        (layouts.GRADIENTS, 2),
    ):
        if layout is None:
            continue
        assert layout.stages >= 1
        held = (layout.stages - 1) * layout.rows * layout.columns * itemsize * tensors
        assert held < SHARED_BYTES


@pytest.mark.parametrize("rows", [1, 5, 64, 1000, 10**6])
@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@every_length
def test_dweight_has_at_least_the_declared_number_of_running_sums(
    hidden: int, multiprocessors: int, rows: int
) -> None:
    lanes = min(rows, layouts.PARTS_LANES)
    held = layouts.backward(hidden, 2)
    assert held is None or held.grid(rows, multiprocessors) * held.rows >= lanes


def test_only_programs_that_take_several_tiles_are_limited_in_number() -> None:
    one_per_row = layouts.forward(4096, 2)
    assert one_per_row is not None
    assert [one_per_row.grid(rows, 132) for rows in (1, 64, 10**6)] == [1, 64, 10**6]
    layout = Layout(rows=2, columns=1024, warps=4, programs=4)
    assert [layout.grid(rows, 132) for rows in (1, 64, 10**6)] == [1, 32, 528]
    assert [layout.grid(rows, 4) for rows in (1, 64, 10**6)] == [1, 32, 32]  # not 16


@pytest.mark.parametrize(
    ("rows", "hidden", "parts"), [(1, 10**6, 1), (16, 1 << 22, 1), (2048, 65536, 16), (8, 20000, 8)]
)
def test_dweight_has_fewer_parts_if_the_columns_alone_keep_all_programs_busy(
    rows: int, hidden: int, parts: int
) -> None:
    assert layouts.gradient_parts(rows, hidden, 132) == parts


norm = find("triton_recentred")


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "imported", arguments.imported.__wrapped__)


def test_without_triton_the_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install -e '\.\[triton\]'"):
        norm(torch.zeros(2, 8), (8,))


def test_a_triton_that_cannot_compile_the_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.2.0"))
    with pytest.raises(UnsupportedError, match=r"needs triton 3\.3 or newer.*found 3\.2\.0"):
        norm(torch.zeros(2, 8), (8,))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 8), r"run on cuda, x is on cpu.*TRITON_INTERPRET=1"),
        (torch.zeros(2, 8, dtype=torch.int64), "int64; there are for float16, bfloat16"),
        (torch.zeros(1).expand(1, layouts.LONGEST + 1), "count up to 2147418112"),
        (torch.zeros(1).expand(layouts.LONGEST + 1, 1), "count up to 2147418112"),
    ],
    ids=["device", "dtype", "hidden", "rows"],
)
def test_an_x_that_the_compiled_kernels_do_not_take_is_refused(
    x: Tensor, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "imported", lambda name: (None, False))
    with pytest.raises(UnsupportedError, match=words):
        norm(x, x.shape[1:])


def test_shapes_are_checked_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="weight has shape"):
        norm(torch.zeros(2, 8), (8,), torch.ones(7))
    with pytest.raises(ValueError, match="normalized_shape is"):
        norm(torch.zeros(2, 8), (7,))
