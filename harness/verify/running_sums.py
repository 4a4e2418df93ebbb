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

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

from harness.numerics.bounds import ErrorBound, error_bound_of
from harness.numerics.error_measurement import bound_ratios
from harness.numerics.verdict import status_of
from harness.records import Case, Status
from harness.run.attempt import Judged, exact_of
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["claimed_bound", "explanations", "running_sum_claims"]

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


def claimed_bound(claim: Implementation, case: Case) -> ErrorBound:
    """Return the guarantee of ``claim``, as strict as the inputs of ``case`` allow.

    A bound of N roundings would excuse a count of 4097 elements that is kept in float16.
    """
    if case.distribution == "normal" and case.hidden <= _MOST_RANDOM:
        claim = replace(claim, lanes=max(_LANES, isqrt(case.hidden) // _SPREAD))
    return replace(error_bound_of(claim, case), at_any_condition=True)


def explanations(judged: Judged, claims: Sequence[Implementation]) -> dict[Algorithm, Judged]:
    """Judge wrong outputs again by each claim; return what the claims give that explain them."""
    outputs, case = judged.outputs, judged.case
    if judged.status is not Status.WRONG or outputs is None:
        return {}
    if any(ratio.unexpected_nonfinite for ratio in judged.ratios):
        return {}  # no order of sums explains an unexpected NaN or infinity
    inputs, exact = exact_of(case)
    found = {}
    for claim in claims:
        ratios = bound_ratios(outputs, inputs, case, claimed_bound(claim, case), exact)
        # a bound that is infinite where the first one is not explains nothing
        pairs = zip(ratios, judged.ratios, strict=True)
        is_as_finite = all(new.vacuous_elements <= old.vacuous_elements for new, old in pairs)
        if status_of(ratios) is not Status.WRONG and is_as_finite:
            found[claim.algorithm] = Judged(case=case, status=status_of(ratios), ratios=ratios)
    return found
