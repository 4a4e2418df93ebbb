"""Find the fastest layout of the fused kernels on this GPU, and compare it with a copy.

For each row length, every layout that fits in a program is timed on at least 128 MiB of x, which is
more than a cache holds. Its result is compared with that of the layout in use. The last lines
printed are entries for the tables in ``implementations/triton/layout.py``. Not yet run on a GPU.

    cd experiments/triton_tuning
    python tune_triton.py --direction forward --dtype bfloat16 --columns 4096
    python tune_triton.py --as-is
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median
from time import perf_counter
from unittest.mock import patch

import click
import torch
from torch import Tensor

from implementations.triton import launch
from implementations.triton import layout as layouts
from implementations.triton.layout import Layout

COLUMNS = (4096, 8192, 1024, 2048, 16384)
LONG = (65536, 4194304)  # no program holds such a row: timed, but there is no layout to choose
DTYPES = ("bfloat16", "float16", "float32")
STATISTICS = ("one_pass", "two_pass", "welford", "recentred")
SHOWN = 4  # best layouts per row length
BYTES = 128 << 20  # size of x: more than twice the L2 of an H200, so that reads come from memory
REPEATS = 30  # trade-off: more repeats narrow the spread of the median, and take longer
BLOCKING_CYCLES = 40_000_000  # about 20 ms
WRONG = "wrong"
MOVED = {"forward": 2, "backward": 3}  # tensors of the size of x: x and y; x, dy and dx


@click.command()
@click.option("--direction", "directions", type=click.Choice(list(MOVED)), multiple=True)
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True)
@click.option("--columns", "lengths", type=click.Choice([*map(str, COLUMNS + LONG)]), multiple=True)
@click.option("--statistic", type=click.Choice(STATISTICS), default="recentred", show_default=True)
@click.option("--as-is", is_flag=True, help="time only the layouts in use")
@click.option("--limit-s", default=540.0, show_default=True, help="stop after so many seconds")
def main(
    directions: tuple[str, ...],
    dtypes: tuple[str, ...],
    lengths: tuple[str, ...],
    statistic: str,
    as_is: bool,
    limit_s: float,
) -> None:
    """Time every layout, and print the best of each length."""
    if not torch.cuda.is_available():
        click.echo("needs a CUDA device; there is nothing to tune on this machine", err=True)
        sys.exit(3)
    began = perf_counter()
    click.echo(f"{torch.cuda.get_device_name()}; {statistic}; {BYTES >> 20} MiB of x")
    best: list[str] = []
    for direction, dtype, hidden in product(
        directions or MOVED,
        dtypes or DTYPES[::2],
        map(int, lengths or (COLUMNS + LONG if as_is else COLUMNS)),
    ):
        if perf_counter() - began > limit_s:
            click.echo(f"not reached: {direction} {dtype} {hidden}")
            continue
        best += tuned(direction, dtype, hidden, statistic, as_is)
    click.echo("\n".join(["", *best]))


def tuned(direction: str, dtype: str, hidden: int, statistic: str, as_is: bool) -> list[str]:
    """Time the layouts for one length, print the best, and return the first as a table's line."""
    x = torch.randn(
        BYTES // hidden // getattr(torch, dtype).itemsize,
        hidden,
        device="cuda",
        dtype=getattr(torch, dtype),
    )
    call = calls(direction, x, statistic)
    y = torch.empty_like(x)
    copied = BYTES * 2 / seconds(lambda: y.copy_(x))
    table = {"forward": layouts.FORWARD, "backward": layouts.BACKWARD}[direction][x.element_size()]
    expected = call()
    own_s = seconds(call)
    moved = BYTES * MOVED[direction]
    click.echo(
        f"{direction} {dtype} {hidden}: copy {copied / 1e12:.2f} TB/s; "
        f"as it is {moved / own_s / copied:6.1%}"
    )
    if as_is or hidden in LONG:
        return []
    found: list[tuple[float, Layout]] = []
    refused: list[str] = []
    for layout in candidates(direction, hidden, x.element_size()):
        with patch.dict(table, {layout.columns: layout}):
            share = try_layout(call, expected, moved, copied)
        if isinstance(share, float):
            found.append((share, layout))
        else:
            refused.append(f"{layout}: {share}")
    found.sort(key=lambda pair: pair[0], reverse=True)
    for share, layout in found[:SHOWN]:
        click.echo(
            f"  {share:6.1%}  rows {layout.rows} warps {layout.warps:2} stages {layout.stages} "
            f"programs {layout.programs}"
        )
    click.echo(f"  {len(found)} tried, {len(refused)} could not be; {' '.join(refused[:1])}")
    wrong = [refusal for refusal in refused if refusal.endswith(WRONG)]
    if wrong:
        raise click.ClickException(f"other results than those of the table: {'; '.join(wrong)}")
    share, best = found[0]
    return [f"{direction} {x.element_size()} bytes: {best}  # {share:.1%} of a copy"]


def try_layout(
    call: Callable[[], tuple[Tensor, ...]],
    expected: tuple[Tensor, ...],
    moved: float,
    copied: float,
) -> float | str:
    """Return the share of the bandwidth of a copy, or why there is none."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    try:
        again = call()
    except (CompilationError, OutOfResources, RuntimeError) as error:
        return str(error).partition("\n")[0][:70]
    for one, other in zip(expected, again, strict=True):
        # another layout adds in another order: some roundings, of sums of some thousand numbers
        if not torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-1):
            return WRONG
    return moved / seconds(call) / copied


def calls(direction: str, x: Tensor, statistic: str) -> Callable[[], tuple[Tensor, ...]]:
    """Return the call that is timed."""
    hidden = x.shape[1]
    weight, bias = (torch.randn(hidden, device="cuda", dtype=x.dtype) for _ in range(2))
    if direction == "forward":
        return lambda: launch.forward(x, weight, bias, hidden, 1e-5, statistic, False)
    dy = torch.randn_like(x)
    _, moments = launch.forward(x, weight, bias, hidden, 1e-5, statistic, True)
    return lambda: launch.backward(dy, x, weight, moments, hidden, True, x.dtype, x.dtype)


def candidates(direction: str, hidden: int, itemsize: int) -> Iterator[Layout]:
    """Yield what a program can hold: 4 to 64 elements a thread."""
    paces = [(1, 0), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2)]
    for rows, warps, (stages, programs) in product((1, 2), (1, 2, 4, 8, 16, 32), paces):
        each = rows * hidden / (32 * warps)
        held = rows * hidden * itemsize * stages * (2 if direction == "backward" else 1)
        if direction == "backward" and not programs:
            continue
        if not 4 <= each <= (32 if direction == "backward" else 64) or held > 200 << 10:
            continue
        if warps * max(programs, 1) > 64:  # a multiprocessor holds no more
            continue
        yield Layout(rows=rows, columns=hidden, warps=warps, stages=stages, programs=programs)


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call on the device, without the host's share."""
    for _ in range(3):
        call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    torch.cuda.synchronize()
    torch.cuda._sleep(BLOCKING_CYCLES)  # until all is issued: no event waits for the host
    for before, after in pairs:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return median(before.elapsed_time(after) for before, after in pairs) * 1e-3


if __name__ == "__main__":
    main()
