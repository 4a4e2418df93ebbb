"""Kernels of the backward for rows too long for a program to hold.

The formulas are those of :mod:`implementations.triton.backward_kernels`. Two kernels compute two
means per row for dx, as in the forward; a third reads dy and x once more for all gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.triton.statistics import (
    add_exactly,
    columns_of_tile,
    divide,
    normalise,
    read,
    read_again,
    settled,
    sum_of_blocks,
    sums_of_rows,
)

__all__ = ["gradient_means_of_rows", "gradient_sums_of_blocks", "gradients_of_blocks"]


@triton.jit(do_not_specialize=["rows", "blocks"])
def gradient_sums_of_blocks(
    dy_ptr: tl.tensor,
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    moments_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    hidden: tl.tensor,
    dy_stride: tl.tensor,
    x_stride: tl.tensor,
    RECENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
) -> None:
    """Write a block's share of the sums of g and g * n over its row, (2, rows, blocks)."""
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    columns = program % blocks * COLUMNS + columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS)
    scaled, _ = read(dy_ptr + row * dy_stride, columns, hidden, WIDE)
    x, inside = read(x_ptr + row * x_stride, columns, hidden, WIDE)
    if weight_ptr is not None:
        weight, _ = read_again(weight_ptr, columns, hidden, WIDE)
        scaled = scaled * weight
    of_row = row + tl.zeros((1, 1, 1), tl.int64)
    normalised, _ = normalise(x, moments_ptr, rows, of_row, of_row >= 0, RECENTRED)
    # if the mean is infinite, so is x - mean beyond the row
    across = tl.where(inside, scaled * normalised, 0.0)
    place = program.to(tl.int64) + tl.arange(0, 1)
    tl.store(sums_ptr + place, sums_of_rows(scaled, NEIGHBOURS))
    tl.store(sums_ptr + tl.cast(rows, tl.int64) * blocks + place, sums_of_rows(across, NEIGHBOURS))


@triton.jit(do_not_specialize=["blocks"])
def gradient_means_of_rows(
    sums_ptr: tl.tensor,
    means_ptr: tl.tensor,
    blocks: tl.tensor,
    hidden: tl.tensor,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Compute one mean of one row per program, (2, rows), from the sums of its blocks."""
    place = tl.program_id(0).to(tl.int64)
    total = sum_of_blocks(sums_ptr + place * blocks, blocks, WIDE, COLUMNS)
    tl.store(means_ptr + place + tl.arange(0, 1), divide(total, tl.cast(hidden, WIDE)))


@triton.jit(do_not_specialize=["rows"])
def gradients_of_blocks(
    dy_ptr: tl.tensor,
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    moments_ptr: tl.tensor,
    means_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    dweight_parts_ptr: tl.tensor,
    dbias_parts_ptr: tl.tensor,
    rows: tl.tensor,
    hidden: tl.tensor,
    dy_stride: tl.tensor,
    x_stride: tl.tensor,
    RECENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Compute all gradients in some columns of every n-th row.

    Args:
        means_ptr: (2, rows) of WIDE; needed for dx alone.
        dweight_parts_ptr: (programs of an axis, hidden) of WIDE, as is dbias_parts_ptr.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = columns < hidden
    apart = tl.cast(rows, tl.int64)
    if weight_ptr is not None and dx_ptr is not None:
        weight, _ = read_again(weight_ptr, columns, hidden, WIDE)
    dweight = tl.zeros((1, COLUMNS), WIDE)
    dweight_lost = tl.zeros((1, COLUMNS), WIDE)
    dbias = tl.zeros((1, COLUMNS), WIDE)
    dbias_lost = tl.zeros((1, COLUMNS), WIDE)
    for index in tl.range(tl.program_id(1), rows, tl.num_programs(1), num_stages=STAGES):
        row = tl.cast(index, tl.int64)
        dy = tl.load(dy_ptr + row * dy_stride + columns, mask=inside, other=0.0).to(WIDE)
        if dx_ptr is not None or dweight_parts_ptr is not None:
            x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(WIDE)
            of_row = row + tl.zeros((1, 1), tl.int64)
            normalised, rstd = normalise(x, moments_ptr, rows, of_row, of_row >= 0, RECENTRED)
        if dx_ptr is not None:
            scaled = dy
            if weight_ptr is not None:
                scaled = dy * weight
            plain = tl.load(means_ptr + of_row)
            across = tl.load(means_ptr + apart + of_row)
            dx = scaled - plain - normalised * across
            tl.store(dx_ptr + row * hidden + columns, dx * rstd, mask=inside)
        if dweight_parts_ptr is not None:
            dweight, dweight_lost = add_exactly(dweight, dweight_lost, dy * normalised)
        if dbias_parts_ptr is not None:
            dbias, dbias_lost = add_exactly(dbias, dbias_lost, dy)
    part = tl.program_id(1).to(tl.int64) * hidden + columns
    if dweight_parts_ptr is not None:
        tl.store(dweight_parts_ptr + part, settled(dweight, dweight_lost), mask=inside)
    if dbias_parts_ptr is not None:
        tl.store(dbias_parts_ptr + part, settled(dbias, dbias_lost), mask=inside)
