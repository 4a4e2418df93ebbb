"""Grade a function: how its error grows with the condition number, and which bound it meets.

A sweep over the condition number, in one dtype, gives the slope of the error, the condition at
which a hundredth of the result is lost, and the strictest algorithm whose bound it always meets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, log, log2
from statistics import linear_regression

from harness.inputs import Inputs
from harness.numerics.bound_ratio import bound_ratios
from harness.numerics.bounds import Guarantee, guarantee_of
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.numerics.verdict import status_of
from harness.records import Case, Direction, Status
from harness.verify.scope import fitted
from harness.verify.trial import Trial, exact_of, first_case, outputs_of, try_case
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["Grade", "grade"]

_STABLE = (Algorithm.RECENTRED, Algorithm.TWO_PASS, Algorithm.WELFORD)
STRICTEST_FIRST = (
    *((algorithm, Reduction.TREE) for algorithm in _STABLE),
    # after those: a running sum loses N roundings, cancellation the square of the condition
    *((algorithm, Reduction.SEQUENTIAL) for algorithm in _STABLE),
    (Algorithm.ONE_PASS, Reduction.TREE),
    (Algorithm.ONE_PASS, Reduction.SEQUENTIAL),
)
SWEEP = ("normal", *(f"offset_1e{exponent}" for exponent in range(1, 8)))
STRUCTURED = (
    "ramp_offset",
    "ulp_comb",
    "one_ulp_spike",
    "last_digit",
    "onnxruntime_28463",
    "outlier_first",
)
SHAPE = (16, 1000)
LOST = 1e-2  # of the norm of a row: fewer than two digits are of no use
_SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How a function's error depends on the condition of its input, in one dtype."""

    dtype: str
    meets: str | None
    """The strictest algorithm and reduction whose bound it meets; None if it meets none."""
    order: int | None
    """p in error ~ condition^p; None if the rounding of the result hides it."""
    condition_limit: float | None
    """The largest condition at which it keeps two digits; None if it keeps them at all tried."""
    lost_bits: float | None
    """Bits lost on normal inputs, beyond the half ulp of correct rounding; None if not finite."""


def grade(implementation: Implementation, dtype: str, device: str) -> Grade:
    """Grade ``implementation`` in one dtype by its forward."""
    case = fitted(
        implementation,
        first_case(implementation.name, dtype, device),
        shape=SHAPE,
        direction=Direction.FORWARD,
    )
    trials = _trials(implementation, case, SWEEP)
    structured = _trials(implementation, case, STRUCTURED)
    measured = [each for each in trials if each.errors is not None]
    return Grade(
        dtype=dtype,
        meets=_strictest(implementation, [*trials, *structured]),
        order=_order(measured, dtype),
        condition_limit=_condition_limit(measured),
        lost_bits=_lost_bits(measured),
    )


def _trials(
    implementation: Implementation, case: Case, distributions: tuple[str, ...]
) -> list[Trial]:
    """Try each distribution that the dtype can represent."""
    trials = [
        try_case(implementation, replace(case, distribution=name), measure=True)
        for name in distributions
    ]
    return [trial for trial in trials if trial.status is not Status.UNSUPPORTED]


def _strictest(implementation: Implementation, trials: list[Trial]) -> str | None:
    """Judge the same results by the bound of each algorithm, and return the strictest one met."""
    claims = [
        replace(
            implementation,
            algorithm=algorithm,
            reduction=reduction,
            statistics_in_input_dtype=False,
        )
        for algorithm, reduction in STRICTEST_FIRST
    ]
    if not trials:
        return None
    for trial in trials:
        outputs = outputs_of(implementation, trial.case)
        if outputs is None:
            return None
        inputs, reference = exact_of(replace(trial.case, implementation=""))
        claims = [
            each
            for each in claims
            if _meets(guarantee_of(each, trial.case), outputs, inputs, trial.case, reference)
        ]
    return f"{claims[0].algorithm} ({claims[0].reduction})" if claims else None


def _meets(
    guarantee: Guarantee, outputs: Outputs, inputs: Inputs, case: Case, reference: Reference
) -> bool:
    ratios = bound_ratios(outputs, inputs, case, guarantee, reference)
    return status_of(ratios) is not Status.WRONG


def _order(trials: list[Trial], dtype: str) -> int | None:
    """Return the slope of log error over log condition, from a few ulp up to three bits left."""
    points = [
        (log(each.errors.condition_max_ratio), log(error))
        for each in trials
        if each.errors is not None
        and isfinite(error := each.errors.outputs[0].scaled_max_ulp)
        and 4 < error < 2.0 ** (_SIGNIFICAND[dtype] - 3)
        and 5 < each.errors.condition_max_ratio < float("inf")
    ]
    if not trials:
        return None
    if len(points) < 2:
        worst = max(
            (each.errors.outputs[0].scaled_max_ulp for each in trials if each.errors), default=0.0
        )
        # flat: no ill-conditioned input has a larger error than a normal one
        return 0 if dtype in {"float32", "float64"} and worst < 32 else None
    conditions, errors = zip(*points, strict=True)
    slope = linear_regression(conditions, errors).slope
    return min(max(round(slope), 0), 2)


def _condition_limit(trials: list[Trial]) -> float | None:
    """Return the condition of the last trial before the first that loses over a hundredth."""
    reached = 1.0
    for each in trials:
        assert each.errors is not None  # only measured ones are given
        y = each.errors.outputs[0]
        if y.unexpected_nonfinite or not y.normwise_ratio <= LOST:
            return reached
        if isfinite(each.errors.condition_max_ratio):
            reached = max(reached, each.errors.condition_max_ratio)
    return None


def _lost_bits(trials: list[Trial]) -> float | None:
    benign = next((each for each in trials if each.case.distribution == "normal"), None)
    if benign is None or benign.errors is None:
        return None
    worst = benign.errors.outputs[0].scaled_max_ulp
    return max(log2(2 * worst), 0.0) if 0 < worst < float("inf") else None
