"""Kernel of the forward for rows that a program can hold: y, and the moments for the backward.

Rows are ``stride`` elements apart, which may be 0; the elements of a row are adjacent. Offsets of
rows have 64 bits, because a tensor may have more elements than 32 bits count.

A pointer is None if its tensor is not needed. Tiles and names in capitals are those of
:mod:`implementations.triton.statistics`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.triton.statistics import (
    columns_of_tile,
    moments,
    read_again,
    reciprocal_root,
)

__all__ = ["forward_of_tiles"]


@triton.jit(do_not_specialize=["rows", "eps_bits"])
def forward_of_tiles(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    y_ptr: tl.tensor,
    moments_ptr: tl.tensor,
    rows: tl.tensor,
    hidden: tl.tensor,
    x_stride: tl.tensor,
    eps_bits: tl.tensor,
    STATISTIC: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Normalise tiles of ROWS rows; a program takes every num_programs-th tile.

    Args:
        moments_ptr: (2 or 4, rows) of WIDE: mean, rstd and, for recentred, two residual means.
    """
    columns = columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS)
    # for each row of a tile, since broadcasting would lay the threads out differently
    of_tile = columns + tl.zeros((ROWS, 1, 1), tl.int32)
    # read once by a program of many tiles; otherwise the registers are better left free
    if weight_ptr is not None and STAGES > 1:
        weight, _ = read_again(weight_ptr, of_tile, hidden, WIDE)
    if bias_ptr is not None and STAGES > 1:
        bias, _ = read_again(bias_ptr, of_tile, hidden, WIDE)
    tiles = (rows + ROWS - 1) // ROWS
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        in_rows = row < rows
        inside = in_rows[:, None, None] & (columns < hidden)
        row = row.to(tl.int64)
        x = tl.load(x_ptr + row[:, None, None] * x_stride + columns, mask=inside, other=0.0)
        y, mean, left, left_again, variance = moments(
            x.to(WIDE), inside, tl.cast(hidden, WIDE), STATISTIC, NEIGHBOURS
        )
        rstd = reciprocal_root(variance, eps_bits)
        y = y * rstd[:, None, None]
        if weight_ptr is not None:
            if STAGES == 1:
                weight, _ = read_again(weight_ptr, of_tile, hidden, WIDE)
            y = y * weight
        if bias_ptr is not None:
            if STAGES == 1:
                bias, _ = read_again(bias_ptr, of_tile, hidden, WIDE)
            y = y + bias
        tl.store(y_ptr + row[:, None, None] * hidden + columns, y, mask=inside)
        if moments_ptr is not None:
            apart = tl.cast(rows, tl.int64)
            tl.store(moments_ptr + row, mean, mask=in_rows)
            tl.store(moments_ptr + apart + row, rstd, mask=in_rows)
            if STATISTIC == "recentred":
                tl.store(moments_ptr + 2 * apart + row, left, mask=in_rows)
                tl.store(moments_ptr + 3 * apart + row, left_again, mask=in_rows)
