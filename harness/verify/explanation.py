"""Explain one row step by step: exact and computed mean, variance, rstd, normalised value and y.

The steps are those of the textbook. An implementation's own steps cannot be observed, so its mean
and rstd are those that its y implies. The first step that is wrong is the first one that makes a
good part of the error of the row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from harness.numerics import ExactRows, measure_errors, spacing, wide_parameter, wide_rows
from harness.records import Case
from harness.run import exact_of
from harness.run.attempt import attempt
from harness.verify.result import Explanation, Step
from implementations.contract import Implementation

__all__ = ["explain"]

_SHOWN = 8  # elements of a row that fit on a line
_GOOD_PART = 0.1  # of the largest error of a row; less is rounding
_NO_STATISTIC = "normalised or y"


def explain(implementation: Implementation, case: Case, row: int | None = None) -> Explanation:
    """Explain one row of ``case``; without ``row``, the one with the largest error.

    Raises:
        IndexError: there is no such row.
        LookupError: the case has no element, or the implementation gives no result.
    """
    trial = attempt(implementation, case, measure=measure_errors)
    outputs = trial.outputs
    if outputs is None or trial.errors is None:
        raise LookupError(f"{case.id}: {trial.status}: {trial.reason}")
    if not case.rows * case.hidden:
        raise LookupError(f"{case.id}: there is no element to explain")
    inputs, reference = exact_of(case)
    weight = wide_parameter(inputs.weight, 1.0, case)
    bias = wide_parameter(inputs.bias, 0.0, case)
    per_block = [_errors(block, outputs.y, case, weight, bias) for block in reference]
    errors = torch.cat(per_block)
    if row is None:
        row = int(errors.amax(-1).argmax())
    if not 0 <= row < case.rows:
        raise IndexError(f"row {row}: x has rows 0 to {case.rows - 1}")
    block = next(block for block in reference if block.start <= row < block.stop)
    y = wide_rows(outputs.y, case, row, row + 1)[0]
    worst = float(errors[row].amax())
    is_wrong = "y" in trial.outputs_beyond() and worst >= _GOOD_PART * float(errors.amax())
    return Explanation(
        case=case,
        status=trial.status,
        reason=trial.reason,
        row=row,
        worst_element=int(errors[row].argmax()),
        worst_ulp=worst,
        steps=tuple(_steps(block, row - block.start, y, weight, bias, case)),
        first_wrong=_first_wrong(block, row - block.start, y, weight, bias) if is_wrong else "",
    )


def _errors(block: ExactRows, y: Tensor, case: Case, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the error of each element of a block, in ulp at its row's scale.

    It is infinite if only one of exact and computed value is finite, and 0 if neither is.
    """
    computed = wide_rows(y, case, block.start, block.stop)
    rho = torch.sqrt(block.variance / (block.variance + case.eps))
    scale = torch.maximum(block.y[0].abs(), torch.maximum(weight.abs() * rho, bias.abs()))
    error = ((computed - block.y[0]) - block.y[1]).abs() / spacing(y.dtype, scale)
    error = torch.where(torch.isfinite(error), error, torch.full_like(error, float("inf")))
    return torch.where(torch.isfinite(block.y[0]) | torch.isfinite(computed), error, 0.0)


def _steps(
    block: ExactRows, at: int, y: Tensor, weight: Tensor, bias: Tensor, case: Case
) -> Iterator[Step]:
    column = (*case.leading_shape, *(1,) * case.normalized_dims)
    mean = rstd = variance = None
    if (implied := _implied(block, at, y, weight, bias)) is not None:
        mean, rstd = implied[:1], implied[1:]
        variance = rstd**-2 - case.eps
    for name, shape, exact, computed in (
        ("mean", column, block.mean[at], mean),
        ("variance", column, block.variance[at], variance),
        ("rstd", column, block.rstd[at], rstd),
        ("normalised", case.shape, block.normalised[0][at], (y - bias) / weight),
        ("y", case.shape, block.y[0][at], y),
    ):
        own = None if computed is None else tuple(computed[:_SHOWN].tolist())
        yield Step(name=name, shape=shape, exact=tuple(exact[:_SHOWN].tolist()), computed=own)


def _implied(block: ExactRows, at: int, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor | None:
    """Return mean and rstd that fit (x - mean) rstd weight + bias to y best; None if undefined."""
    normalised = block.normalised[0][at]
    design = torch.stack([weight * normalised, -weight], dim=-1)
    # a constant or non-finite row implies no statistics
    if not bool(torch.isfinite(design).all() & torch.isfinite(y).all() & normalised.any()):
        return None
    slope, shift = torch.linalg.lstsq(design, (y - bias)[:, None]).solution[:, 0]
    rstd = slope * block.rstd[at]
    return torch.stack([block.mean[at, 0] + shift / rstd[0], rstd[0]])


def _first_wrong(block: ExactRows, at: int, y: Tensor, weight: Tensor, bias: Tensor) -> str:
    """Return the first step that makes a good part of the error, as far as y tells steps apart."""
    least = _GOOD_PART * float((y - block.y[0][at]).abs().amax())
    if (implied := _implied(block, at, y, weight, bias)) is None:
        return _NO_STATISTIC
    normalised, rstd = block.normalised[0][at], implied[1]
    slope, shift = rstd / block.rstd[at, 0], (implied[0] - block.mean[at, 0]) * rstd
    fitted = weight * (normalised * slope - shift) + bias
    if not float((y - fitted).abs().amax()) <= least:
        return _NO_STATISTIC  # no mean and rstd give this row
    return "mean" if float((weight * shift).abs().amax()) > least else "variance or rstd"
