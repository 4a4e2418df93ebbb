"""Grade a function: how its error grows with the condition number, and which bound it meets.

A sweep over the condition number, in one dtype, gives the slope of the error, the condition at
which a hundredth of the result is lost, and the strictest algorithm whose bound it always meets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, log, log2
from statistics import linear_regression

from harness.cases.inputs import Inputs
from harness.numerics.bounds import ErrorBound, error_bound_of
from harness.numerics.error_measurement import bound_ratios, measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.numerics.verdict import status_of
from harness.records import Case, Direction, Status
from harness.run.attempt import Judged, attempt, exact_of
from harness.verify.cases.plan import first_case
from harness.verify.scope import fitted
from implementations.contract import Algorithm, Implementation, Reduction

__all__ = ["GRADED_SHAPE", "Grade", "grade"]

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
GRADED_SHAPE = (16, 1000)
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
        shape=GRADED_SHAPE,
        direction=Direction.FORWARD,
    )
    trials = _trials(implementation, case, SWEEP)
    structured = _trials(implementation, case, STRUCTURED)
    measured = [trial for trial in trials if trial.errors is not None]
    return Grade(
        dtype=dtype,
        meets=_strictest(implementation, [*trials, *structured]),
        order=_order(measured, dtype),
        condition_limit=_condition_limit(measured),
        lost_bits=_lost_bits(measured),
    )


def _trials(
    implementation: Implementation, case: Case, distributions: tuple[str, ...]
) -> list[Judged]:
    """Try every distribution that the dtype can represent."""
    trials = [
        attempt(implementation, replace(case, distribution=name), measure=measure_errors)
        for name in distributions
    ]
    return [trial for trial in trials if trial.status is not Status.UNSUPPORTED]


def _strictest(implementation: Implementation, trials: list[Judged]) -> str | None:
    """Judge the same results by the bound of every algorithm, and return the strictest one met."""
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
        outputs = attempt(implementation, trial.case, is_judged=False).outputs
        if outputs is None:
            return None
        inputs, reference = exact_of(replace(trial.case, implementation=""))
        claims = [
            claim
            for claim in claims
            if _meets(error_bound_of(claim, trial.case), outputs, inputs, trial.case, reference)
        ]
    return f"{claims[0].algorithm} ({claims[0].reduction})" if claims else None


def _meets(
    guarantee: ErrorBound, outputs: Outputs, inputs: Inputs, case: Case, reference: Reference
) -> bool:
    ratios = bound_ratios(outputs, inputs, case, guarantee, reference)
    return status_of(ratios) is not Status.WRONG


def _order(trials: list[Judged], dtype: str) -> int | None:
    """Return the slope of log error over log condition, from a few ulp up to three bits left."""
    points = [
        (log(trial.errors.condition_max_ratio), log(error))
        for trial in trials
        if trial.errors is not None
        and isfinite(error := trial.errors.outputs[0].scaled_max_ulp)
        and 4 < error < 2.0 ** (_SIGNIFICAND[dtype] - 3)
        and 5 < trial.errors.condition_max_ratio < float("inf")
    ]
    if not trials:
        return None
    if len(points) < 2:
        worst = max(
            (trial.errors.outputs[0].scaled_max_ulp for trial in trials if trial.errors),
            default=0.0,
        )
        # flat: no ill-conditioned input has a larger error than a normal one
        return 0 if dtype in {"float32", "float64"} and worst < 32 else None
    conditions, errors = zip(*points, strict=True)
    slope = linear_regression(conditions, errors).slope
    return min(max(round(slope), 0), 2)


def _condition_limit(trials: list[Judged]) -> float | None:
    """Return the condition of the last trial before the first that loses over a hundredth."""
    reached = 1.0
    for trial in trials:
        assert trial.errors is not None  # only measured ones are given
        y = trial.errors.outputs[0]
        if y.unexpected_nonfinite or not y.normwise_ratio <= LOST:
            return reached
        if isfinite(trial.errors.condition_max_ratio):
            reached = max(reached, trial.errors.condition_max_ratio)
    return None


def _lost_bits(trials: list[Judged]) -> float | None:
    benign = next((trial for trial in trials if trial.case.distribution == "normal"), None)
    if benign is None or benign.errors is None:
        return None
    worst = benign.errors.outputs[0].scaled_max_ulp
    return max(log2(2 * worst), 0.0) if 0 < worst < float("inf") else None
