"""What a target that declares nothing may be besides what it is held to: plain running sums.

It is held to what torch's own kernel keeps, whose sums are trees. A loop that adds up one element
after the other, einsum and products with ones lose more on long rows, and are right: N roundings
are what a running sum may lose. So what is beyond the first bound is judged once more, and where
running sums explain every such case of a dtype, they are what the target is taken for there.
"""

from __future__ import annotations

from dataclasses import replace

from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["running_sums"]

_STRICTEST_FIRST = (Algorithm.TWO_PASS, Algorithm.WELFORD)


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
            reduction=Reduction.SEQUENTIAL,
            backward_reduction=None,
            column_reduction=Reduction.SEQUENTIAL,
        )
        for algorithm in _STRICTEST_FIRST
    )
