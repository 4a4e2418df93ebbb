"""Running sums: what a target that declares nothing may have computed instead of tree sums.

Such a target is first held to the bound of PyTorch's own kernel, whose sums are trees. A loop that
adds one element after another, einsum, and products with ones lose more on long rows and are right:
a running sum of N elements makes N roundings. Results outside the first bound are therefore judged
again by the claims below. If the claims explain every failure of a dtype, the target is held to the
loosest of those that were needed.

A claim explains a failure only by a finite bound. Two passes have one at any condition number
(``beyond_limit`` in :mod:`harness.numerics.bounds`); Welford has none beyond its limit.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from harness.numerics.bounds import Guarantee, guarantee_of
from harness.records import Case
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["claimed_guarantee", "running_sum_claims"]

_STRICTEST_FIRST = (Algorithm.TWO_PASS, Algorithm.WELFORD)
# half the bound of a declared running sum: partial sums of equal addends grow linearly to the
# total. Even if all roundings go the same way, as for a constant row, they come to N/3 of it
_LANES = 2
# roundings of random addends go both ways and come to about sqrt(N) of the total. Beyond 2^16
# addends, one addend is hardly more than the last digit of a float32 sum, and roundings go one way
_SPREAD = 4
_MOST_RANDOM = 1 << 16


def running_sum_claims(implementation: Implementation) -> tuple[Implementation, ...]:
    """Return what ``implementation`` could have declared, strictest first; none if it declares."""
    if implementation.declared:
        return ()
    return tuple(
        replace(
            implementation,
            algorithm=algorithm,
            reduction=Reduction.BLOCKS,
            lanes=_LANES,
            backward_reduction=None,
            column_reduction=Reduction.SEQUENTIAL,
        )
        for algorithm in _STRICTEST_FIRST
    )


def claimed_guarantee(claim: Implementation, case: Case) -> Guarantee:
    """Return the guarantee of ``claim``, as strict as the inputs of ``case`` allow.

    A bound of N roundings would excuse a count of 4097 elements that is kept in float16.
    """
    if case.distribution == "normal" and case.hidden <= _MOST_RANDOM:
        claim = replace(claim, lanes=max(_LANES, isqrt(case.hidden) // _SPREAD))
    return replace(guarantee_of(claim, case), beyond_limit=True)
