"""The fused kernels compiled for Hopper and Blackwell GPUs, which needs no GPU."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from implementations.triton import layout as layouts

HOPPER, BLACKWELL = 90, 100
ELEMENT = {2: "bf16", 4: "fp32"}
SIZES = ("hidden", "x_stride", "dy_stride")  # multiples of 16 elements, as pointers are of 16 bytes
IN_WIDE = ("parts_ptr", "moments_ptr", "sums_ptr", "mean_ptr", "means_ptr")

LONG = {
    "sums_of_blocks": layouts.SUMMING,
    "moments_of_rows": layouts.JOINING,
    "normalise_blocks": layouts.WRITING,
    "gradient_sums_of_blocks": layouts.SUMMING,
    "gradient_means_of_rows": layouts.JOINING,
    "gradients_of_blocks": layouts.GRADIENTS,
}


class Compiled(NamedTuple):
    ptx: str
    machine: bytes


class Data(NamedTuple):
    """What Triton specialises a kernel for: sizes of 1 are constants, and addresses are aligned."""

    ones: tuple[str, ...] = ()
    is_aligned: bool = True


ALIGNED = Data()


def compiled(
    kernel: Any,
    itemsize: int,
    warps: int,
    data: Data = ALIGNED,
    registers: int | None = None,
    capability: int = HOPPER,
    **constants: Any,
) -> Compiled:
    """Compile a kernel for tensors of elements of ``itemsize`` bytes."""
    from triton import compile as compile_for
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants["WIDE"] = tl.float32
    signature, constexprs, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants or name in data.ones:
            signature[name], constexprs[index,] = "constexpr", constants.get(name, 1)
            continue
        kind = "fp32" if name.endswith(IN_WIDE) else ELEMENT[itemsize]
        signature[name] = f"*{kind}" if name.endswith("_ptr") else "i32"
        if name == "eps_bits":
            signature[name] = "i64"
        if data.is_aligned and (name.endswith("_ptr") or name in SIZES):
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": warps, "maxnreg": registers, "enable_fp_fusion": True}
    made = compile_for(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Compiled(made.asm["ptx"], made.asm["cubin"])


def tile_of(
    layout: layouts.Layout, itemsize: int, data: Data, *, grouped: bool = False
) -> dict[str, Any]:
    """Return the options that arguments.leaves returns for such data."""
    if layout.columns <= layouts.SHORT and not grouped:
        return {"COLUMNS": layout.columns, "LEAVES": layout.columns, "NEIGHBOURS": True}
    leaves = min(16 // itemsize if data.is_aligned else layouts.LEAVES_APART, layout.columns)
    return {"COLUMNS": layout.columns, "LEAVES": leaves, "NEIGHBOURS": data.is_aligned}


@cache
def of_tiles(
    direction: str,
    hidden: int,
    itemsize: int,
    statistic: str = "recentred",
    data: Data = ALIGNED,
    capability: int = HOPPER,
) -> tuple[Compiled, layouts.Layout]:
    """Compile the forward or backward of rows that a program holds."""
    kernels = import_module(f"implementations.triton.{direction}_kernels")
    layout = getattr(layouts, direction)(hidden, itemsize)
    constants = {
        **tile_of(layout, itemsize, data, grouped=statistic == "welford"),
        "ROWS": layout.rows,
        "STAGES": layout.stages,
        "registers": layout.registers,
        "capability": capability,
        **({"STATISTIC": statistic} if direction == "forward" else {"RECENTRED": True}),
    }
    kernel = getattr(kernels, f"{direction}_of_tiles")
    return compiled(kernel, itemsize, layout.warps, data, **constants), layout


forward, backward = partial(of_tiles, "forward"), partial(of_tiles, "backward")


@cache
def of_long_rows(name: str, statistic: str) -> tuple[Compiled, layouts.Layout]:
    """Compile one of the kernels for bfloat16 rows that are too long for one program."""
    direction = "backward" if "gradient" in name else "forward"
    kernel = getattr(import_module(f"implementations.triton.long_{direction}_kernels"), name)
    layout = LONG[name]
    constants = {
        "STATISTIC": statistic,
        "RECENTRED": statistic == "recentred",
        "SECOND_OF_TWO": False,
        "LONG_BLOCK": layouts.LONG_BLOCK,
        "ROWS": layout.rows,
        "STAGES": layout.stages,
        **tile_of(layout, 2, ALIGNED),
        "mean_ptr": None,
    }
    known = {key: value for key, value in constants.items() if key in kernel.arg_names}
    return compiled(kernel, 2, layout.warps, **known), layout


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


def vectors(code: Compiled, what: str) -> list[bool]:
    """Return for each access to memory whether it takes 16 bytes at once."""
    return [".v4." in access for access in re.findall(rf"{what}\S* ", code.ptx)]


@pytest.mark.parametrize("hidden", [64, 4096])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_rows_are_read_and_written_16_bytes_at_once(hidden: int, itemsize: int) -> None:
    code, layout = forward(hidden, itemsize)
    assert {*vectors(code, r"ld\.global")} == {True}
    writes = layout.rows * layout.columns * itemsize // (16 * 32 * layout.warps)
    assert sum(vectors(code, r"st\.global")) == max(writes, 1)


@pytest.mark.parametrize(
    ("code", "most"),
    [
        *((partial(of_long_rows, name, "welford"), 0) for name in LONG),
        *((partial(forward, 8192, size), 8) for size in (2, 4)),
        # accepted: two of each 16 numbers on the stack, little beside the traffic of x and dy
        *((partial(backward, 8192, size), 128) for size in (2, 4)),
        (partial(forward, 32768, 2), 0),  # the longest row, in 32 warps
        (partial(forward, 1024, 4, capability=BLACKWELL), 0),
        # without a limit, one program would fit of the two that are started
        (partial(backward, 4096, 4, capability=BLACKWELL), 16),
    ],
)
def test_a_thread_needs_no_more_than_its_registers(
    code: Callable[[], tuple[Compiled, layouts.Layout]], most: int, tmp_path: Path
) -> None:
    assert stack_bytes(code()[0], tmp_path) <= most


def test_the_second_and_third_centring_are_not_optimised_away() -> None:
    subtractions = {
        name: len(re.findall(r"sub(?:\.rn)?\.f32", forward(4096, 2, name)[0].ptx))
        for name in ("two_pass", "recentred")
    }
    elements = 4096 // (32 * layouts.forward(4096, 2).warps)
    assert subtractions["two_pass"] >= elements
    assert subtractions["recentred"] >= subtractions["two_pass"] + 2 * elements


@pytest.mark.parametrize("statistic", ["recentred", "welford"])
def test_only_welford_divides_approximately_and_nothing_flushes_subnormal_numbers(
    statistic: str,
) -> None:
    codes = [forward(4096, 2, statistic)[0], backward(512, 2)[0]]
    codes += [of_long_rows(name, statistic)[0] for name in LONG]
    assert not any(".ftz" in code.ptx for code in codes)
    for code in (codes[0], *codes[2:4]):  # the forward, and the sums and moments of long rows
        assert bool(re.search(r"div\.full|approx", code.ptx)) == (statistic == "welford")


@pytest.mark.parametrize(
    ("hidden", "data"),
    [(1000, Data(is_aligned=False)), (1, Data(SIZES, is_aligned=False))],
    ids=["misaligned", "one column"],
)
def test_data_that_triton_specialises_differently_are_compiled(hidden: int, data: Data) -> None:
    # with and without a tree of each thread's own
    for itemsize, statistic in ((2, "welford"), (4, "recentred")):
        code, _ = forward(hidden, itemsize, statistic, data=data)
        assert not any(vectors(code, r"ld\.global"))
    assert backward(hidden, 2, data=data)[0].ptx
    kernels = import_module("implementations.triton.backward_kernels")
    adding = layouts.adding(layouts.gradient_parts(10_000, 65536, 132))
    added = {"ROWS": adding.rows, "COLUMNS": adding.columns}
    assert compiled(kernels.add_parts, 2, adding.warps, data=data, **added).ptx
