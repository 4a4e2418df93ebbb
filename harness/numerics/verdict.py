"""From measured errors to a status and a reason in words."""

from __future__ import annotations

import torch

from harness.numerics.bounds import Guarantee, unit_roundoff
from harness.records import Case, Errors, OutputErrors, Status

__all__ = ["verdict_of"]

# ours: an error so many times the size of what is measured is told as it is. A result of 0, or of
# twice the value, is once its size off
_NOTHING_RATIO = 1e6


def verdict_of(errors: Errors, case: Case, guarantee: Guarantee) -> tuple[Status, str]:
    """Return WRONG if a bound is broken, OUT_OF_GUARANTEE if one is vacuous, OK otherwise."""
    broken = [each for each in errors.outputs if _is_broken(each)]
    if broken:
        return Status.WRONG, "; ".join(_broken_words(each, errors, case) for each in broken)
    vacuous = [each for each in errors.outputs if each.vacuous_elements]
    if vacuous:
        return Status.OUT_OF_GUARANTEE, _vacuous_words(vacuous, errors, case, guarantee)
    return Status.OK, ""


def _is_broken(output: OutputErrors) -> bool:
    return output.bound_ratio is not None and not output.bound_ratio <= 1


def _broken_words(output: OutputErrors, errors: Errors, case: Case) -> str:
    if output.unexpected_nonfinite:
        return (
            f"{output.output}: {output.unexpected_nonfinite} of {output.elements} elements are "
            "NaN or infinite where the exact value is finite"
        )
    return (
        f"{output.output} is {_distance(output, case)} off, {output.bound_ratio:.3g} times "
        f"what {errors.algorithm} with {errors.accumulate_dtype} statistics may lose"
    )


def _distance(output: OutputErrors, case: Case) -> str:
    """The largest error: in ulp, or as it is where the exact value is 0 or next to nothing.

    An ulp of 0 is the smallest number of the dtype, and every error is some 1e40 of them.
    """
    of_parameter = output.output in {"dweight", "dbias"}
    dtype: torch.dtype = getattr(torch, case.param_dtype if of_parameter else case.dtype)
    if output.scaled_max_ulp * unit_roundoff(dtype) < _NOTHING_RATIO:
        return f"{output.scaled_max_ulp:.3g} ulp"
    return f"{output.max_abs:.3g}"


def _vacuous_words(
    vacuous: list[OutputErrors], errors: Errors, case: Case, guarantee: Guarantee
) -> str:
    worst = max(vacuous, key=lambda each: each.scaled_max_ulp)
    lost = (
        f"{worst.unexpected_nonfinite} of {worst.elements} elements of {worst.output} "
        "are not finite"
        if worst.unexpected_nonfinite
        else f"{worst.output} is {_distance(worst, case)} off"
    )
    limit = guarantee.condition_limit(case.hidden)
    return (
        f"{errors.algorithm} with {errors.accumulate_dtype} statistics promises nothing beyond "
        f"condition {limit:.3g}, and this reaches {errors.condition_max_ratio:.3g}: {lost}"
    )
