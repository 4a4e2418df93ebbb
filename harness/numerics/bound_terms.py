"""The parts of the error bounds that are plain numbers, and the bound of a row as one number.

It needs no torch, so that a page can draw the bounds. The notation is that of ``bounds``: condition
number K, unit roundoff u, chain length f, and t, the bound of the relative error of s2 + eps.
"""

from __future__ import annotations

from math import inf, log2, sqrt

__all__ = [
    "COMPILED_LANES",
    "SIGNIFICAND_BITS",
    "chain_length",
    "condition_limit",
    "largest_error_ulp",
    "terms",
]

SIGNIFICAND_BITS = {"float32": 24, "bfloat16": 8, "float16": 11, "float64": 53}
"""Binary digits of each dtype, those that models use most first; u is two to minus as many."""

COMPILED_LANES = 4  # torch.compile keeps one running sum per lane; float64 in AVX2 has the fewest


def chain_length(count: int, reduction: str, lanes: int = COMPILED_LANES) -> float:
    """Roundings an addend can meet in a sum of ``count``: f.

    Trees: 8 + log2(N), where 8 allows for the leaves that real trees sum one by one.
    """
    if reduction == "sequential":
        return count + 8
    if reduction == "blocks":
        return count / lanes + log2(lanes) + 8
    return 8 + log2(max(count, 2))


def terms(algorithm: str, f: float, u: float) -> tuple[float, float, float]:
    """a, b and c in t = a K^2 + b K rho + c rho^2; shifted: c (rho^2 + distance^2)."""
    single_word_mean = ((f + 2) * u) ** 2
    return {
        "one_pass": (2 * (f + 2) * u, 0.0, 0.0),
        "two_pass": (single_word_mean, 0.0, (f + 4) * u),
        "welford": (single_word_mean, (f + 4) * u, (f + 4) * u),
        "recentred": (0.0, 0.0, (f + 4) * u),
        "shifted": (0.0, 0.0, 2 * (f + 2) * u),
    }[algorithm]


def condition_limit(algorithm: str, f: float, u: float) -> float:
    """Condition number from which on there is no bound, ignoring eps: where t reaches 1."""
    a, b, c = terms(algorithm, f, u)
    if c >= 1:
        return 1.0
    if a == 0:
        return (1 - c) / b if b else inf
    return (sqrt(b * b + 4 * a * (1 - c)) - b) / (2 * a)


def largest_error_ulp(
    algorithm: str,
    reduction: str,
    hidden: int,
    condition: float,
    *,
    statistics: str,
    dtype: str,
    distance: float | None = None,
) -> float:
    """Return the largest error of y that any row of a condition number may have, in scaled ulp.

    The bound of an element is a sum of products with abs(weight), abs(weight * normalised), abs(y)
    and abs(bias). None of them exceeds s, the size at which an error is scaled, except the second,
    which is at most abs(y) + abs(bias) <= 2 s. One ulp at s is more than s / 2**bits. So the bound
    in ulp is at most the sum of the factors times 2**bits, whatever the data.

    Args:
        algorithm: class of the algorithm.
        reduction: order of the sums over a row; blocks have the fewest lanes, COMPILED_LANES.
        hidden: elements of the row.
        condition: sqrt(1 + mean^2/variance) of the row.
        statistics: name of the dtype in which mean and variance are formed.
        dtype: name of the dtype of y.
        distance: of the furthest element from the mean, in standard deviations, on which the bound
            of shifted depends; by default the largest possible.
    """
    u, f = 2.0 ** -SIGNIFICAND_BITS[statistics], chain_length(hidden, reduction)
    a, b, c = terms(algorithm, f, u)
    mean_size = condition
    if algorithm == "recentred":
        mean_size = 1.0
    if algorithm == "shifted":  # no element is further from the mean than sqrt(hidden - 1)
        mean_size = sqrt(hidden if distance is None else min(hidden, 1 + distance**2))
        c *= mean_size**2
    t = a * condition**2 + b * condition + c
    if not t < 1:
        return inf
    rstd_error = 1 / sqrt(1 - t) - 1
    of_weight = (f + 2) * u * mean_size * (1 + rstd_error)
    of_part = 4 * u * (1 + rstd_error) + rstd_error
    # rounding the result: half an ulp, with the slack of numerics.bounds
    return 2.0 ** SIGNIFICAND_BITS[dtype] * (of_weight + 2 * of_part + 4 * u) + 0.5 * (1 + 2.0**-10)
