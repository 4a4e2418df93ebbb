"""Measure computed outputs against the exact ones and their bounds, and judge them by the errors.

Errors are counted in ulp at the scale ``s`` of the row or column rather than of the element:
near zero a perfect kernel has an unbounded error in ulp of the element itself.

    y        s = max(abs(y), abs(weight) rho, abs(bias))
    dx       s = max(abs(dx), rstd rms(dy weight))
    dweight  s = max(abs(dweight), norm of dy max(abs(xhat), rho))
    dbias    s = max(abs(dbias), norm of dy)

xhat is the normalised x, rho = sqrt(variance/(variance + eps)) its standard deviation in the row,
and the norms are those of the columns.

Every comparison is written so that NaN fails it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf, isfinite

import torch
from torch import Tensor

from harness.cases import Inputs
from harness.numerics import double_double as dd
from harness.numerics.bounds import ColumnSums, ErrorBound, spacing, unit_roundoff
from harness.numerics.double_double import Pair
from harness.numerics.oracle import ExactRows, Reference, wide_parameter, wide_rows
from harness.numerics.outputs import OUTPUTS, Outputs, named_outputs
from harness.records import Case, Errors, OutputErrors, Status

_P99_SAMPLES = 1 << 16  # at most so many evenly spaced elements determine the percentile
# Above this error relative to the scale, a message gives the absolute error instead of ulp: the
# exact value is then 0 or almost 0, and its ulp is the smallest number of the dtype. For
# comparison, a result of 0 or of twice the exact value has a relative error of 1.
_NOTHING_RATIO = 1e6


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
        is right. Infinity is right where the exact value plus or minus the bound exceeds the
        largest number of the dtype.
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
            self.bound_ratio = _larger(self.bound_ratio or 0.0, float((error / bound).amax()))
            return
        bounded, defined = torch.isfinite(bound), torch.isfinite(exact)
        self.vacuous_elements += int((~bounded & defined).sum())
        # a finite value where the exact one is NaN or infinite is within no bound
        if bool(((error > 0) & ~defined).any()):
            self.bound_ratio = inf
        elif bool(bounded.any()):
            ratios = torch.where(bounded, error / bound, torch.zeros_like(error))
            self.bound_ratio = _larger(self.bound_ratio or 0.0, float(ratios.amax()))


@dataclass(frozen=True, slots=True)
class Compared:
    """A block of rows of y or dx, or the whole of dweight or dbias, float64 (rows, hidden)."""

    output: str
    dtype: torch.dtype
    """Of the output."""
    computed: Tensor
    exact: Pair
    bound: Tensor
    scale: Tensor | None
    """s, as defined above; None unless asked for."""
    rows: ExactRows | None
    """The block; None for dweight and dbias, which have one row."""

    @property
    def error(self) -> Tensor:
        """The absolute errors; NaN where an infinity is compared with itself."""
        return ((self.computed - self.exact[0]) - self.exact[1]).abs()


def compared(
    outputs: Outputs,
    inputs: Inputs,
    case: Case,
    bounds: ErrorBound,
    reference: Reference,
    *,
    scaled: bool = False,
    only: Collection[str] = OUTPUTS,
) -> Iterator[Compared]:
    """Yield each computed output beside the exact one and its bound.

    Args:
        outputs: of a call on ``inputs``.
        inputs: of the case.
        case: what was run.
        bounds: of the errors.
        reference: the exact results.
        scaled: whether to yield scales, too.
        only: the outputs to yield, by name.
    """
    weight = wide_parameter(inputs.weight, 1.0, case)
    bias = wide_parameter(inputs.bias, 0.0, case)
    bounds = bounds.in_layout(case, inputs.x, inputs.dy)
    zero = torch.zeros((1, case.hidden), dtype=torch.float64)
    totals: dict[str, Pair] = dict.fromkeys(("dweight", "dbias"), (zero, zero))
    squares, sums = dict.fromkeys(totals, zero), ColumnSums.without_rows(case.hidden)
    y, dx = outputs.y, outputs.dx
    for exact in reference:
        if "y" in only:
            computed = wide_rows(y, case, exact.start, exact.stop)
            bound = bounds.y(exact, weight, bias, case.eps, y.dtype)
            scale = _scale_of_y(exact, weight, bias, case.eps) if scaled else None
            yield Compared("y", y.dtype, computed, exact.y, bound, scale, exact)
        if inputs.dy is None:
            continue
        dy = wide_rows(inputs.dy, case, exact.start, exact.stop)
        sums += bounds.columns(exact, dy, case.eps)
        for name, total in (("dweight", exact.dweight), ("dbias", exact.dbias)):
            if total is not None:
                totals[name] = dd.add(totals[name], total)
        if scaled:
            xhat = torch.maximum(exact.normalised[0].abs(), _rho(exact, case.eps))
            for name, terms in (("dweight", dy * xhat), ("dbias", dy)):
                squares[name] = squares[name] + terms.square().sum(0, keepdim=True)
        if "dx" in only and dx is not None and exact.dx is not None:
            computed = wide_rows(dx, case, exact.start, exact.stop)
            if case.hidden == 1:  # 0 is right whatever x is, and so is NaN for NaN
                computed = torch.where(exact.dx[0].isnan() & (computed == 0), exact.dx[0], computed)
            bound = bounds.dx(exact, weight, dy, case.eps, dx.dtype)
            scale = _scale_of_dx(exact, exact.dx, weight, dy) if scaled else None
            yield Compared("dx", dx.dtype, computed, exact.dx, bound, scale, exact)
    for name, bound_of in (("dweight", bounds.dweight), ("dbias", bounds.dbias)):
        tensor: Tensor | None = getattr(outputs, name)
        if name in only and tensor is not None:
            computed = wide_parameter(tensor, 0.0, case)[None, :]
            high = totals[name][0]
            bound = bound_of(sums, case.rows, high, tensor.dtype)
            scale = torch.maximum(high.abs(), squares[name].sqrt()) if scaled else None
            yield Compared(name, tensor.dtype, computed, totals[name], bound, scale, None)


def _rho(exact: ExactRows, eps: float) -> Tensor:
    return torch.sqrt(exact.variance / (exact.variance + eps))


def _scale_of_y(exact: ExactRows, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    least = torch.maximum(weight.abs() * _rho(exact, eps), bias.abs())
    return torch.maximum(exact.y[0].abs(), least)


def _scale_of_dx(exact: ExactRows, dx: Pair, weight: Tensor, dy: Tensor) -> Tensor:
    rms = torch.linalg.vector_norm(dy * weight, dim=-1, keepdim=True) / dy.shape[1] ** 0.5
    return torch.maximum(dx[0].abs(), exact.rstd * rms)


def bound_ratios(
    outputs: Outputs, inputs: Inputs, case: Case, bounds: ErrorBound, reference: Reference
) -> tuple[BoundRatio, ...]:
    """Return each output's errors over their bounds: half the work of :func:`measure_errors`."""
    found = {name: BoundRatio(name, output.dtype) for name, output in named_outputs(outputs)}
    for part in compared(outputs, inputs, case, bounds, reference):
        found[part.output].add(part.computed, part.exact, part.bound)
    return tuple(found.values())


def measure_errors(
    outputs: Outputs, inputs: Inputs, case: Case, bounds: ErrorBound, reference: Reference
) -> Errors:
    """Compare every output with its exact value and with its bound."""
    condition_max = 1.0
    sums = {
        name: _OutputErrorSums(BoundRatio(name, output.dtype), output.numel())
        for name, output in named_outputs(outputs)
    }
    for part in compared(outputs, inputs, case, bounds, reference, scaled=True):
        sums[part.output].add(part)
        if part.output == "y" and part.rows is not None:
            condition_max = max(condition_max, _condition(part.rows))
    return Errors(
        outputs=tuple(output.result() for output in sums.values()),
        condition_max_ratio=condition_max,
        # a plain string: with the enumeration, reading a record would import torch
        algorithm=bounds.algorithm.value,
        reduction=bounds.reduction.value,
        accumulate_dtype=str(bounds.accumulate_dtype).removeprefix("torch."),
        oracle=reference.name,
    )


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

    def add(self, part: Compared) -> None:
        """Add a block of rows, with its scale."""
        error, largest = self.ratio.add(part.computed, part.exact, part.bound)
        if not error.numel() or part.scale is None:
            return
        dtype, high = part.dtype, part.exact[0]
        scaled = error / spacing(dtype, part.scale)
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


def _condition(exact: ExactRows) -> float:
    """Return the largest condition number of the rows, sqrt(1 + mean^2/variance); 1 of none."""
    mean, variance = exact.mean, exact.variance
    finite = torch.where(mean == 0, 1.0, float("inf"))
    condition = torch.where(variance > 0, torch.sqrt(1 + mean.square() / variance), finite)
    return float(condition.amax()) if condition.numel() else 1.0


# --- from errors to a status, and a reason in words ------------------------------------------


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
        f"{output.output} is {error_text(output, case)} off, {output.bound_ratio:.3g} times the "
        f"error bound of {errors.algorithm} with {errors.accumulate_dtype} statistics"
    )


def error_text(output: OutputErrors, case: Case) -> str:
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
        else f"{worst.output} is {error_text(worst, case)} off"
    )
    limit, reached = bound.condition_limit(case.hidden), errors.condition_max_ratio
    where = f"beyond condition number {limit:.3g}, and these inputs reach {reached:.3g}"
    if not reached > limit:
        where = f"where its sums or powers leave the range of {errors.accumulate_dtype}"
    return (
        f"{errors.algorithm} with {errors.accumulate_dtype} statistics has no error bound "
        f"{where}: {error}"
    )
