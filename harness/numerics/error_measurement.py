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

import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.numerics.bound_ratio import BoundRatio, Column, Columns
from harness.numerics.bounds import Guarantee
from harness.numerics.double_double import Pair
from harness.numerics.oracle import ExactRows, Reference, wide_parameter, wide_rows
from harness.numerics.outputs import Outputs
from harness.numerics.rounding import spacing
from harness.records import Case, Errors, OutputErrors

__all__ = ["measure_errors", "scale_of_dx", "scale_of_y"]

_P99_SAMPLES = 1 << 16  # at most so many evenly spaced elements determine the percentile


def measure_errors(
    outputs: Outputs, inputs: Inputs, case: Case, guarantee: Guarantee, reference: Reference
) -> Errors:
    """Compare every output with its exact value and with the bound of ``guarantee``."""
    weight = wide_parameter(inputs.weight, 1.0, case)
    bias = wide_parameter(inputs.bias, 0.0, case)
    y, dx, statistics = _OutputErrorSums.of("y", outputs.y), None, _StatisticsErrors()
    columns, norms = Columns(case, guarantee), _SummandNorms(case.hidden)
    if outputs.dx is not None:
        dx = _OutputErrorSums.of("dx", outputs.dx)
    for exact in reference:
        computed = wide_rows(outputs.y, case, exact.start, exact.stop)
        rho = torch.sqrt(exact.variance / (exact.variance + case.eps))
        scale = scale_of_y(exact, rho, weight, bias)
        bound = guarantee.y(exact, weight, bias, case.eps, outputs.y.dtype)
        error = y.add(computed, exact.y, scale, bound)
        statistics.add(exact, rho, computed - exact.y[0], weight, error)
        if inputs.dy is None:
            continue
        dy = wide_rows(inputs.dy, case, exact.start, exact.stop)
        columns.add(exact, dy)
        norms.add(exact, dy)
        if dx is not None and outputs.dx is not None and exact.dx is not None:
            computed = wide_rows(outputs.dx, case, exact.start, exact.stop)
            dx_bound = guarantee.dx(exact, weight, dy, case.eps, outputs.dx.dtype)
            dx.add(computed, exact.dx, scale_of_dx(exact, weight, dy), dx_bound)
    measured = [y, *([dx] if dx else [])]
    for column in columns.compared(outputs):
        sums = _OutputErrorSums(BoundRatio(column.output, column.dtype), case.hidden)
        sums.add(column.computed, column.exact, norms.scale(column), column.bound)
        measured.append(sums)
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

    ratio: BoundRatio
    total: int
    """Elements of the output."""
    elements: int = 0
    raw_max: float = 0.0
    abs_max: float = 0.0
    normwise: float = 0.0
    scaled_max: float = 0.0
    scaled_sum: float = 0.0
    samples: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, output: str, tensor: Tensor) -> _OutputErrorSums:
        return cls(BoundRatio(output, tensor.dtype), tensor.numel())

    def add(self, computed: Tensor, exact: Pair, scale: Tensor, bound: Tensor) -> Tensor:
        """Add rows of float64 (rows, hidden); return their absolute errors."""
        error, largest = self.ratio.add(computed, exact, bound)
        if not error.numel():
            return error
        dtype, high = self.ratio.dtype, exact[0]
        scaled = error / spacing(dtype, scale)
        self.elements += error.numel()
        self.abs_max = _larger(self.abs_max, largest)
        self.raw_max = _larger(self.raw_max, float((error / spacing(dtype, high)).amax()))
        self.scaled_max = _larger(self.scaled_max, float(scaled.amax()))
        self.scaled_sum += float(scaled.sum())
        stride = -(-self.total // _P99_SAMPLES)
        self.samples.append(scaled.flatten()[::stride].float())
        norm, size = torch.linalg.vector_norm(error, dim=-1), torch.linalg.vector_norm(high, dim=-1)
        worst = torch.where(norm > 0, norm / size, torch.zeros_like(norm))
        self.normwise = _larger(self.normwise, float(worst.amax()))
        return error

    def result(self) -> OutputErrors:
        samples = torch.cat(self.samples) if self.samples else torch.zeros(1)
        rank = max(1, round(0.99 * samples.numel()))
        nonfinite = self.ratio.unexpected_nonfinite
        return OutputErrors(
            output=self.ratio.output,
            elements=self.elements,
            unexpected_nonfinite=nonfinite,
            scaled_max_ulp=self.scaled_max,
            scaled_p99_ulp=float(samples.kthvalue(rank).values),
            scaled_mean_ulp=None if nonfinite else self.scaled_sum / max(self.elements, 1),
            raw_max_ulp=self.raw_max,
            max_abs=self.abs_max,
            normwise_ratio=self.normwise,
            bound_ratio=self.ratio.bound_ratio,
            vacuous_elements=self.ratio.vacuous_elements,
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


class _SummandNorms:
    """Norms over the rows of the summands of dweight and dbias, which are their scales."""

    def __init__(self, hidden: int) -> None:
        zero = torch.zeros((1, hidden), dtype=torch.float64)
        self._squares = {"dweight": zero, "dbias": zero}

    def add(self, exact: ExactRows, dy: Tensor) -> None:
        for name, terms in (("dweight", dy * exact.normalised[0]), ("dbias", dy)):
            self._squares[name] = self._squares[name] + terms.square().sum(0, keepdim=True)

    def scale(self, column: Column) -> Tensor:
        return torch.maximum(column.exact[0].abs(), self._squares[column.output].sqrt())
