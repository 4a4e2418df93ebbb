"""The fused kernels compiled for a Hopper GPU, which needs no GPU."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from implementations.triton import layout as layouts
from implementations.triton.layout import Layout

HOPPER = 90
ELEMENT, WIDE = {2: "bf16", 4: "fp32", 8: "fp64"}, {2: "float32", 4: "float32", 8: "float64"}
SIZES = ("hidden", "x_stride", "dy_stride")  # multiples of 16 elements, as pointers are of 16 bytes
SHARED_BYTES = 227 << 10  # of a program
IN_WIDE = ("parts_ptr", "moments_ptr", "sums_ptr", "mean_ptr", "means_ptr")

LONG = (
    "sums_of_blocks",
    "moments_of_rows",
    "normalise_blocks",
    "gradient_sums_of_blocks",
    "gradient_means_of_rows",
    "gradients_of_blocks",
)

STATISTICS = ("one_pass", "two_pass", "welford", "recentred")


class Compiled(NamedTuple):
    ptx: str
    machine: bytes
    shared_bytes: int


class Data(NamedTuple):
    """What Triton specialises a kernel for: sizes of 1 are constants, and addresses are aligned."""

    ones: tuple[str, ...] = ()
    is_aligned: bool = True


ALIGNED, MISALIGNED = Data(), Data(is_aligned=False)


def compiled(
    kernel: Any,
    itemsize: int,
    warps: int,
    parameters: int = 0,
    data: Data = ALIGNED,
    **constants: Any,
) -> Compiled:
    """Compile a kernel for tensors of elements of ``itemsize`` bytes."""
    from triton import compile as compile_for
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants["WIDE"] = getattr(tl, WIDE[itemsize])
    signature, constexprs, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants or name in data.ones:
            signature[name], constexprs[index,] = "constexpr", constants.get(name, 1)
            continue
        wide = name.endswith(IN_WIDE)
        kind = "fp64" if wide and itemsize == 8 else "fp32" if wide else ELEMENT[itemsize]
        if parameters and name in {"weight_ptr", "bias_ptr"}:
            kind = ELEMENT[parameters]
        signature[name] = f"*{kind}" if name.endswith("_ptr") else "i32"
        if name == "eps_bits":
            signature[name] = "i64"
        if data.is_aligned and (name.endswith("_ptr") or name in SIZES):
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    made = compile_for(source, target=GPUTarget("cuda", HOPPER, 32), options=options)
    return Compiled(made.asm["ptx"], made.asm["cubin"], made.metadata.shared)


def tile_of(layout: Layout, itemsize: int, data: Data, *, grouped: bool = False) -> dict[str, Any]:
    """Return the options that arguments.leaves returns for such data."""
    if layout.columns <= layouts.SHORT and not grouped:
        return {"COLUMNS": layout.columns, "LEAVES": layout.columns, "NEIGHBOURS": True}
    leaves = min(16 // itemsize if data.is_aligned else layouts.LEAVES_APART, layout.columns)
    return {"COLUMNS": layout.columns, "LEAVES": leaves, "NEIGHBOURS": data.is_aligned}


def staged(layout: Layout) -> dict[str, Any]:
    return {"ROWS": layout.rows, "STAGES": layout.stages}


@cache
def forward(
    hidden: int,
    itemsize: int,
    statistic: str = "recentred",
    parameters: int = 0,
    data: Data = ALIGNED,
) -> tuple[Compiled, Layout]:
    kernels = import_module("implementations.triton.forward_kernels")
    layout = layouts.forward(hidden, itemsize)
    assert layout is not None
    columns = tile_of(layout, itemsize, data, grouped=statistic == "welford")
    tile = {**columns, **staged(layout), "STATISTIC": statistic}
    kernel = kernels.forward_of_tiles
    return compiled(kernel, itemsize, layout.warps, parameters, data, **tile), layout


@cache
def backward(
    hidden: int, itemsize: int, parameters: int = 0, data: Data = ALIGNED
) -> tuple[Compiled, Layout]:
    kernels = import_module("implementations.triton.backward_kernels")
    layout = layouts.backward(hidden, itemsize)
    assert layout is not None
    tile = {**tile_of(layout, itemsize, data), **staged(layout), "RECENTRED": True}
    kernel = kernels.backward_of_tiles
    return compiled(kernel, itemsize, layout.warps, parameters, data, **tile), layout


@cache
def of_long_rows(
    name: str, itemsize: int, statistic: str = "recentred", data: Data = ALIGNED
) -> tuple[Compiled, Layout]:
    """Compile one of the kernels for rows that are too long for one program."""
    forwards, backwards = (
        import_module(f"implementations.triton.long_{each}_kernels")
        for each in ("forward", "backward")
    )
    kernel = getattr(forwards, name, None) or getattr(backwards, name)
    layout = {
        "sums_of_blocks": layouts.SUMMING,
        "gradient_sums_of_blocks": layouts.SUMMING,
        "moments_of_rows": layouts.JOINING,
        "gradient_means_of_rows": layouts.JOINING,
        "normalise_blocks": layouts.WRITING,
        "gradients_of_blocks": layouts.GRADIENTS,
    }[name]
    constants = {
        "STATISTIC": statistic,
        "RECENTRED": statistic == "recentred",
        "SECOND_OF_TWO": False,
        "LONG_BLOCK": layouts.LONG_BLOCK,
        **tile_of(layout, itemsize, data),
        **staged(layout),
    }
    if statistic != "two_pass":
        constants["mean_ptr"] = None
    known = {key: value for key, value in constants.items() if key in kernel.arg_names}
    return compiled(kernel, itemsize, layout.warps, data=data, **known), layout


def stack_bytes(code: Compiled, tmp_path: Path) -> int:
    """Return the stack of a thread, which holds what does not fit into its registers."""
    package = Path(import_module("triton").__file__ or "").parent
    reader = package / "backends" / "nvidia" / "bin" / "cuobjdump"
    (tmp_path / "kernel.cubin").write_bytes(code.machine)
    output = subprocess.check_output(
        [reader, "--dump-resource-usage", "kernel.cubin"], cwd=tmp_path, text=True
    )
    (found,) = re.findall(r"STACK:(\d+)", output)
    return int(found)


def accesses(ptx: str, what: str) -> list[str]:
    return [line.split()[0] for line in re.findall(rf"{what}\S* ", ptx)]


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


@pytest.mark.parametrize("data", SPECIAL.values(), ids=SPECIAL)
# with and without a tree of each thread's own
@pytest.mark.parametrize(("itemsize", "statistic"), [(2, "welford"), (4, "recentred")])
def test_data_that_triton_specialises_differently_are_compiled(
    itemsize: int, statistic: str, data: Data
) -> None:
    hidden = 1 if data is ONE_COLUMN else 1000
    code, _ = forward(hidden, itemsize, statistic, data=data)
    assert not any(".v4." in access for access in accesses(code.ptx, r"ld\.global"))
    assert backward(hidden, itemsize, data=data)[0].ptx


@pytest.mark.parametrize("data", [MISALIGNED, OVERLAPPING], ids=["misaligned", "overlapping rows"])
@pytest.mark.parametrize("name", LONG)
def test_kernels_of_long_rows_are_compiled_for_such_data_too(name: str, data: Data) -> None:
    assert of_long_rows(name, 2, "welford", data)[0].ptx


@pytest.mark.parametrize("itemsize", [2, 4])
def test_no_instruction_flushes_subnormal_numbers_to_zero(itemsize: int) -> None:
    codes = [forward(512, itemsize, statistic)[0] for statistic in STATISTICS]
    codes += [backward(512, itemsize)[0], *(of_long_rows(length, itemsize)[0] for length in LONG)]
    assert not any(".ftz" in code.ptx for code in codes)


@pytest.mark.parametrize("itemsize", [2, 8])
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
