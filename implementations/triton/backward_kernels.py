"""Kernels of the backward for rows that a program can hold, and of the sum of parts of dweight.

With g = dy * weight and n = (x - mean) * rstd, the normalised x,

    dx = rstd * (g - mean(g) - n * mean(g * n)),   dweight = sum over rows of dy * n,
    dbias = sum over rows of dy

(Ba, Kiros and Hinton, arXiv 1607.06450, differentiated). In the first stage, each program sums its
rows and writes one row of WIDE numbers, a part. In the second stage, the parts are added in a fixed
order. There are no atomics: the same call gives the same bits on the same device.

Conventions as in :mod:`implementations.triton.forward_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.triton.statistics import (
    columns_of_tile,
    divide,
    normalise,
    read_again,
    sums_of_rows,
)

__all__ = [
    "add_parts",
    "backward_of_tiles",
]


@triton.jit(do_not_specialize=["rows"])
def backward_of_tiles(
    dy_ptr: tl.tensor,
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    moments_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    dweight_parts_ptr: tl.tensor,
    dbias_parts_ptr: tl.tensor,
    rows: tl.tensor,
    hidden: tl.tensor,
    dy_stride: tl.tensor,
    x_stride: tl.tensor,
    RECENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """All gradients from one read of dy and x, ROWS rows at a time.

    Args:
        moments_ptr: as the forward left them.
        dweight_parts_ptr: (programs, hidden) of WIDE, as is dbias_parts_ptr.
    """
    program = tl.program_id(0)
    columns = columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS)
    if weight_ptr is not None:
        weight, _ = read_again(weight_ptr, columns + tl.zeros((ROWS, 1, 1), tl.int32), hidden, WIDE)
    dweight = tl.zeros((ROWS, columns.shape[1], columns.shape[2]), WIDE)
    dbias = tl.zeros((ROWS, columns.shape[1], columns.shape[2]), WIDE)
    tiles = (rows + ROWS - 1) // ROWS
    for tile in tl.range(program, tiles, tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None, None]
        in_rows = row < rows
        inside = in_rows & (columns < hidden)
        dy = tl.load(dy_ptr + row * dy_stride + columns, mask=inside, other=0.0).to(WIDE)
        x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(WIDE)
        normalised, rstd = normalise(x, moments_ptr, rows, row, in_rows, RECENTRED)
        if dx_ptr is not None:
            count = tl.cast(hidden, WIDE)
            scaled = dy
            if weight_ptr is not None:
                scaled = dy * weight
            plain = divide(sums_of_rows(scaled, NEIGHBOURS), count)
            across = divide(sums_of_rows(scaled * normalised, NEIGHBOURS), count)
            dx = scaled - plain[:, None, None] - normalised * across[:, None, None]
            tl.store(dx_ptr + row * hidden + columns, dx * rstd, mask=inside)
        if dweight_parts_ptr is not None:
            dweight += dy * normalised
        if dbias_parts_ptr is not None:
            dbias += dy
    part = program.to(tl.int64) * hidden + columns
    if dweight_parts_ptr is not None:
        sums = tl.sum(dweight, 0)[None, :, :]
        tl.store(dweight_parts_ptr + part, sums, mask=columns < hidden)
    if dbias_parts_ptr is not None:
        sums = tl.sum(dbias, 0)[None, :, :]
        tl.store(dbias_parts_ptr + part, sums, mask=columns < hidden)


@triton.jit(do_not_specialize=["parts"])
def add_parts(
    parts_ptr: tl.tensor,
    dweight_ptr: tl.tensor,
    dbias_ptr: tl.tensor,
    parts: tl.tensor,
    hidden: tl.tensor,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Add up parts in some columns, and round once to the dtype of the gradient.

    Args:
        parts_ptr: (1 or 2, parts, hidden) of WIDE: of dweight, of dbias, or of both in this
            order, as there are pointers.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_row = columns < hidden
    gradient = tl.program_id(1)
    first = gradient.to(tl.int64) * parts
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for start in tl.range(0, parts, ROWS):
        part = start + tl.arange(0, ROWS)
        inside = (part < parts)[:, None] & in_row[None, :]
        place = (first + part)[:, None] * hidden + columns[None, :]
        total += tl.load(parts_ptr + place, mask=inside, other=0.0)
    found = tl.sum(total, 0)
    # of each two conditions, one is known when this is compiled
    if dweight_ptr is not None:  # noqa: SIM102
        if gradient == 0:
            tl.store(dweight_ptr + columns, found, mask=in_row)
    if dbias_ptr is not None:  # noqa: SIM102
        if gradient == tl.num_programs(1) - 1:
            tl.store(dbias_ptr + columns, found, mask=in_row)
