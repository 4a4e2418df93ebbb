"""Errors of each output against the exact result."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan

__all__ = ["Errors", "OutputErrors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputErrors:
    """Distance of one output from its exact value."""

    output: str
    """Which output: "y", "dx", "dweight" or "dbias"."""
    elements: int
    """Elements compared."""
    unexpected_nonfinite: int
    """Elements that are NaN or infinite where the exact value is finite."""
    scaled_max_ulp: float
    """Largest error in ulp at the scale of its row or column; 0.5 is correctly rounded."""
    scaled_p99_ulp: float
    """99th percentile of the same."""
    scaled_mean_ulp: float | None
    """Mean of the same; None where an element is not finite."""
    raw_max_ulp: float
    """Largest error in ulp of the exact element itself; unbounded near zero for good kernels."""
    max_abs: float
    """Largest absolute error."""
    normwise_ratio: float
    """Worst row's error norm over the norm of the exact row; dweight and dbias are one row."""
    bound_ratio: float | None
    """Largest error over its a-priori bound; above 1 is wrong. None where all are vacuous."""
    vacuous_elements: int
    """Elements for which the algorithm guarantees nothing, so that no bound applies."""

    @property
    def worst_ulp(self) -> float:
        """Largest scaled error; infinite if an element is not finite where it should be."""
        # scaled_max_ulp alone may be NaN, for which no comparison holds
        lost = self.unexpected_nonfinite or isnan(self.scaled_max_ulp)
        return inf if lost else self.scaled_max_ulp


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Distance from the exact result, and the conditioning of the case."""

    outputs: tuple[OutputErrors, ...]
    """One for y and, where gradients are computed, one for each gradient."""
    condition_max_ratio: float
    """Largest condition number of a row, sqrt(1 + mean^2/variance), of the inputs as stored."""
    rho_min_ratio: float
    """Smallest sqrt(variance / (variance + eps)) of a row."""
    mean_error_ratio: float | None
    """Worst error of the mean in standard deviations of its row, as y implies it."""
    rstd_error_ratio: float | None
    """Worst relative error of 1/sqrt(variance + eps), as y implies it."""
    algorithm: str
    """Algorithm class whose bound was applied."""
    reduction: str
    """Reduction shape whose bound was applied."""
    accumulate_dtype: str
    """Dtype in which the statistics are declared to be computed."""
    oracle: str
    """The exact reference: "float64_twice_centred" or "double_double"."""

    @property
    def worst(self) -> OutputErrors:
        """The output furthest from its exact value, in scaled ulp."""
        return max(self.outputs, key=lambda output: output.worst_ulp)

    @property
    def worst_ulp(self) -> float | None:
        """Scaled error of the worst output; None where there are no outputs."""
        return max((output.worst_ulp for output in self.outputs), default=None)
