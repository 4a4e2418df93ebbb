"""Measure computed outputs against the exact ones, block by block, and against their bounds.

Errors are counted in ulp at the scale ``s`` of the row or column rather than of the element:
near zero a perfect kernel has an unbounded error in ulp of the element itself.

    y        s = max(abs(y), abs(weight) rho, abs(bias))
    dx       s = max(abs(dx), rstd rms(dy weight))
    dweight  s = max(abs(dweight), norm of the summands dy xhat)
    dbias    s = max(abs(dbias), norm of the summands dy)

Every comparison is written so that NaN fails it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite

import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.numerics import double_double as dd
from harness.numerics.bounds import Guarantee
from harness.numerics.column_sums import ColumnSums
from harness.numerics.double_double import Pair
from harness.numerics.oracle import ExactRows, Reference, wide_parameter, wide_rows
from harness.numerics.rounding import spacing
from harness.records import Case, Errors, OutputErrors

__all__ = ["GRADIENTS", "OUTPUTS", "Outputs", "measure_errors", "scale_of_dx", "scale_of_y"]

_P99_SAMPLES = 1 << 16  # at most so many evenly spaced elements determine the percentile


@dataclass(frozen=True, slots=True)
class Outputs:
    """What an implementation returned for a case."""

    y: Tensor
    """Of x's shape."""
    dx: Tensor | None = None
    """Of x's shape; None in a forward case."""
    dweight: Tensor | None = None
    """Of the normalized shape; None where there is no weight."""
    dbias: Tensor | None = None
    """Of the normalized shape; None where there is no bias."""


OUTPUTS = ("y", "dx", "dweight", "dbias")
"""The names of all outputs."""
GRADIENTS = OUTPUTS[1:]


def measure_errors(
    outputs: Outputs, inputs: Inputs, case: Case, guarantee: Guarantee, reference: Reference
) -> Errors:
    """Compare every output with its exact value and with the bound of ``guarantee``."""
    weight = wide_parameter(inputs.weight, 1.0, case)
    bias = wide_parameter(inputs.bias, 0.0, case)
    y, dx, statistics = _OutputErrorSums("y", outputs.y), None, _StatisticsErrors()
    columns = _ColumnSums(case, guarantee) if inputs.dy is not None else None
    if outputs.dx is not None:
        dx = _OutputErrorSums("dx", outputs.dx)
    for exact in reference:
        computed = wide_rows(outputs.y, case, exact.start, exact.stop)
        rho = torch.sqrt(exact.variance / (exact.variance + case.eps))
        scale = scale_of_y(exact, rho, weight, bias)
        bound = guarantee.y(exact, weight, bias, case.eps, outputs.y.dtype)
        error = y.add(computed, exact.y, scale, bound)
        statistics.add(exact, rho, computed - exact.y[0], weight, error)
        if inputs.dy is None or columns is None:
            continue
        dy = wide_rows(inputs.dy, case, exact.start, exact.stop)
        columns.add(exact, dy)
        if dx is not None and outputs.dx is not None and exact.dx is not None:
            computed = wide_rows(outputs.dx, case, exact.start, exact.stop)
            dx_bound = guarantee.dx(exact, weight, dy, case.eps, outputs.dx.dtype)
            dx.add(computed, exact.dx, scale_of_dx(exact, weight, dy), dx_bound)
    measured = [y, *([dx] if dx else []), *(columns.errors(outputs) if columns else [])]
    return Errors(
        outputs=tuple(output.result() for output in measured),
        condition_max_ratio=statistics.condition_max,
        rho_min_ratio=statistics.rho_min,
        mean_error_ratio=statistics.mean_error,
        rstd_error_ratio=statistics.rstd_error,
        # a plain string: with the enumeration, reading a record would import torch
        algorithm=guarantee.algorithm.value,
        reduction=guarantee.reduction.value,
        accumulate_dtype=str(guarantee.accumulate_dtype).removeprefix("torch."),
        oracle=reference.name,
    )


def scale_of_y(exact: ExactRows, rho: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the s of y, (rows, hidden), as defined above."""
    return torch.maximum(exact.y[0].abs(), torch.maximum(weight.abs() * rho, bias.abs()))


def scale_of_dx(exact: ExactRows, weight: Tensor, dy: Tensor) -> Tensor:
    """Return the s of dx, (rows, hidden), as defined above.

    Raises:
        ValueError: a forward case has no dx.
    """
    if exact.dx is None:
        raise ValueError("a forward case has no dx")
    rms = torch.linalg.vector_norm(dy * weight, dim=-1, keepdim=True) / dy.shape[1] ** 0.5
    return torch.maximum(exact.dx[0].abs(), exact.rstd * rms)


@dataclass(slots=True)
class _OutputErrorSums:
    """Error figures of one output, accumulated over blocks of rows."""

    output: str
    computed_tensor: Tensor
    elements: int = 0
    nonfinite: int = 0
    vacuous: int = 0
    raw_max: float = 0.0
    abs_max: float = 0.0
    normwise: float = 0.0
    scaled_max: float = 0.0
    scaled_sum: float = 0.0
    ratio: float | None = None
    samples: list[Tensor] = field(default_factory=list)

    def add(self, computed: Tensor, exact: Pair, scale: Tensor, bound: Tensor) -> Tensor:
        """Add rows of float64 (rows, hidden); return their absolute errors."""
        if not computed.numel():
            return computed
        dtype = self.computed_tensor.dtype
        high, low = exact
        error = (computed - high).sub_(low).abs_()
        largest = float(error.amax())
        if not isfinite(largest):  # amax of NaN is NaN
            error = self._settle_nonfinite(error, computed, high)
            largest = float(error.amax())
        scaled = error / spacing(dtype, scale)
        self.elements += error.numel()
        self.abs_max = _larger(self.abs_max, largest)
        self.raw_max = _larger(self.raw_max, float((error / spacing(dtype, high)).amax()))
        self.scaled_max = _larger(self.scaled_max, float(scaled.amax()))
        self.scaled_sum += float(scaled.sum())
        stride = -(-self.computed_tensor.numel() // _P99_SAMPLES)
        self.samples.append(scaled.flatten()[::stride].float())
        norm, size = torch.linalg.vector_norm(error, dim=-1), torch.linalg.vector_norm(high, dim=-1)
        worst = torch.where(norm > 0, norm / size, torch.zeros_like(norm))
        self.normwise = _larger(self.normwise, float(worst.amax()))
        self._add_ratio(error, bound, high)
        return error

    def _settle_nonfinite(self, error: Tensor, computed: Tensor, exact: Tensor) -> Tensor:
        """Count elements that are not finite but should be, and return errors without NaN.

        Where the exact value is not finite (NaN or infinite inputs), any value that is not finite
        is right. Where it is beyond the largest number of the dtype, infinity is its rounding.
        """
        beyond = exact.abs() > torch.finfo(self.computed_tensor.dtype).max
        rounded = beyond & (computed == torch.copysign(torch.full_like(exact, inf), exact))
        agrees = (torch.isfinite(computed) == torch.isfinite(exact)) | rounded
        self.nonfinite += int((~agrees & torch.isfinite(exact)).sum())
        error = torch.where(torch.isfinite(error), error, torch.full_like(error, inf))
        return torch.where(
            agrees & (rounded | ~torch.isfinite(exact)), torch.zeros_like(error), error
        )

    def _add_ratio(self, error: Tensor, bound: Tensor, exact: Tensor) -> None:
        if isfinite(float(bound.amax())):
            self.ratio = _larger(self.ratio or 0.0, float((error / bound).amax()))
            return
        bounded, defined = torch.isfinite(bound), torch.isfinite(exact)
        self.vacuous += int((~bounded & defined).sum())
        # a finite value where the exact one is NaN or infinite is within no bound
        if bool(((error > 0) & ~defined).any()):
            self.ratio = float("inf")
        elif bool(bounded.any()):
            ratios = torch.where(bounded, error / bound, torch.zeros_like(error))
            self.ratio = _larger(self.ratio or 0.0, float(ratios.amax()))

    def result(self) -> OutputErrors:
        samples = torch.cat(self.samples) if self.samples else torch.zeros(1)
        rank = max(1, round(0.99 * samples.numel()))
        return OutputErrors(
            output=self.output,
            elements=self.elements,
            unexpected_nonfinite=self.nonfinite,
            scaled_max_ulp=self.scaled_max,
            scaled_p99_ulp=float(samples.kthvalue(rank).values),
            scaled_mean_ulp=None if self.nonfinite else self.scaled_sum / max(self.elements, 1),
            raw_max_ulp=self.raw_max,
            max_abs=self.abs_max,
            normwise_ratio=self.normwise,
            bound_ratio=self.ratio,
            vacuous_elements=self.vacuous,
        )


def _larger(a: float, b: float) -> float:
    """The larger of two numbers, or NaN if the second is NaN, which ``max`` would drop."""
    return a if a >= b else b


@dataclass(slots=True)
class _StatisticsErrors:
    """Condition of the rows, and the errors of mean and rstd that y implies.

    With computed mean m' and rstd r', y' - y = weight (xhat (r'/r - 1) - (m' - m) r'), up to
    rounding. These are two unknowns per row, found by least squares over its elements.
    """

    condition_max: float = 1.0
    rho_min: float = 1.0
    mean_error: float | None = None
    rstd_error: float | None = None

    def add(
        self, exact: ExactRows, rho: Tensor, difference: Tensor, weight: Tensor, error: Tensor
    ) -> None:
        if not difference.numel():
            return
        variance = exact.variance
        condition = torch.where(
            variance > 0,
            torch.sqrt(1 + exact.mean.square() / variance),
            torch.where(exact.mean == 0, 1.0, float("inf")),
        )
        self.condition_max = max(self.condition_max, float(condition.amax()))
        self.rho_min = min(self.rho_min, float(rho.amin()))
        slope = weight * exact.normalised[0]
        aa, ab, bb = torch.linalg.vecdot(slope, slope), slope @ weight, weight @ weight
        ea, eb = torch.linalg.vecdot(difference, slope), difference @ weight
        determinant = aa * bb - ab.square()
        # rows of one element, and constant rows, determine neither
        usable = (determinant > 1e-6 * aa * bb) & torch.isfinite(error).all(-1)
        if not bool(usable.any()):
            return
        rstd_error = ((ea * bb - eb * ab) / determinant)[usable]
        mean_error = ((eb * aa - ea * ab) / determinant)[usable] / (1 + rstd_error)
        in_deviations = (mean_error / rho.squeeze(-1)[usable]).abs()
        self.rstd_error = max(self.rstd_error or 0.0, float(rstd_error.abs().amax()))
        self.mean_error = max(self.mean_error or 0.0, float(in_deviations.amax()))


class _ColumnSums:
    """Exact dweight and dbias, their scales and bounds, summed over blocks of rows."""

    def __init__(self, case: Case, guarantee: Guarantee) -> None:
        zero = torch.zeros((1, case.hidden), dtype=torch.float64)
        self._case, self._guarantee = case, guarantee
        self._sums: dict[str, Pair] = dict.fromkeys(("dweight", "dbias"), (zero, zero))
        self._squares = dict.fromkeys(self._sums, zero)
        self._of_bounds = ColumnSums.without_rows(case.hidden)

    def add(self, exact: ExactRows, dy: Tensor) -> None:
        self._of_bounds += self._guarantee.columns(exact, dy, self._case.eps)
        terms = {"dweight": dy * exact.normalised[0], "dbias": dy}
        for name, total in (("dweight", exact.dweight), ("dbias", exact.dbias)):
            if total is None:
                continue
            self._sums[name] = dd.add(self._sums[name], total)
            self._squares[name] = self._squares[name] + terms[name].square().sum(0, keepdim=True)

    def errors(self, outputs: Outputs) -> list[_OutputErrorSums]:
        """Compare dweight and dbias, where they were computed."""
        measured = []
        bounds = {"dweight": self._guarantee.dweight, "dbias": self._guarantee.dbias}
        for name, exact in self._sums.items():
            tensor: Tensor | None = getattr(outputs, name)
            if tensor is None:
                continue
            sums = _OutputErrorSums(name, tensor)
            scale = torch.maximum(exact[0].abs(), self._squares[name].sqrt())
            rows = self._case.rows
            bound = bounds[name](self._of_bounds, rows, exact[0], tensor.dtype)
            sums.add(wide_parameter(tensor, 0.0, self._case)[None, :], exact, scale, bound)
            measured.append(sums)
        return measured
