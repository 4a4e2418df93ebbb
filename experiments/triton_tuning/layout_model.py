"""Which launch layouts should be fast? What the compiler says of each candidate, without a GPU.

    python experiments/triton_tuning/layout_model.py               prints the table
    python experiments/triton_tuning/layout_model.py --capability 80 --present    those in use alone

A memory-bound kernel is fast while enough bytes are on their way: by Little's law, bandwidth times
latency, about 23 KB per multiprocessor of an H100 (3.35 TB/s, 132 of them, 900 ns). The compiler
gives the registers and so the programs that a multiprocessor holds; each has a tile on its way
while it waits. What it computes meanwhile, barriers above all, makes more of them necessary.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

import click
from compiling import DIRECTIONS, SHARED_BYTES, Candidate, Compiled, compile_for, present

REGISTERS, THREADS, PROGRAMS = 64 << 10, 2048, 32  # of a multiprocessor
LATENCY_S = 0.9e-6  # of memory under load, on an H100; assumed for the others
# bytes per second and multiprocessors, from the data sheets: A100 80GB, H100 SXM, B200
MEMORY = {80: (2.04e12, 108), 90: (3.35e12, 132), 100: (8e12, 148)}
HIDDEN = (512, 1024, 2048, 4096, 8192, 16384)
DTYPES = ("bfloat16", "float32")
FEWER = (0.25, 0.5, 1, 2)  # warps, of those in the table of the package


def programs(candidate: Candidate, compiled: Compiled, capability: int) -> int:
    """Return how many programs a multiprocessor holds at once."""
    layout = candidate.layout
    threads = 32 * layout.warps
    by_registers = REGISTERS // (-(-compiled.registers // 8) * 8 * threads)
    # 1 KiB is reserved for each program; all together have 1 KiB more than one may have
    by_memory = (SHARED_BYTES[capability] + 1024) // (compiled.shared_bytes + 1024)
    held = min(PROGRAMS, THREADS // threads, by_registers, by_memory)
    return min(held, layout.programs or held)


def line(candidate: Candidate, compiled: Compiled, capability: int) -> str:
    """Return a line of the table."""
    layout, held = candidate.layout, programs(candidate, compiled, capability)
    tensors = 2 if candidate.direction == "backward" else 1
    tile = layout.rows * layout.columns * candidate.itemsize * tensors
    # with stages, the tiles that are prefetched; otherwise the one that is waited for
    in_flight = held * tile * max(layout.stages - 1, 1)
    bandwidth, multiprocessors = MEMORY[capability]
    needed = bandwidth / multiprocessors * LATENCY_S
    cells = (
        candidate.direction, candidate.dtype, candidate.hidden, layout.warps, layout.stages,
        layout.programs or "", compiled.registers, compiled.stack_bytes, compiled.shared_bytes,
        compiled.barriers, held, f"{in_flight / 1e3:.0f}", f"{in_flight / needed:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def candidates(only_present: bool) -> list[Candidate]:
    """Return the layouts of the package, and those around them."""
    found = []
    for direction, hidden, dtype in product(DIRECTIONS, HIDDEN, DTYPES):
        own = present(direction, dtype, hidden)
        if own is None:
            continue
        if only_present:
            around = [own]
        elif direction == "forward":
            warps = sorted({max(1, int(own.warps * share)) for share in FEWER})
            around = [replace(own, warps=number) for number in warps]
        else:
            around = [
                replace(own, warps=number, stages=stages, programs=more)
                for number, stages, more in product(
                    sorted({max(1, own.warps // 2), own.warps}),
                    (2, 3),
                    sorted({own.programs, own.programs * 2}),
                )
            ]
        tried = (Candidate(direction, dtype, hidden, layout) for layout in around)
        found += [one for one in tried if elements(one) * one.itemsize <= 256]
    return found


def elements(candidate: Candidate) -> int:
    """Return how many elements of a tile a thread holds."""
    return candidate.layout.rows * candidate.layout.columns // (32 * candidate.layout.warps)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--capability", type=click.Choice([*MEMORY]), default=90, show_default=True)
@click.option("--present", "only_present", is_flag=True, help="only the layouts in use")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def main(capability: int, only_present: bool, processes: int) -> None:
    heads = (
        "pass", "dtype", "N", "warps", "stages", "programs asked for", "registers",
        "bytes of stack", "bytes shared", "barriers", "programs per SM", "KB on their way",
        "of those needed",
    )  # fmt: skip
    click.echo(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    tried = candidates(only_present)
    with ProcessPoolExecutor(processes) as pool:
        made = pool.map(partial(compile_for, capability=capability), tried)
        for candidate, compiled in zip(tried, made, strict=True):
            click.echo(line(candidate, compiled, capability))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
