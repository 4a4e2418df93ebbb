"""What a target that declares nothing may be besides what it is held to: plain running sums.

It is held to what torch's own kernel keeps, whose sums are trees. A loop that adds up one element
after the other, einsum and products with ones lose more on long rows, and are right: N roundings
are what a running sum may lose. So what is beyond the first bound is judged once more, and where
running sums explain every such case of a dtype, they are what the target is taken for there.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from harness.records import Case
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["in_case", "running_sums"]

_STRICTEST_FIRST = (Algorithm.TWO_PASS, Algorithm.WELFORD)
# ours: half of what a declared running sum may lose. Partial sums of like addends grow to the
# total, so that the roundings even of a constant row, which all go one way, come to N/3 of it
_LANES = 2
# ours: roundings of random addends go either way, and come to some sqrt(N) of the total; beyond so
# many addends one is itself hardly more than the sum's last digit in float32, and they do not
_SPREAD = 4
_MOST_RANDOM = 1 << 16


def running_sums(implementation: Implementation) -> tuple[Implementation, ...]:
    """Return what ``implementation`` could have declared, strictest first; none if it declares.

    What is within the bound of one is within those of all after it.
    """
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


def in_case(claim: Implementation, case: Case) -> Implementation:
    """Return one of :func:`running_sums` as strict as the inputs of ``case`` allow.

    All N roundings would excuse a count of 4097 elements that is kept in float16.
    """
    if case.distribution != "normal" or case.hidden > _MOST_RANDOM:
        return claim
    return replace(claim, lanes=max(_LANES, isqrt(case.hidden) // _SPREAD))
