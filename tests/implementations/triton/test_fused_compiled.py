"""The fused kernels compiled for a Hopper GPU, which needs no GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from factories.compiled_kernels import (
    ALIGNED,
    LONG,
    MISALIGNED,
    SHARED_BYTES,
    SIZES,
    STATISTICS,
    Data,
    accesses,
    backward,
    compiled,
    forward,
    of_long_rows,
    stack_bytes,
)

from implementations.triton import layout as layouts

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="interpreted, nothing is compiled"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _an_empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


ONE_COLUMN = Data(SIZES, is_aligned=False)
OVERLAPPING = Data(("x_stride", "dy_stride"), is_aligned=False)  # as unfold makes rows
SPECIAL = {"misaligned": MISALIGNED, "one column": ONE_COLUMN, "overlapping rows": OVERLAPPING}
every_data = pytest.mark.parametrize("data", SPECIAL.values(), ids=SPECIAL)


@pytest.mark.parametrize("hidden", [64, 512, 1024, 4096])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_rows_are_read_and_written_16_bytes_at_once(hidden: int, itemsize: int) -> None:
    (ptx, *_), layout = forward(hidden, itemsize)
    assert {access.split(".")[-2] for access in accesses(ptx, r"ld\.global")} == {"v4"}
    threads = 32 * layout.warps
    writes = layout.rows * layout.columns * itemsize // (16 * threads)
    assert sum(".v4." in access for access in accesses(ptx, r"st\.global")) == max(writes, 1)


@pytest.mark.parametrize("itemsize", [2, 4])
def test_blocks_of_long_rows_are_read_and_written_16_bytes_at_once(itemsize: int) -> None:
    for name, tensors in (("sums_of_blocks", 1), ("gradient_sums_of_blocks", 3)):
        (ptx, *_), layout = of_long_rows(name, itemsize)
        reads = layout.columns * itemsize // (16 * 32 * layout.warps)
        assert sum(".v4." in access for access in accesses(ptx, r"ld\.global")) == tensors * reads
    for name, writes in (("normalise_blocks", itemsize), ("gradients_of_blocks", itemsize // 2)):
        (ptx, *_), _ = of_long_rows(name, itemsize)
        assert sum(".v4." in access for access in accesses(ptx, r"st\.global")) >= writes


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_kernels_of_long_rows_are_compiled_and_use_no_stack(
    name: str, itemsize: int, tmp_path: Path
) -> None:
    for statistic in STATISTICS:
        assert stack_bytes(of_long_rows(name, itemsize, statistic)[0], tmp_path) == 0


@pytest.mark.parametrize("hidden", [512, 1024, 4096, 8192])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_of_the_tables_fit_into_registers(hidden: int, itemsize: int, tmp_path: Path) -> None:
    assert stack_bytes(forward(hidden, itemsize)[0], tmp_path) <= 8  # of Triton 3.6
    # accepted: two of each 16 numbers on the stack, little beside the traffic of x and dy
    assert stack_bytes(backward(hidden, itemsize)[0], tmp_path) <= 128


def test_the_longest_row_of_half_precision_fits_into_the_registers_of_32_warps(
    tmp_path: Path,
) -> None:
    code, layout = forward(32768, 2)
    assert (layout.columns, layout.warps, stack_bytes(code, tmp_path)) == (32768, 32, 0)


@pytest.mark.parametrize(
    ("hidden", "itemsize", "parameters"),
    [(8192, 2, 2), (8192, 2, 4), (8192, 2, 8), (8192, 4, 4), (4096, 8, 8)],
)
def test_prefetched_tiles_fit_into_shared_memory(
    hidden: int, itemsize: int, parameters: int
) -> None:
    for code, layout in (
        backward(hidden, itemsize, parameters),
        of_long_rows("gradients_of_blocks", itemsize),
    ):
        assert layout.stages > 1
        assert code.shared_bytes <= SHARED_BYTES


def test_the_backward_prefetches_tiles() -> None:
    (ptx, *_), layout = backward(4096, 2)
    assert layout.stages > 1
    assert accesses(ptx, r"cp\.async\.c[ga]\.shared\.global")
    assert "cp.async.wait_group" in ptx


def test_the_second_and_third_centring_are_not_optimised_away() -> None:
    subtractions = {
        name: len(re.findall(r"sub(?:\.rn)?\.f32", forward(4096, 2, name)[0].ptx))
        for name in ("two_pass", "recentred")
    }
    elements = 4096 // (32 * layouts.forward(4096, 2).warps)
    assert subtractions["two_pass"] >= elements
    assert subtractions["recentred"] >= subtractions["two_pass"] + 2 * elements


@pytest.mark.parametrize("statistic", STATISTICS)
def test_division_and_root_are_approximate_only_for_welford(statistic: str) -> None:
    for ptx in (
        forward(4096, 2, statistic)[0].ptx,
        of_long_rows("sums_of_blocks", 2, statistic)[0].ptx,
        of_long_rows("moments_of_rows", 2, statistic)[0].ptx,
    ):
        approximate = re.findall(r"(?:div\.full|approx)", ptx)
        assert bool(approximate) == (statistic == "welford")


@every_data
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_data_that_triton_specialises_differently_are_compiled(itemsize: int, data: Data) -> None:
    for hidden in (1,) if data is ONE_COLUMN else (64, 1000):
        for statistic in ("welford", "recentred"):  # with and without a tree of each thread's own
            code, _ = forward(hidden, itemsize, statistic, data=data)
            assert not any(".v4." in access for access in accesses(code.ptx, r"ld\.global"))
        assert backward(hidden, itemsize, data=data)[0].ptx


@pytest.mark.parametrize("data", [MISALIGNED, OVERLAPPING], ids=["misaligned", "overlapping rows"])
@pytest.mark.parametrize("name", LONG)
def test_kernels_of_long_rows_are_compiled_for_such_data_too(name: str, data: Data) -> None:
    for statistic in ("welford", "recentred"):
        assert of_long_rows(name, 2, statistic, data)[0].ptx


@pytest.mark.parametrize("itemsize", [2, 4])
def test_no_instruction_flushes_subnormal_numbers_to_zero(itemsize: int) -> None:
    codes = [forward(512, itemsize, statistic)[0] for statistic in STATISTICS]
    codes += [backward(512, itemsize)[0], *(of_long_rows(length, itemsize)[0] for length in LONG)]
    assert not any(".ftz" in code.ptx for code in codes)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_kernel_that_adds_up_parts_is_compiled(itemsize: int) -> None:
    kernels = import_module("implementations.triton.backward_kernels")
    adding = layouts.adding(layouts.gradient_parts(10_000, 65536, 132))
    added = {"ROWS": adding.rows, "COLUMNS": adding.columns}
    for data in (ALIGNED, *SPECIAL.values()):
        assert compiled(kernels.add_parts, itemsize, adding.warps, data=data, **added).ptx


def test_float64_is_computed_in_float64() -> None:
    for hidden in (64, 8192):
        assert re.search(r"add(\.rn)?\.f64", forward(hidden, 8)[0].ptx)
    for code, _ in (backward(4096, 8), *(of_long_rows(length, 8) for length in LONG)):
        assert re.search(r"(add|fma)(\.rn)?\.f64", code.ptx)
