"""Which launch layouts should be fast? What the compiler says of each candidate, without a GPU.

    python experiments/triton_tuning/layout_model.py            three minutes; prints the table

A memory-bound kernel is fast while enough bytes are on their way: by Little's law, bandwidth times
latency, about 23 KB per multiprocessor of an H100 (3.35 TB/s, 132 of them, 900 ns). The compiler
gives the registers and so the programs that a multiprocessor holds; each has a tile on its way
while it waits. What it computes meanwhile, barriers above all, makes more of them necessary.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from implementations.triton import layout as layouts

CAPABILITY = 90
REGISTERS, THREADS, PROGRAMS = 64 << 10, 2048, 32  # of a multiprocessor
SHARED_BYTES = 227 << 10
NEEDED_BYTES = 3.35e12 / 132 * 0.9e-6
HIDDEN = (512, 1024, 2048, 4096, 8192, 16384)
DTYPES = {2: "bf16", 4: "fp32"}
FEWER = (0.25, 0.5, 1, 2)  # warps, of those in the table of the package


@dataclass(frozen=True, slots=True)
class Compiled:
    """A candidate, and what was compiled from it."""

    direction: str
    hidden: int
    itemsize: int
    layout: layouts.Layout
    registers: int
    stack_bytes: int
    shared_bytes: int
    barriers: int

    @property
    def programs(self) -> int:
        """Programs that a multiprocessor holds at once."""
        threads = 32 * self.layout.warps
        by_registers = REGISTERS // (-(-self.registers // 8) * 8 * threads)
        by_memory = SHARED_BYTES // (self.shared_bytes + 1024)
        held = min(PROGRAMS, THREADS // threads, by_registers, by_memory)
        return min(held, self.layout.programs or held)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of x, and of dy, that are on their way to a multiprocessor at most."""
        tensors = 2 if self.direction == "backward" else 1
        tile = self.layout.rows * self.layout.columns * self.itemsize * tensors
        # with stages, the tiles that are prefetched; otherwise the one that is waited for
        return self.programs * tile * max(self.layout.stages - 1, 1)

    @property
    def line(self) -> str:
        """A line of the table."""
        layout = self.layout
        cells = (
            self.direction, DTYPES[self.itemsize], self.hidden, layout.warps, layout.stages,
            layout.programs or "", self.registers, self.stack_bytes, self.barriers, self.programs,
            f"{self.bytes_in_flight / 1e3:.0f}", f"{self.bytes_in_flight / NEEDED_BYTES:.1f}",
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def candidates() -> list[tuple[str, int, int, layouts.Layout]]:
    """Return layouts around those of the package."""
    found = []
    for hidden, itemsize in product(HIDDEN, DTYPES):
        own = layouts.forward(hidden, itemsize)
        if own is not None:
            warps = {max(1, int(own.warps * share)) for share in FEWER}
            found += [
                ("forward", hidden, itemsize, replace(own, warps=number))
                for number in sorted(warps)
                if own.columns * own.rows <= 1024 * number * 4 // itemsize * 2
            ]
        own = layouts.backward(hidden, itemsize)
        if own is not None:
            warps = {max(1, own.warps // 2), own.warps}
            found += [
                (
                    "backward",
                    hidden,
                    itemsize,
                    replace(own, warps=number, stages=stages, programs=more),
                )
                for number, stages, more in product(
                    sorted(warps), (2, 3), sorted({own.programs, own.programs * 2})
                )
            ]
    return found


def compiled(candidate: tuple[str, int, int, layouts.Layout]) -> Compiled:
    """Compile the recentred kernel with a layout, for aligned rows."""
    from triton import compile as compile_for
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    direction, hidden, itemsize, layout = candidate
    kernel = getattr(
        import_module(f"implementations.triton.{direction}_kernels"), f"{direction}_of_tiles"
    )
    constants: dict[str, Any] = {
        "ROWS": layout.rows,
        "COLUMNS": layout.columns,
        "STAGES": layout.stages,
        "LEAVES": layout.columns if layout.columns <= layouts.SHORT else 16 // itemsize,
        "NEIGHBOURS": True,
        "WIDE": tl.float32,
        **({"STATISTIC": "recentred"} if direction == "forward" else {"RECENTRED": True}),
    }
    signature: dict[str, str] = {}
    constexprs: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], constexprs[index,] = "constexpr", constants[name]
            continue
        wide = name.endswith(("parts_ptr", "moments_ptr"))
        element = "fp32" if wide else DTYPES[itemsize]
        signature[name] = f"*{element}" if name.endswith("_ptr") else "i32"
        if name == "eps_bits":
            signature[name] = "i64"
        elif name.endswith(("_ptr", "hidden", "stride")):
            attributes[index,] = [["tt.divisibility", 16]]
    made = compile_for(
        ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes),
        target=GPUTarget("cuda", CAPABILITY, 32),
        options={"num_warps": layout.warps, "enable_fp_fusion": True},
    )
    package = Path(import_module("triton").__file__ or "").parent
    reader = package / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cubin").write_bytes(made.asm["cubin"])
        command = [reader, "--dump-resource-usage", "kernel.cubin"]
        usage = subprocess.check_output(command, cwd=folder, text=True)
    numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", usage)}
    barriers = len(re.findall(r"bar\.sync|barrier\.sync", made.asm["ptx"]))
    return Compiled(
        direction, hidden, itemsize, layout, numbers["REG"], numbers["STACK"],
        made.metadata.shared, barriers,
    )  # fmt: skip


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def main(processes: int) -> None:
    heads = (
        "pass", "dtype", "N", "warps", "stages", "programs asked for", "registers",
        "bytes of stack", "barriers", "programs per SM", "KB on their way", "of those needed",
    )  # fmt: skip
    click.echo(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    with ProcessPoolExecutor(processes) as pool:
        for found in pool.map(compiled, candidates()):
            click.echo(found.line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
