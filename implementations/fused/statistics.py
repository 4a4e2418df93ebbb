"""What kernels form of rows: sums, means, variances, 1/sqrt(variance + eps).

A tile holds some columns of some rows as (ROWS, OUTER, INNER), so that the elements that one
thread holds side by side have an axis of their own, its leaves: of LEAVES elements, the last axis
if they are neighbours in memory, one 16-byte read, else the middle one. A sum adds up the leaves
first: asked for all columns at once, the compiler may add up whatever a thread holds one after
the other, which is no tree.

Sums, quotients and roots are rounded as IEEE arithmetic rounds them: Triton's ``/`` and ``rsqrt``
are approximations in float32. Nothing here may be compiled with fast-math: a compiler that is
free to reassociate folds the second centring of :func:`moments` away.

Names in capitals are known when a kernel is compiled. WIDE is the dtype of all arithmetic,
float32 or float64. What is formed of rows is (ROWS,).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "add_exactly",
    "columns_of_tile",
    "divide",
    "moments",
    "moments_of_long_row",
    "read_again",
    "reciprocal_root",
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
    """Add x to a running sum, and to ``lost`` what the rounded sum lost (Knuth's TwoSum).

    Knuth, TAOCP 2, section 4.2.2, theorem B. The sum of both is as good as that of a tree,
    however many are added.
    """
    new = total + x
    back = new - total
    return new, lost + ((total - (new - back)) + (x - back))


@triton.jit
def _combine(
    n_a: tl.tensor,
    mean_a: tl.tensor,
    squares_a: tl.tensor,
    n_b: tl.tensor,
    mean_b: tl.tensor,
    squares_b: tl.tensor,
) -> tl.tensor:
    """Count, mean and sum of squared deviations of two parts as one (Chan, eq. 2.1)."""
    n = n_a + n_b
    share = n_b / tl.where(n == 0.0, 1.0, n)  # beyond a row, nothing is combined with nothing
    above = mean_b - mean_a
    return n, mean_a + above * share, squares_a + squares_b + above * above * (n_a * share)


@triton.jit
def _pairs_of_rows(x: tl.tensor, inside: tl.tensor, NEIGHBOURS: tl.constexpr) -> tl.tensor:
    """Count, mean and sum of squared deviations of each row of a tile, combined as a tree.

    Those of the leaves of a thread are formed at once, as in two passes.
    """
    AXIS: tl.constexpr = 2 if NEIGHBOURS else 1
    member = tl.broadcast_to(inside, x.shape).to(x.dtype)
    n = tl.sum(member, AXIS)
    mean = divide(tl.sum(x, AXIS), tl.where(n == 0.0, 1.0, n))
    deviation = tl.where(inside, x - tl.expand_dims(mean, AXIS), 0.0)
    return tl.reduce((n, mean, tl.sum(deviation * deviation, AXIS)), 1, _combine)


@triton.jit
def moments(
    x: tl.tensor,
    inside: tl.tensor,
    count: tl.tensor,
    STATISTIC: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
) -> tl.tensor:
    """x - mean of a tile, and of its rows the mean, what is left of it, twice, and the variance.

    Args:
        x: the tile, 0 where it reaches beyond a row.
        inside: where it does not.
        count: elements of a row.
        STATISTIC: one_pass, two_pass, welford or recentred. Only for the last is anything left:
            the mean of x - mean, which is what rounding the mean left, and the mean of what
            subtracting that one left. In float32 the second matters from a condition of 1e8 on,
            where a mean is off by several times the deviations.
    """
    if STATISTIC == "welford":
        _, mean, squares = _pairs_of_rows(x, inside, NEIGHBOURS)
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
        # beside the sum above, not after it: what is left again is small, and so its square
        squares = sums_of_rows(centred * centred, NEIGHBOURS)
        variance = divide(squares, count) - left_again * left_again
    return centred - left_again[:, None, None], mean, left, left_again, variance


@triton.jit
def moments_of_long_row(
    x_ptr: tl.tensor,
    hidden: tl.tensor,
    STATISTIC: tl.constexpr,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """Return the last four of :func:`moments` for one row, read in blocks for each pass anew."""
    mean = tl.zeros((1,), WIDE)
    left = tl.zeros((1,), WIDE)
    left_again = tl.zeros((1,), WIDE)
    if STATISTIC == "welford":
        columns = columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS)
        n = tl.zeros((1,), WIDE)
        squares = tl.zeros((1,), WIDE)
        for start in tl.range(0, hidden, COLUMNS, num_stages=STAGES):
            x, inside = read_again(x_ptr, start + columns, hidden, WIDE)
            n_b, mean_b, squares_b = _pairs_of_rows(x, inside, NEIGHBOURS)
            n, mean, squares = _combine(n, mean, squares, n_b, mean_b, squares_b)
        variance = divide(squares, tl.cast(hidden, WIDE))
    else:
        mean, squares = _means(x_ptr, hidden, mean, left, WIDE, COLUMNS, LEAVES, NEIGHBOURS, STAGES)
        if STATISTIC == "one_pass":
            variance = squares - mean * mean
        else:
            if STATISTIC == "recentred":
                left, _ = _means(
                    x_ptr, hidden, mean, left, WIDE, COLUMNS, LEAVES, NEIGHBOURS, STAGES
                )
            rest, variance = _means(
                x_ptr, hidden, mean, left, WIDE, COLUMNS, LEAVES, NEIGHBOURS, STAGES
            )
            if STATISTIC == "recentred":
                left_again = rest
                variance = variance - rest * rest
    return mean, left, left_again, variance


@triton.jit
def _means(
    x_ptr: tl.tensor,
    hidden: tl.tensor,
    mean: tl.tensor,
    left: tl.tensor,
    WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEAVES: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """Mean over a row of (x - mean) - left, and of its square; one not used is not compiled."""
    columns = columns_of_tile(COLUMNS, LEAVES, NEIGHBOURS)
    plain = tl.zeros(columns.shape, WIDE)
    plain_lost = tl.zeros(columns.shape, WIDE)
    squares = tl.zeros(columns.shape, WIDE)
    squares_lost = tl.zeros(columns.shape, WIDE)
    for start in tl.range(0, hidden, COLUMNS, num_stages=STAGES):
        x, inside = read_again(x_ptr, start + columns, hidden, WIDE)
        centred = tl.where(inside, (x - mean[:, None, None]) - left[:, None, None], 0.0)
        plain, plain_lost = add_exactly(plain, plain_lost, centred)
        squares, squares_lost = add_exactly(squares, squares_lost, centred * centred)
    count = tl.cast(hidden, WIDE)
    return divide(sums_of_rows(plain + plain_lost, NEIGHBOURS), count), divide(
        sums_of_rows(squares + squares_lost, NEIGHBOURS), count
    )


@triton.jit
def read_again(
    pointer: tl.tensor, columns: tl.tensor, hidden: tl.tensor, WIDE: tl.constexpr
) -> tl.tensor:
    """Read what will be read once more, and where it is inside a row; 0 beyond."""
    inside = columns < hidden
    found = tl.load(pointer + columns, mask=inside, other=0.0, eviction_policy="evict_last")
    return found.to(WIDE), inside
