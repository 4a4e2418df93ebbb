"""The exact outputs of a small case as whole tensors, with their error bounds.

Used to compare two results with each other. Errors of one result, at any size, are measured block
by block in :mod:`harness.numerics.error_measurement`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness.inputs import Inputs
from harness.numerics.bounds import guarantee_of
from harness.numerics.double_double import Pair
from harness.numerics.oracle import ExactRows, Reference, wide_parameter, wide_rows
from harness.numerics.outputs import Outputs
from harness.records import Case
from implementations.contract import Implementation

__all__ = ["ExactOutputs", "exact_outputs", "wide_outputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOutputs:
    """Exact values and bounds by output: y, and dx, dweight and dbias where they exist."""

    rows: ExactRows
    """All rows of the case."""
    exact: dict[str, Pair]
    """(rows, hidden) for y and dx, (1, hidden) for dweight and dbias."""
    bounds: dict[str, Tensor]
    """Error bounds, shaped like ``exact``; infinite where the algorithm has no bound."""


def exact_outputs(implementation: Implementation, case: Case, inputs: Inputs) -> ExactOutputs:
    """Return the exact outputs for ``inputs``, at most 2^16 elements.

    Args:
        implementation: its declaration gives the bounds.
        case: its shape and affine are those of ``inputs``.
        inputs: with a dy, gradients are among the outputs.
    """
    (rows,) = Reference(inputs, case)
    guarantee = guarantee_of(implementation, case)
    weight = wide_parameter(inputs.weight, 1.0, case)
    bias = wide_parameter(inputs.bias, 0.0, case)
    exact = {"y": rows.y}
    bounds = {"y": guarantee.y(rows, weight, bias, case.eps, inputs.x.dtype)}
    if inputs.dy is not None and rows.dx is not None:
        dy = wide_rows(inputs.dy, case, 0, case.rows)
        exact["dx"] = rows.dx
        bounds["dx"] = guarantee.dx(rows, weight, dy, case.eps, inputs.x.dtype)
        columns = guarantee.columns(rows, dy, case.eps)
        for name, parameter, total, bound in (
            ("dweight", inputs.weight, rows.dweight, guarantee.dweight),
            ("dbias", inputs.bias, rows.dbias, guarantee.dbias),
        ):
            if parameter is not None and total is not None:
                exact[name] = total
                bounds[name] = bound(columns, case.rows, total[0], parameter.dtype)
    return ExactOutputs(rows=rows, exact=exact, bounds=bounds)


def wide_outputs(outputs: Outputs, case: Case) -> dict[str, Tensor]:
    """Return the outputs that exist, in float64 on the CPU, shaped as in :class:`ExactOutputs`."""
    wide = {"y": wide_rows(outputs.y, case, 0, case.rows)}
    if outputs.dx is not None:
        wide["dx"] = wide_rows(outputs.dx, case, 0, case.rows)
    for name, gradient in (("dweight", outputs.dweight), ("dbias", outputs.dbias)):
        if gradient is not None:
            wide[name] = wide_parameter(gradient, 0.0, case)[None, :]
    return wide
