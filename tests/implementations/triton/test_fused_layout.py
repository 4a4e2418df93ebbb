"""A layout for every length of a row, and the calls that the fused kernels refuse."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from factories.python_process import pytest_in
from torch import Tensor

from implementations import UnsupportedError, find
from implementations.triton import arguments, launch
from implementations.triton import layout as layouts

HIDDEN = [1, 2, 3, 7, 64, 65, 768, 1000, 1024, 1025, 4096, 8191, 8192, 14336, 16384, 16385, 10**6]
# of an H100 or H200; smaller devices have less, and there the table needs its own measurements
REGISTERS, SHARED_BYTES = 64 << 10, 227 << 10


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_a_tile_is_a_power_of_two_that_holds_a_row_and_fits_into_a_multiprocessor(
    hidden: int, itemsize: int
) -> None:
    forward, backward = layouts.forward(hidden, itemsize), layouts.backward(hidden, itemsize)
    assert hidden > layouts.LONG_BLOCK // 2 or None not in (forward, backward)
    # the tensors that a program holds and prefetches: x alone; weight and bias are read once more
    # instead. Then dy, x and two running sums
    for layout, held, fetched in ((forward, 1, 1), (backward, 4, 2)):
        if layout is None:
            continue
        assert layout.columns // 2 < hidden <= layout.columns
        elements = layout.rows * layout.columns
        assert elements & (elements - 1) == 0
        assert elements * held * max(itemsize // 4, 1) <= REGISTERS
        assert elements <= 32 * 32 * layout.warps
        assert layout.stages >= 1
        assert (layout.stages - 1) * elements * itemsize * fetched < SHARED_BYTES
        if layout.programs:
            threads = 32 * layout.warps * layout.programs
            assert 64 <= layout.registers <= REGISTERS // threads


@pytest.mark.parametrize("rows", [1, 5, 64, 1000, 10**6])
@pytest.mark.parametrize("multiprocessors", [4, 20, 132])
@pytest.mark.parametrize("hidden", [1, 64, 1000, 4096])
def test_dweight_has_at_least_the_declared_number_of_running_sums(
    hidden: int, multiprocessors: int, rows: int
) -> None:
    layout = layouts.backward(hidden, 2)
    assert layout.grid(rows, multiprocessors) * layout.rows >= min(rows, layouts.PARTS_LANES)


# --- refusals ------------------------------------------------------------------------------------


norm = find("triton_recentred")


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "imported", arguments.imported.__wrapped__)
    launch.forget_plans()


def test_without_triton_the_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install -e '\.\[triton\]'"):
        norm(torch.zeros(2, 8), (8,))
    # shapes are checked first
    with pytest.raises(ValueError, match="weight has shape"):
        norm(torch.zeros(2, 8), (8,), torch.ones(7))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 8), r"run on cuda, x is on cpu.*TRITON_INTERPRET=1"),
        (torch.zeros(2, 8, dtype=torch.int64), "int64; there are for float16, bfloat16"),
        (torch.zeros(1).expand(layouts.LONGEST + 1, 1), "count up to 2147418112"),
    ],
    ids=["device", "dtype", "rows"],
)
def test_an_x_that_the_compiled_kernels_do_not_take_is_refused(
    x: Tensor, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "imported", lambda name: (None, False))
    with pytest.raises(UnsupportedError, match=words):
        norm(x, x.shape[1:])


# --- the tests of the kernels, in a process of its own --------------------------------------------


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="this is the interpreted run")
def test_the_kernels_pass_their_tests_interpreted() -> None:
    tests = Path(__file__).with_name("test_fused_kernels.py")
    # in the root, its packages would hide the installed ones
    done = pytest_in(tests.parent, "-q", "-x", tests, code=0, TRITON_INTERPRET="1")
    assert " passed" in done.stdout
