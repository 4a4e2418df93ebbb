"""Step by step: mean, variance, rstd, normalised value and y of one row, exact beside computed.

The steps are those of the textbook; what an implementation does inside cannot be seen, so its mean
and rstd are those that its y implies, and the other columns are formed from y.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.numerics.bounds import spacing
from harness.numerics.oracle import ExactRows, wide_parameter, wide_rows
from harness.records import Case, Status
from harness.verify.trial import exact_of, outputs_of, try_case
from implementations.contract import Implementation

__all__ = ["Explanation", "Step", "explain"]

_SHOWN = 8  # ours: elements of a row that fit on a line
_SMALL = 64  # ours: elements up to which the plain loop is printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One quantity of one row."""

    name: str
    shape: tuple[int, ...]
    """Of the quantity for the whole of x."""
    exact: tuple[float, ...]
    """Of the row; the first elements of it."""
    computed: tuple[float, ...] | None
    """None where y implies none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How one case comes out, and where it goes wrong."""

    case: Case
    status: Status
    reason: str
    row: int
    """Row shown: asked for, or the one with the largest error."""
    worst_element: int
    """Of the row."""
    worst_ulp: float
    """Its error, in ulp at the scale of the row."""
    steps: tuple[Step, ...]
    loop: tuple[str, ...]
    """The textbook's plain loop over the row with its numbers, for small rows."""


def explain(implementation: Implementation, case: Case, row: int | None = None) -> Explanation:
    """Explain one row of ``case``; without ``row`` the one whose y is furthest off.

    Raises:
        IndexError: there is no such row.
        LookupError: the case has no element, or the implementation returns nothing to explain.
    """
    trial = try_case(implementation, case)
    outputs = outputs_of(implementation, case)
    if outputs is None or trial.errors is None:
        raise LookupError(f"{case.id}: {trial.status}: {trial.reason}")
    if not case.rows * case.hidden:
        raise LookupError(f"{case.id}: there is no element to explain")
    inputs, reference = exact_of(_unnamed(case))
    weight, bias = (
        wide_parameter(inputs.weight, 1.0, case),
        wide_parameter(inputs.bias, 0.0, case),
    )
    found = [_errors(block, outputs.y, case, weight, bias) for block in reference]
    errors = torch.cat(found)
    if row is None:
        row = int(errors.amax(-1).argmax())
    if not 0 <= row < case.rows:
        raise IndexError(f"row {row}: x has rows 0 to {case.rows - 1}")
    block = next(each for each in reference if each.start <= row < each.stop)
    at = row - block.start
    x = wide_rows(inputs.x, case, row, row + 1)[0]
    y = wide_rows(outputs.y, case, row, row + 1)[0]
    return Explanation(
        case=case,
        status=trial.status,
        reason=trial.reason,
        row=row,
        worst_element=int(errors[row].argmax()),
        worst_ulp=float(errors[row].amax()),
        steps=tuple(_steps(block, at, y, weight, bias, case)),
        loop=tuple(_loop(x, weight, bias, case.eps)) if case.hidden <= _SMALL else (),
    )


def _errors(block: ExactRows, y: Tensor, case: Case, weight: Tensor, bias: Tensor) -> Tensor:
    """Error of each element of a block in ulp at its row's scale.

    Infinite where one of exact and computed is finite and the other is not; none where neither is.
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
    column = (*case.shape[: len(case.shape) - case.normalized_dims], *(1,) * case.normalized_dims)
    normalised = block.normalised[0][at]
    implied = _implied(block, at, y, weight, bias)
    yield _step("mean", column, block.mean[at], None if implied is None else implied[:1])
    variance = None if implied is None else implied[1:] ** -2 - case.eps
    yield _step("variance", column, block.variance[at], variance)
    yield _step("rstd", column, block.rstd[at], None if implied is None else implied[1:])
    own = (y - bias) / weight
    yield _step("normalised", case.shape, normalised, own)
    yield _step("y", case.shape, block.y[0][at], y)


def _implied(block: ExactRows, at: int, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor | None:
    """Mean and rstd for which (x - mean) rstd weight + bias comes nearest to y, or None."""
    normalised = block.normalised[0][at]
    design = torch.stack([weight * normalised, -weight], dim=-1)
    # a row that is constant, or not finite, implies nothing
    if not bool(torch.isfinite(design).all() & torch.isfinite(y).all() & normalised.any()):
        return None
    slope, shift = torch.linalg.lstsq(design, (y - bias)[:, None]).solution[:, 0]
    rstd = slope * block.rstd[at]
    return torch.stack([block.mean[at, 0] + shift / rstd[0], rstd[0]])


def _step(name: str, shape: tuple[int, ...], exact: Tensor, computed: Tensor | None) -> Step:
    own = None if computed is None else tuple(computed[:_SHOWN].tolist())
    return Step(name=name, shape=shape, exact=tuple(exact[:_SHOWN].tolist()), computed=own)


def _loop(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Iterator[str]:
    """The plain loop, with its numbers, in float64: to be followed by hand."""
    values = x.tolist()
    mean = sum(values) / len(values)
    yield f"mean = sum of {len(values)} elements / {len(values)} = {mean:.9g}"
    variance = sum((each - mean) ** 2 for each in values) / len(values)
    yield f"variance = sum of (element - mean)^2 / {len(values)} = {variance:.9g}"
    rstd = (variance + eps) ** -0.5 if variance + eps > 0 else float("inf")
    yield f"rstd = 1 / sqrt({variance:.9g} + {eps:g}) = {rstd:.9g}"
    for place, (each, gain, offset) in enumerate(
        zip(values, weight.tolist(), bias.tolist(), strict=True)
    ):
        y = (each - mean) * rstd * gain + offset
        yield (
            f"y[{place}] = ({each:.9g} - {mean:.9g}) * {rstd:.9g} * {gain:.9g} + {offset:.9g} "
            f"= {y:.9g}"
        )


def _unnamed(case: Case) -> Case:
    return replace(case, implementation="")
