"""From measured errors to a status and a reason in words."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from harness.numerics.bounds import ErrorBound, unit_roundoff
from harness.numerics.error_measurement import BoundRatio
from harness.records import Case, Errors, OutputErrors, Status

__all__ = ["is_beyond", "status_of", "verdict_of"]

# Above this error relative to the scale, a message gives the absolute error instead of ulp: the
# exact value is then 0 or almost 0, and its ulp is the smallest number of the dtype. For
# comparison, a result of 0 or of twice the exact value has a relative error of 1.
_NOTHING_RATIO = 1e6


def status_of(outputs: Iterable[BoundRatio | OutputErrors]) -> Status:
    """Return WRONG if a bound is broken, OUT_OF_GUARANTEE if one is infinite, OK otherwise."""
    status = Status.OK
    for output in outputs:
        if is_beyond(output):
            return Status.WRONG
        if output.vacuous_elements:
            status = Status.OUT_OF_GUARANTEE
    return status


def is_beyond(output: BoundRatio | OutputErrors, ratio: float = 1.0) -> bool:
    """Whether an error is NaN or more than ``ratio`` times its bound."""
    return output.bound_ratio is not None and not output.bound_ratio <= ratio


def verdict_of(errors: Errors, case: Case, bound: ErrorBound) -> tuple[Status, str]:
    """Return the status of measured errors, and its reason; empty if it is OK."""
    status, outputs = status_of(errors.outputs), errors.outputs
    if status is Status.WRONG:
        broken = filter(is_beyond, outputs)
        return status, "; ".join(_broken_text(output, errors, case) for output in broken)
    if status is Status.OUT_OF_GUARANTEE:
        unbounded = [output for output in outputs if output.vacuous_elements]
        return status, _unbounded_text(unbounded, errors, case, bound)
    return status, ""


def _broken_text(output: OutputErrors, errors: Errors, case: Case) -> str:
    if output.unexpected_nonfinite:
        return (
            f"{output.output}: {output.unexpected_nonfinite} of {output.elements} elements are "
            "NaN or infinite where the exact value is finite"
        )
    return (
        f"{output.output} is {_error_text(output, case)} off, {output.bound_ratio:.3g} times the "
        f"error bound of {errors.algorithm} with {errors.accumulate_dtype} statistics"
    )


def _error_text(output: OutputErrors, case: Case) -> str:
    """The largest error in ulp, or as an absolute error where an ulp would mean nothing."""
    of_parameter = output.output in {"dweight", "dbias"}
    dtype: torch.dtype = getattr(torch, case.param_dtype if of_parameter else case.dtype)
    if output.scaled_max_ulp * unit_roundoff(dtype) < _NOTHING_RATIO:
        return f"{output.scaled_max_ulp:.3g} ulp"
    return f"{output.max_abs:.3g}"


def _unbounded_text(
    unbounded: list[OutputErrors], errors: Errors, case: Case, bound: ErrorBound
) -> str:
    worst = max(unbounded, key=lambda output: output.worst_ulp)
    error = (
        f"{worst.unexpected_nonfinite} of {worst.elements} elements of {worst.output} "
        "are not finite"
        if worst.unexpected_nonfinite
        else f"{worst.output} is {_error_text(worst, case)} off"
    )
    limit = bound.condition_limit(case.hidden)
    return (
        f"{errors.algorithm} with {errors.accumulate_dtype} statistics has no error bound beyond "
        f"condition number {limit:.3g}, and these inputs reach {errors.condition_max_ratio:.3g}: "
        f"{error}"
    )
