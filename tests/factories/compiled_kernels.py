"""The fused kernels compiled for a Hopper GPU, and what their machine code uses."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

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


def backward(
    hidden: int, itemsize: int, parameters: int = 0, data: Data = ALIGNED
) -> tuple[Compiled, Layout]:
    kernels = import_module("implementations.triton.backward_kernels")
    layout = layouts.backward(hidden, itemsize)
    assert layout is not None
    tile = {**tile_of(layout, itemsize, data), **staged(layout), "RECENTRED": True}
    kernel = kernels.backward_of_tiles
    return compiled(kernel, itemsize, layout.warps, parameters, data, **tile), layout


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
