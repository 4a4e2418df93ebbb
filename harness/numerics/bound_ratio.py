"""How far outputs reach into their error bounds: all that a verdict needs of a right result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.numerics import double_double as dd
from harness.numerics.bounds import Guarantee
from harness.numerics.column_sums import ColumnSums
from harness.numerics.double_double import Pair
from harness.numerics.oracle import ExactRows, Reference, wide_parameter, wide_rows
from harness.numerics.outputs import Outputs
from harness.records import Case

__all__ = ["BoundRatio", "Column", "Columns", "bound_ratios"]


@dataclass(slots=True)
class BoundRatio:
    """The errors of one output over their bounds, collected over blocks of rows."""

    output: str
    dtype: torch.dtype
    """Of the output."""
    bound_ratio: float | None = None
    """Largest error over its bound; above 1 is wrong. None where all bounds are infinite."""
    vacuous_elements: int = 0
    """Elements whose exact value is finite and whose bound is not."""
    unexpected_nonfinite: int = 0
    """Elements that are not finite where the exact value is."""

    def add(self, computed: Tensor, exact: Pair, bound: Tensor) -> tuple[Tensor, float]:
        """Add float64 rows, (rows, hidden); return their absolute errors, and the largest."""
        high, low = exact
        error = computed - high
        if low.dim():  # all low parts of a float64 reference are one 0
            error.sub_(low)
        error.abs_()
        if not error.numel():
            return error, 0.0
        largest = float(error.amax())
        if not isfinite(largest):  # amax of NaN is NaN
            error = self._settle_nonfinite(error, computed, high, bound)
            largest = float(error.amax())
        self._add_ratio(error, bound, high)
        return error, largest

    def _settle_nonfinite(
        self, error: Tensor, computed: Tensor, exact: Tensor, bound: Tensor
    ) -> Tensor:
        """Count elements that are not finite but should be, and return errors without NaN.

        Where the exact value is not finite (NaN or infinite inputs), any value that is not finite
        is right. Where a value within the bound is beyond the largest number of the dtype, infinity
        is its rounding.
        """
        allowed = torch.where(torch.isfinite(bound), bound, torch.zeros_like(bound))
        beyond = exact.abs() + allowed > torch.finfo(self.dtype).max
        rounded = beyond & (computed == torch.copysign(torch.full_like(exact, inf), exact))
        agrees = (torch.isfinite(computed) == torch.isfinite(exact)) | rounded
        self.unexpected_nonfinite += int((~agrees & torch.isfinite(exact)).sum())
        error = torch.where(torch.isfinite(error), error, torch.full_like(error, inf))
        return torch.where(
            agrees & (rounded | ~torch.isfinite(exact)), torch.zeros_like(error), error
        )

    def _add_ratio(self, error: Tensor, bound: Tensor, exact: Tensor) -> None:
        if isfinite(float(bound.amax())):
            self._raise_to(float((error / bound).amax()))
            return
        bounded, defined = torch.isfinite(bound), torch.isfinite(exact)
        self.vacuous_elements += int((~bounded & defined).sum())
        # a finite value where the exact one is NaN or infinite is within no bound
        if bool(((error > 0) & ~defined).any()):
            self.bound_ratio = inf
        elif bool(bounded.any()):
            ratios = torch.where(bounded, error / bound, torch.zeros_like(error))
            self._raise_to(float(ratios.amax()))

    def _raise_to(self, ratio: float) -> None:
        before = self.bound_ratio or 0.0
        self.bound_ratio = before if before >= ratio else ratio  # NaN, which max would drop, wins


@dataclass(frozen=True, slots=True)
class Column:
    """dweight or dbias as computed, its exact value and its bound; float64 (1, hidden)."""

    output: str
    dtype: torch.dtype
    computed: Tensor
    exact: Pair
    bound: Tensor


class Columns:
    """Exact dweight and dbias and their bounds, summed over blocks of rows."""

    def __init__(self, case: Case, guarantee: Guarantee) -> None:
        zero = torch.zeros((1, case.hidden), dtype=torch.float64)
        self._case, self._guarantee = case, guarantee
        self._sums: dict[str, Pair] = dict.fromkeys(("dweight", "dbias"), (zero, zero))
        self._of_bounds = ColumnSums.without_rows(case.hidden)

    def add(self, exact: ExactRows, dy: Tensor) -> None:
        """Add a block of rows and its dy, float64 (rows, hidden)."""
        self._of_bounds += self._guarantee.columns(exact, dy, self._case.eps)
        for name, total in (("dweight", exact.dweight), ("dbias", exact.dbias)):
            if total is not None:
                self._sums[name] = dd.add(self._sums[name], total)

    def compared(self, outputs: Outputs) -> Iterator[Column]:
        """Yield dweight and dbias, where they were computed."""
        bounds = {"dweight": self._guarantee.dweight, "dbias": self._guarantee.dbias}
        for name, exact in self._sums.items():
            tensor: Tensor | None = getattr(outputs, name)
            if tensor is None:
                continue
            computed = wide_parameter(tensor, 0.0, self._case)[None, :]
            bound = bounds[name](self._of_bounds, self._case.rows, exact[0], tensor.dtype)
            yield Column(name, tensor.dtype, computed, exact, bound)


def bound_ratios(
    outputs: Outputs, inputs: Inputs, case: Case, guarantee: Guarantee, reference: Reference
) -> tuple[BoundRatio, ...]:
    """Return each output's errors over the bounds of ``guarantee``.

    It is half the work of :func:`harness.numerics.error_measurement.measure_errors`.
    """
    weight = wide_parameter(inputs.weight, 1.0, case)
    bias = wide_parameter(inputs.bias, 0.0, case)
    found = [BoundRatio("y", outputs.y.dtype)]
    if outputs.dx is not None:
        found.append(BoundRatio("dx", outputs.dx.dtype))
    columns = Columns(case, guarantee)
    for exact in reference:
        computed = wide_rows(outputs.y, case, exact.start, exact.stop)
        found[0].add(computed, exact.y, guarantee.y(exact, weight, bias, case.eps, outputs.y.dtype))
        if inputs.dy is None:
            continue
        dy = wide_rows(inputs.dy, case, exact.start, exact.stop)
        columns.add(exact, dy)
        if outputs.dx is not None and exact.dx is not None:
            computed = wide_rows(outputs.dx, case, exact.start, exact.stop)
            bound = guarantee.dx(exact, weight, dy, case.eps, outputs.dx.dtype)
            found[1].add(computed, exact.dx, bound)
    for column in columns.compared(outputs):
        found.append(BoundRatio(column.output, column.dtype))
        found[-1].add(column.computed, column.exact, column.bound)
    return tuple(found)
