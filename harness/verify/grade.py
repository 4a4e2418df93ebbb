"""Grade a function: up to which condition number it is of use, and which bound it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import bound_ratios, measure_errors
from harness.numerics.verdict import status_of
from harness.records import Direction, Status
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
    "ramp_offset", "ulp_comb", "one_ulp_spike", "last_digit", "onnxruntime_28463", "outlier_first",
)  # fmt: skip
GRADED_SHAPE = (16, 1000)
LOST = 1e-2  # of the norm of a row: fewer than two digits are of no use


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How accurate a function is on ill-conditioned input, in one dtype."""

    dtype: str
    meets: str | None
    """The strictest algorithm and reduction whose bound it meets; None if it meets none."""
    condition_limit: float | None
    """The largest condition at which it keeps two digits; None if it keeps them at all tried."""


def grade(implementation: Implementation, dtype: str, device: str) -> Grade:
    """Grade ``implementation`` in one dtype by its forward."""
    case = fitted(
        implementation,
        first_case(implementation.name, dtype, device),
        shape=GRADED_SHAPE,
        direction=Direction.FORWARD,
    )
    cases = [replace(case, distribution=name) for name in (*SWEEP, *STRUCTURED)]
    trials = [attempt(implementation, one, measure=measure_errors) for one in cases]
    # without those that the dtype cannot represent
    trials = [trial for trial in trials if trial.status is not Status.UNSUPPORTED]
    sweep = [trial for trial in trials if trial.case.distribution in SWEEP]
    return Grade(
        dtype=dtype,
        meets=_strictest(implementation, trials),
        condition_limit=_condition_limit(sweep),
    )


def _strictest(implementation: Implementation, trials: list[Judged]) -> str | None:
    """Judge the same results by the bound of every algorithm, and return the strictest one met."""
    plain = replace(implementation, statistics_in_input_dtype=False)
    claims = [
        replace(plain, algorithm=algorithm, reduction=reduction)
        for algorithm, reduction in STRICTEST_FIRST
    ]
    for trial in trials:
        case, outputs = trial.case, trial.outputs
        if outputs is None:
            return None
        inputs, exact = exact_of(case)
        claims = [
            claim
            for claim in claims
            if status_of(bound_ratios(outputs, inputs, case, error_bound_of(claim, case), exact))
            is not Status.WRONG
        ]
    return f"{claims[0].algorithm} ({claims[0].reduction})" if trials and claims else None


def _condition_limit(trials: list[Judged]) -> float | None:
    """Return the condition of the last trial before the first that loses over a hundredth."""
    reached = 1.0
    for trial in trials:
        if trial.errors is None:
            continue
        y = trial.errors.outputs[0]
        if y.unexpected_nonfinite or not y.normwise_ratio <= LOST:
            return reached
        if isfinite(trial.errors.condition_max_ratio):
            reached = max(reached, trial.errors.condition_max_ratio)
    return None
