"""Sums, means, variances and 1/sqrt(variance + eps) of rows, in kernels.

A tile holds some columns of some rows as (ROWS, OUTER, INNER), so that the elements of one thread
have an axis of their own, its leaves: LEAVES elements on the last axis if they are neighbours in
memory (one 16-byte read), else on the middle axis. A sum adds up the leaves first. If it summed all
columns at once, the compiler could add up the elements of a thread sequentially, which is no tree.

Sums, quotients and roots are rounded as IEEE arithmetic rounds them: Triton's ``/`` and ``rsqrt``
are approximations in float32. Nothing here may be compiled with fast-math: a compiler that is
free to reassociate folds the second centring of :func:`moments` away.

Names in capitals are compile-time constants. WIDE is the dtype of all arithmetic, float32 or
float64. Results per row have shape (ROWS,).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "add_exactly",
    "columns_of_tile",
    "combine",
    "divide",
    "moments",
    "normalise",
    "pairs_of_rows",
    "read",
    "read_again",
    "reciprocal_root",
    "settled",
    "sum_of_blocks",
    "sums_of_rows",
]


@triton.jit
def columns_of_tile(
    COLUMNS: tl.constexpr, LEAVES: tl.constexpr, NEIGHBOURS: tl.constexpr
) -> tl.tensor:
    """Return the numbers of the columns of a tile, (1, OUTER, INNER)."""
    OUTER: tl.constexpr = COLUMNS // LEAVES if NEIGHBOURS else LEAVES
    INNER: tl.constexpr = COLUMNS // OUTER
    return tl.arange(0, OUTER)[None, :, None] * INNER + tl.arange(0, INNER)[None, None, :]


@triton.jit
def sums_of_rows(x: tl.tensor, NEIGHBOURS: tl.constexpr) -> tl.tensor:
    """Sum of each row of a tile, as a tree."""
    return tl.sum(tl.sum(x, 2 if NEIGHBOURS else 1), 1)


@triton.jit
def divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a / b, rounded once."""
    if a.dtype == tl.float64:
        return a / b
    else:  # noqa: RET505 - one of two, chosen while compiling
        return tl.div_rn(a, b)


@triton.jit
def reciprocal_root(variance: tl.tensor, eps_bits: tl.tensor) -> tl.tensor:
    """1/sqrt(variance + eps), each operation rounded once.

    eps comes as the bits of a float64, since a kernel's arguments hold no more than a float32.
    """
    eps = tl.cast(tl.cast(eps_bits, tl.int64), tl.float64, bitcast=True)
    shifted = variance + tl.cast(eps, variance.dtype)
    if variance.dtype == tl.float64:
        return 1.0 / tl.sqrt(shifted)
    else:  # noqa: RET505 - one of two, chosen while compiling
        return tl.div_rn(1.0, tl.sqrt_rn(shifted))


@triton.jit
def add_exactly(total: tl.tensor, lost: tl.tensor, x: tl.tensor) -> tl.tensor:
    """Add x to a running sum, and its rounding error to ``lost`` (Knuth's TwoSum).

    Knuth, TAOCP 2, section 4.2.2, theorem B. ``total + lost`` is as accurate as a tree sum of any
    number of addends.
    """
    new = total + x
    back = new - total
    return new, lost + ((total - (new - back)) + (x - back))


@triton.jit
def settled(total: tl.tensor, lost: tl.tensor) -> tl.tensor:
    """Final sum of :func:`add_exactly`; if it is infinite, ``lost`` is NaN and left out."""
    return tl.where(lost == lost, total + lost, total)


@triton.jit
def combine(
    n_a: tl.tensor,
    mean_a: tl.tensor,
    squares_a: tl.tensor,
    n_b: tl.tensor,
    mean_b: tl.tensor,
    squares_b: tl.tensor,
) -> tl.tensor:
    """Count, mean and sum of squared deviations of two parts as one (Chan, eq. 2.1)."""
    n = n_a + n_b
    share = n_b / tl.where(n == 0.0, 1.0, n)  # both parts are empty beyond a row
    above = mean_b - mean_a
    return n, mean_a + above * share, squares_a + squares_b + above * above * (n_a * share)


@triton.jit
def pairs_of_rows(x: tl.tensor, inside: tl.tensor, NEIGHBOURS: tl.constexpr) -> tl.tensor:
    """Count, mean and sum of squared deviations of each row of a tile, combined as a tree.

    Those of a thread's leaves are computed in two passes.
    """
    AXIS: tl.constexpr = 2 if NEIGHBOURS else 1
    member = tl.broadcast_to(inside, x.shape).to(x.dtype)
    n = tl.sum(member, AXIS)
    mean = divide(tl.sum(x, AXIS), tl.where(n == 0.0, 1.0, n))
    deviation = tl.where(inside, x - tl.expand_dims(mean, AXIS), 0.0)
    return tl.reduce((n, mean, tl.sum(deviation * deviation, AXIS)), 1, combine)


@triton.jit
def moments(
    x: tl.tensor,
    inside: tl.tensor,
    count: tl.tensor,
    STATISTIC: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
) -> tl.tensor:
    """Return x - mean of a tile, and per row the mean, two residual means and the variance.

    Args:
        x: the tile, 0 where it reaches beyond a row.
        inside: True inside a row.
        count: elements of a row.
        STATISTIC: one_pass, two_pass, welford or recentred. The residual means are zero except for
            recentred: the mean of x - mean, which is the rounding error of the mean, and the mean
            after subtracting that. In float32 the second matters from a condition number of 1e8 on,
            where the error of the mean is several times the deviations.
    """
    if STATISTIC == "welford":
        _, mean, squares = pairs_of_rows(x, inside, NEIGHBOURS)
        variance = divide(squares, count)
    else:
        mean = divide(sums_of_rows(x, NEIGHBOURS), count)
    centred = tl.where(inside, x - mean[:, None, None], 0.0)
    left = tl.zeros_like(mean)
    left_again = tl.zeros_like(mean)
    if STATISTIC == "recentred":
        left = divide(sums_of_rows(centred, NEIGHBOURS), count)
        centred = tl.where(inside, centred - left[:, None, None], 0.0)
        left_again = divide(sums_of_rows(centred, NEIGHBOURS), count)
    if STATISTIC == "one_pass":
        variance = divide(sums_of_rows(x * x, NEIGHBOURS), count) - mean * mean
    elif STATISTIC != "welford":
        # independent of the sum above, because left_again and its square are small
        squares = sums_of_rows(centred * centred, NEIGHBOURS)
        variance = divide(squares, count) - left_again * left_again
    return centred - left_again[:, None, None], mean, left, left_again, variance


@triton.jit
def normalise(
    x: tl.tensor,
    moments_ptr: tl.tensor,
    rows: tl.tensor,
    row: tl.tensor,
    in_rows: tl.tensor,
    RECENTRED: tl.constexpr,
) -> tl.tensor:
    """Return (x - mean) * rstd of a tile, as in the forward, and rstd.

    Args:
        row: numbers of the rows, with as many axes as ``x``; as ``in_rows``, which is False
            beyond the last one, where rstd is 0.
    """
    apart = tl.cast(rows, tl.int64)
    centred = x - tl.load(moments_ptr + row, mask=in_rows, other=0.0)
    if RECENTRED:
        centred = centred - tl.load(moments_ptr + 2 * apart + row, mask=in_rows, other=0.0)
        centred = centred - tl.load(moments_ptr + 3 * apart + row, mask=in_rows, other=0.0)
    rstd = tl.load(moments_ptr + apart + row, mask=in_rows, other=0.0)
    return centred * rstd, rstd


@triton.jit
def read(
    pointer: tl.tensor, columns: tl.tensor, hidden: tl.tensor, WIDE: tl.constexpr
) -> tl.tensor:
    """Return elements that are read once, 0 beyond the row, and a mask of those inside it."""
    inside = columns < hidden
    return tl.load(pointer + columns, mask=inside, other=0.0).to(WIDE), inside


@triton.jit
def read_again(
    pointer: tl.tensor, columns: tl.tensor, hidden: tl.tensor, WIDE: tl.constexpr
) -> tl.tensor:
    """Return elements that will be read again, 0 beyond the row, and a mask of those inside it."""
    inside = columns < hidden
    found = tl.load(pointer + columns, mask=inside, other=0.0, eviction_policy="evict_last")
    return found.to(WIDE), inside


@triton.jit
def sum_of_blocks(
    sums_ptr: tl.tensor, blocks: tl.tensor, WIDE: tl.constexpr, COLUMNS: tl.constexpr
) -> tl.tensor:
    """Sum over the blocks of one row, (1,)."""
    total = tl.zeros((1, COLUMNS), WIDE)
    lost = tl.zeros((1, COLUMNS), WIDE)
    for start in tl.range(0, blocks, COLUMNS):
        found, _ = read_again(sums_ptr, start + tl.arange(0, COLUMNS)[None, :], blocks, WIDE)
        total, lost = add_exactly(total, lost, found)
    return tl.sum(settled(total, lost), 1)
