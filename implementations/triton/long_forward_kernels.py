"""Kernels of the forward for rows too long for a program to hold: three, or five for two passes.

A row is cut into blocks, one per program, so that a few huge rows keep the whole device busy. The
first kernel reads a block and writes its share of the sums of its row. The second adds these up to
the moments of the row. The third reads the block again and writes y. The blocks, and so the bits of
y, depend only on the length of the row.

Conventions as in :mod:`implementations.triton.forward_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.triton.statistics import (
    add_exactly,
    columns_of_tile,
    combine,
    divide,
    moments,
    normalise,
    pairs_of_rows,
    read,
    read_again,
    reciprocal_root,
    settled,
    sum_of_blocks,
    sums_of_rows,
)

__all__ = ["moments_of_rows", "normalise_blocks", "sums_of_blocks"]


@triton.jit(do_not_specialize=["rows", "blocks"])
def sums_of_blocks(
    x_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    hidden: tl.tensor,
    x_stride: tl.tensor,
    STATISTIC: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
) -> None:
    """Write a block's share of the sums of its row.

    Args:
        mean_ptr: (rows,) of WIDE for the second of two passes, else None.
        sums_ptr: (3, rows, blocks) of WIDE. For welford and recentred: the mean of the block, the
            sum of squared deviations from it, and the residual mean. Otherwise the sum of its
            elements, and the sum of squares of them or, with a mean, of the deviations from it.
        blocks: per row, of COLUMNS elements; the last may reach beyond the row.
    """
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    start = program % blocks * COLUMNS
    x, inside = read(
        x_ptr + row * x_stride, start + columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS), hidden, WIDE
    )
    place = program.to(tl.int64) + tl.arange(0, 1)
    apart = tl.cast(rows, tl.int64) * blocks
    if STATISTIC == "recentred":
        count = tl.cast(tl.minimum(hidden - start, COLUMNS), WIDE)
        _, mean, left, left_again, variance = moments(x, inside, count, STATISTIC, NEIGHBOURS)
        tl.store(sums_ptr + place, mean)
        tl.store(sums_ptr + apart + place, variance * count)
        tl.store(sums_ptr + 2 * apart + place, left + left_again)
    elif STATISTIC == "welford":
        _, mean, squares = pairs_of_rows(x, inside, NEIGHBOURS)
        tl.store(sums_ptr + place, mean)
        tl.store(sums_ptr + apart + place, squares)
    else:
        if mean_ptr is None:
            tl.store(sums_ptr + place, sums_of_rows(x, NEIGHBOURS))
        else:
            x = tl.where(inside, x - tl.load(mean_ptr + row), 0.0)
        if mean_ptr is not None or STATISTIC == "one_pass":
            tl.store(sums_ptr + apart + place, sums_of_rows(x * x, NEIGHBOURS))


@triton.jit
def _elements(
    block: tl.tensor, hidden: tl.tensor, LONG_BLOCK: tl.constexpr, WIDE: tl.constexpr
) -> tl.tensor:
    """Return the number of elements of the row in a block; 0 for a block beyond it."""
    # 64 bits, because block * LONG_BLOCK may exceed 32 bits for a block beyond the row
    before = block.to(tl.int64) * LONG_BLOCK
    return tl.cast(tl.maximum(tl.minimum(hidden - before, LONG_BLOCK), 0), WIDE)


@triton.jit(do_not_specialize=["rows", "blocks", "eps_bits"])
def moments_of_rows(
    sums_ptr: tl.tensor,
    moments_ptr: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    hidden: tl.tensor,
    eps_bits: tl.tensor,
    STATISTIC: tl.constexpr,
    SECOND_OF_TWO: tl.constexpr,
    WIDE: tl.constexpr,
    LONG_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Compute the moments of one row per program from the sums of its blocks.

    Args:
        sums_ptr: from :func:`sums_of_blocks`, with blocks of LONG_BLOCK elements.
        moments_ptr: (2 or 4, rows) of WIDE, as for the kernel of rows that a program holds.
        SECOND_OF_TWO: whether this is the second of two passes, which writes rstd; the first
            writes the mean.
    """
    row = tl.program_id(0).to(tl.int64)
    place = row + tl.arange(0, 1)
    apart = tl.cast(rows, tl.int64)
    second_ptr = sums_ptr + (apart + row) * blocks
    third_ptr = sums_ptr + (2 * apart + row) * blocks
    sums_ptr += row * blocks
    count = tl.cast(hidden, WIDE)
    own = tl.arange(0, COLUMNS)
    if STATISTIC == "welford":
        n = tl.zeros((1,), WIDE)
        mean = tl.zeros((1,), WIDE)
        squares = tl.zeros((1,), WIDE)
        for start in tl.range(0, blocks, COLUMNS):
            block = (start + own)[None, :]
            n_b = _elements(block, hidden, LONG_BLOCK, WIDE)
            mean_b, _ = read_again(sums_ptr, block, blocks, WIDE)
            squares_b, _ = read_again(second_ptr, block, blocks, WIDE)
            n_b, mean_b, squares_b = tl.reduce((n_b, mean_b, squares_b), 1, combine)
            n, mean, squares = combine(n, mean, squares, n_b, mean_b, squares_b)
        variance = divide(squares, count)
    elif STATISTIC == "recentred":
        # A mean of two words a block, as its distance from the first block's: the distances are of
        # the size of the deviations, and so are the errors of what is formed of them.
        origin = tl.load(sums_ptr)
        around = tl.zeros((1,), WIDE)
        rest = tl.zeros((1,), WIDE)
        variance = tl.zeros((1,), WIDE)
        for centring in tl.static_range(2):
            plain = tl.zeros((1, COLUMNS), WIDE)
            plain_lost = tl.zeros((1, COLUMNS), WIDE)
            squares = tl.zeros((1, COLUMNS), WIDE)
            squares_lost = tl.zeros((1, COLUMNS), WIDE)
            for start in tl.range(0, blocks, COLUMNS):
                block = (start + own)[None, :]
                n_b = _elements(block, hidden, LONG_BLOCK, WIDE)
                mean_b, inside = read_again(sums_ptr, block, blocks, WIDE)
                left_b, _ = read_again(third_ptr, block, blocks, WIDE)
                distance = tl.where(inside, (mean_b - origin) + left_b - around[:, None], 0.0)
                plain, plain_lost = add_exactly(plain, plain_lost, n_b * distance)
                if centring == 1:
                    within, _ = read_again(second_ptr, block, blocks, WIDE)
                    more = within + n_b * distance * distance
                    squares, squares_lost = add_exactly(squares, squares_lost, more)
            found = divide(tl.sum(settled(plain, plain_lost), 1), count)
            if centring == 0:
                around = found
            else:
                rest = found
                variance = divide(tl.sum(settled(squares, squares_lost), 1), count) - rest * rest
        zero = tl.zeros((1,), WIDE)
        mean, lost = add_exactly(around, zero, origin + zero)
        left, left_again = add_exactly(rest, zero, lost)
        tl.store(moments_ptr + 2 * apart + place, left)
        tl.store(moments_ptr + 3 * apart + place, left_again)
    elif SECOND_OF_TWO:
        variance = divide(sum_of_blocks(second_ptr, blocks, WIDE, COLUMNS), count)
    else:
        mean = divide(sum_of_blocks(sums_ptr, blocks, WIDE, COLUMNS), count)
        if STATISTIC == "one_pass":
            squares = sum_of_blocks(second_ptr, blocks, WIDE, COLUMNS)
            variance = divide(squares, count) - mean * mean
    if not SECOND_OF_TWO:
        tl.store(moments_ptr + place, mean)
    if STATISTIC != "two_pass" or SECOND_OF_TWO:
        tl.store(moments_ptr + apart + place, reciprocal_root(variance, eps_bits))


@triton.jit(do_not_specialize=["rows", "blocks"])
def normalise_blocks(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    y_ptr: tl.tensor,
    moments_ptr: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    hidden: tl.tensor,
    x_stride: tl.tensor,
    RECENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
) -> None:
    """Write a block of y; arguments as for the kernel of rows that a program holds.

    The last blocks come first: they were read last, and may be in the cache.
    """
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    start = program % blocks * COLUMNS
    columns = start + columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS)
    inside = columns < hidden
    x = tl.load(
        x_ptr + row * x_stride + columns, mask=inside, other=0.0, eviction_policy="evict_first"
    )
    of_row = row + tl.zeros((1, 1, 1), tl.int64)
    y, _ = normalise(x.to(WIDE), moments_ptr, rows, of_row, of_row >= 0, RECENTRED)
    if weight_ptr is not None:
        weight, _ = read_again(weight_ptr, columns, hidden, WIDE)
        y = y * weight
    if bias_ptr is not None:
        bias, _ = read_again(bias_ptr, columns, hidden, WIDE)
        y = y + bias
    tl.store(y_ptr + row * hidden + columns, y, mask=inside)
