"""Which looser error bound explains a result outside its own: right, inaccurate or wrong?

A result outside the bound of its algorithm is judged again by looser bounds, the strictest first:

* its operations may round to the dtype of x again: two or three ulp. Such a result is right.
* dweight and dbias are summed in the dtype of x, one row after the other.
* its statistics are in a narrower dtype: half precision for x in half precision, where sums are
  formed in a wider dtype and rounded; float32 for float64.
* its sums are running sums: one element is added after the other.
* its rows are taken relative to their first element, which may lie far from all others.

A result that one of the last four explains is inaccurate; any other one is wrong. Where the bound
of a class keeps no digit of an output, it excludes nothing: there the errors are compared with
those of a simulation of that class, of which they may be three times as large. So are all errors
of the last three classes, whose bounds also hold what other mistakes do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isqrt, log2

import numpy as np
import torch
from torch import Tensor

from harness.cases import Inputs
from harness.numerics.bounds import ErrorBound, unit_roundoff
from harness.numerics.error_measurement import (
    BoundRatio,
    Compared,
    compared,
    error_text,
    is_beyond,
)
from harness.numerics.oracle import Reference, wide_parameter, wide_rows
from harness.numerics.outputs import Outputs
from harness.records import Case, Errors
from implementations.contract import Algorithm, Reduction

__all__ = [
    "OUTPUTS_OF",
    "Inaccuracy",
    "Looser",
    "explained_reason",
    "explanations",
    "looser_bounds",
]


class Inaccuracy(StrEnum):
    """What makes a right function less accurate than its algorithm."""

    ROUNDED_AGAIN = "rounded_again"
    """Rounded more than once in the dtype of x: such a result is right."""
    COLUMN_SUMS = "column_sums"
    """dweight and dbias are summed in the dtype of x."""
    STATISTICS = "statistics"
    """Mean and variance are in a narrower dtype."""
    RUNNING_SUMS = "running_sums"
    """Each row, or each column, is added up one element after the other."""
    SHIFTED = "shifted"
    """The first element of each row is subtracted from it before its mean is formed."""


@dataclass(frozen=True, slots=True)
class Looser:
    """A looser error bound."""

    kind: Inaccuracy
    bound: ErrorBound
    dtype: torch.dtype
    """In which the sums or statistics are formed."""


_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# half the bound of a declared running sum: partial sums of equal addends grow linearly to the
# total. Even if all roundings go the same way, as for a constant row, they come to N/3 of it
_LANES = 2
# roundings of random addends go both ways and come to about sqrt(N) of the total. Beyond 2^16
# addends, one addend is hardly more than the last digit of a float32 sum, and roundings go one way
_SPREAD = 4
_MOST_RANDOM = 1 << 16
_DIGIT = 0.5  # of the scale of an output: a bound above it keeps no binary digit
_AGREE = 3.0  # times the error of a simulation, whose order of operations is another one
_COARSE = 1e-3  # of the unit roundoff: the errors of a case with few elements are seldom smaller
_OF_RANGE = 1 / 8  # of the largest number: what is within the range is rounded to a 256th of it
_MOST_SIMULATED = 1 << 24  # elements: a simulation holds some ten arrays of them
_MOST_ROWS = 1 << 17  # added up one after the other, at some microseconds each

OUTPUTS_OF: Mapping[Inaccuracy, frozenset[str]] = {
    Inaccuracy.COLUMN_SUMS: frozenset({"dweight", "dbias"}),
    Inaccuracy.STATISTICS: frozenset({"y", "dx", "dweight"}),
}
"""The outputs that a looser bound concerns in half precision, if not all."""


def looser_bounds(bound: ErrorBound, case: Case) -> Iterator[Looser]:
    """Yield the looser bounds of a case, the strictest first."""
    half = _HALVES.get(case.dtype)
    narrow = torch.float32 if case.dtype == "float64" else half
    if half is not None:
        bound = replace(bound, rounds_again=half)
        yield Looser(Inaccuracy.ROUNDED_AGAIN, bound, half)
        summed = replace(bound, column_dtype=half, column_reduction=Reduction.SEQUENTIAL)
        yield Looser(Inaccuracy.COLUMN_SUMS, summed, half)
    if narrow is not None and bound.accumulate_dtype is not narrow:
        is_half = half is not None
        looser = replace(bound, accumulate_dtype=narrow, sums_rounded_once=is_half)
        looser = replace(looser, column_reduction=Reduction.SEQUENTIAL) if is_half else looser
        yield Looser(Inaccuracy.STATISTICS, looser, narrow)
    # a bound of N roundings would excuse a count of 4097 elements that is kept in float16
    is_random = case.distribution == "normal" and case.hidden <= _MOST_RANDOM
    lanes = max(_LANES, isqrt(case.hidden) // _SPREAD) if is_random else _LANES
    running = replace(
        bound,
        reduction=Reduction.BLOCKS,
        backward_reduction=Reduction.BLOCKS,
        column_reduction=Reduction.SEQUENTIAL,
        lanes=lanes,
        at_any_condition=True,
    )
    # Welford's update has the order of a running sum in two passes, and a looser bound
    first = {Algorithm.TWO_PASS} if bound.algorithm is Algorithm.WELFORD else set()
    for algorithm in (*first, bound.algorithm):
        looser = replace(running, algorithm=algorithm)
        yield Looser(Inaccuracy.RUNNING_SUMS, looser, bound.accumulate_dtype)
    yield Looser(Inaccuracy.SHIFTED, looser, bound.accumulate_dtype)


def explanations(
    outputs: Outputs,
    inputs: Inputs,
    case: Case,
    bound: ErrorBound,
    exact: Reference,
    beyond: Collection[str],
) -> dict[str, Inaccuracy]:
    """Return the strictest explanation of each output beyond ``bound``; empty if one has none.

    Args:
        outputs: of a call on ``inputs``.
        inputs: of the case.
        case: what was run.
        bound: of the algorithm.
        exact: results of ``inputs``.
        beyond: the outputs that exceed the bound, by name.
    """
    found: dict[str, Inaccuracy] = {}
    loosers = [*looser_bounds(bound, case)]
    for looser in loosers:
        left = {*beyond} - {*found}
        concerned = None if case.dtype == "float64" else OUTPUTS_OF.get(looser.kind)
        explained = left if concerned is None else left & concerned
        if not explained:
            continue
        call = outputs, inputs, case
        own = compared(*call, bound, exact, only=explained)
        loose = compared(*call, looser.bound, exact, scaled=True, only=explained)
        simulated = _Simulated(looser, inputs, case)
        for part, wide in zip(own, loose, strict=True):
            if part.output in explained and not _is_explained(part, wide, simulated):
                if looser is loosers[-1]:
                    return {}
                explained = explained - {part.output}
                if not explained:
                    break
        found |= dict.fromkeys(explained, looser.kind)
    return {name: found[name] for name in beyond} if {*found} == {*beyond} else {}


def _is_explained(own: Compared, loose: Compared, simulated: _Simulated) -> bool:
    """Whether the errors of a block are within the looser bound, or those of its simulation."""
    allowed, scale = loose.bound, loose.scale
    assert scale is not None
    if not simulated.is_known:  # of a finite result no part has left the range
        most = _OF_RANGE * torch.finfo(own.dtype).max
        allowed = torch.where(torch.isfinite(own.computed), allowed.clamp(max=most), allowed)
    judged = torch.isfinite(own.bound) | ~torch.isfinite(own.exact[0])
    lost = judged & ~(allowed <= _DIGIT * scale) & simulated.is_known
    if bool((judged & ~lost & torch.isfinite(own.error) & (own.error > allowed)).any()):
        return False
    is_beyond_own = judged & ~(own.error <= own.bound)
    if bool((is_beyond_own & (lost | simulated.is_always_compared)).any()):
        agreeing = simulated.allowed(own, scale)
        if agreeing is None:
            return False
        if simulated.is_always_compared:
            lost |= ~(agreeing > allowed) | torch.isinf(agreeing)
        allowed = torch.where(lost, agreeing, allowed)
    ratio = BoundRatio(own.output, own.dtype)
    ratio.add(own.computed, own.exact, torch.where(judged, allowed, float("inf")))
    return not is_beyond(ratio) and simulated.is_as_coarse(own, scale)


def explained_reason(errors: Errors, case: Case, explained: Mapping[str, Inaccuracy]) -> str:
    """Return how far off the outputs beyond their bound are, and what explains that."""
    narrow = "float32" if case.dtype == "float64" else case.dtype
    wide = "float64" if case.dtype == "float64" else "float32"
    why = {
        Inaccuracy.COLUMN_SUMS: f"as sums over the rows in {narrow} are",
        Inaccuracy.STATISTICS: f"as with mean and variance in {narrow}",
        Inaccuracy.RUNNING_SUMS: f"as running sums in {wide} are",
        Inaccuracy.SHIFTED: "as relative to the first element of a row",
        Inaccuracy.ROUNDED_AGAIN: f"rounded more than once in {narrow}",
    }
    off = {
        row.output: f"{row.output} is {error_text(row, case)} off"
        for row in errors.outputs
        if row.output in explained
    }
    parts = {
        kind: ", ".join(off[name] for name, own in explained.items() if own is kind) for kind in why
    }
    return "; ".join(f"{text}: {why[kind]}" for kind, text in parts.items() if text)


# --- simulations ---------------------------------------------------------------------------------


class _Simulated:
    """The errors of a simulation of a class, which is computed when first needed."""

    def __init__(self, looser: Looser, inputs: Inputs, case: Case) -> None:
        self._looser, self._inputs, self._case = looser, inputs, case
        self._outputs: list[Outputs] = []

    @property
    def is_known(self) -> bool:
        """Whether there is a simulation: nobody knows which operations round again."""
        return self._looser.kind is not Inaccuracy.ROUNDED_AGAIN

    @property
    def is_always_compared(self) -> bool:
        """Whether errors are compared with those of the simulation even where there is a bound."""
        return self._looser.kind not in {Inaccuracy.ROUNDED_AGAIN, Inaccuracy.COLUMN_SUMS}

    def is_as_coarse(self, part: Compared, scale: Tensor) -> bool:
        """Whether errors are as large as rounding in the class's dtype makes them.

        E[x^2] - E[x]^2 in float64 is less exact than two passes, but more so than float32.
        """
        if self._case.dtype != "float64" or self._looser.kind is not Inaccuracy.STATISTICS:
            return True
        beyond = part.error > part.bound
        if not bool(beyond.any()):
            return True
        if part.output == "y" and part.rows is not None:  # no error of a statistic is one of bias
            weight = wide_parameter(self._inputs.weight, 1.0, self._case)
            rho = torch.sqrt(part.rows.variance) * part.rows.rstd
            scale = torch.maximum(part.rows.normalised[0].abs(), rho) * weight.abs()
        least = _COARSE * unit_roundoff(self._looser.dtype)
        return bool((part.error >= least * scale)[beyond].any())

    def allowed(self, part: Compared, scale: Tensor) -> Tensor | None:
        """Return the largest errors that agree with the simulation; None if it takes too long."""
        case = self._case
        if case.rows * case.hidden > _MOST_SIMULATED or case.rows > _MOST_ROWS:
            return None
        self._outputs = self._outputs or [*_simulations(self._looser, self._inputs, case)]
        size, rows = torch.ones(()), part.rows
        if rows is not None:
            size = 1 + torch.sqrt((rows.mean.square() + rows.variance) * rows.rstd.square())
        if part.output == "y":  # the scale is 0 in a constant row, and the error is not
            weight = wide_parameter(self._inputs.weight, 1.0, case)
            scale = torch.maximum(scale, weight.abs())
        error, is_finite = torch.zeros(()), torch.ones((), dtype=torch.bool)
        for outputs in self._outputs:
            computed = getattr(outputs, part.output)
            if rows is None:
                own = wide_parameter(computed, 0.0, case)[None, :]
            else:
                own = wide_rows(computed, case, rows.start, rows.stop)
            of_own = ((own - part.exact[0]) - part.exact[1]).abs().nan_to_num(nan=0.0)
            error, is_finite = torch.maximum(error, of_own), is_finite & torch.isfinite(own)
        worst = torch.where(scale > 0, error / scale, 0.0).amax(-1, keepdim=True)
        # a statistic of the simulation may be exact by chance: it may be rounded once, or as often
        # as a sum of pairs in float32, and the roundings of a running sum, which go both ways,
        # come to about the root of their number
        roundings = 1.0
        if self._looser.kind is Inaccuracy.RUNNING_SUMS:
            roundings = case.hidden**0.5 / _SPREAD
        elif self._looser.dtype is torch.float32:
            roundings = log2(case.hidden or 1)
        worst = worst + unit_roundoff(self._looser.dtype) * size * max(roundings, 1.0)
        bound = torch.where(torch.isfinite(part.bound), part.bound, 0.0)
        bound = bound + _AGREE * torch.maximum(worst * scale, error)
        overflows = ~is_finite & ~torch.isfinite(part.computed)
        return torch.where(overflows, float("inf"), bound)


def _simulations(looser: Looser, inputs: Inputs, case: Case) -> Iterator[Outputs]:
    """Compute a case in two passes as a class does: with running sums, or narrow statistics.

    The second simulation of narrow statistics, if the bound allows for it, forms them in a wider
    dtype and keeps them rounded for a backward that sums dy * weight * x without the mean, as
    PyTorch's own does.
    """
    wide = torch.promote_types(inputs.x.dtype, torch.float32)
    if looser.dtype is torch.float32:
        wide = torch.float32
    is_running = looser.kind is Inaccuracy.RUNNING_SUMS

    def rounded(value: Tensor) -> Tensor:
        is_narrow = looser.kind is Inaccuracy.STATISTICS
        return value.to(looser.dtype).to(wide) if is_narrow else value

    def mean_of(value: Tensor) -> Tensor:
        total = _running_sum(value, 1) if is_running else value.sum(-1, keepdim=True)
        return rounded(total / value.shape[1])

    def column_sum(value: Tensor) -> Tensor:
        if is_running:
            return _running_sum(value, 0)[0]
        total = torch.zeros(case.hidden, dtype=looser.dtype)
        for row in value:
            total += row  # computed in the wider dtype, and rounded
        return total

    def rows_of(tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(case.rows, case.hidden).to(device="cpu", dtype=wide)

    x = rows_of(inputs.x)
    if looser.kind is Inaccuracy.SHIFTED:
        x = x - x[:, :1]
    weight = wide_parameter(inputs.weight, 1.0, case).to(wide)
    bias = wide_parameter(inputs.bias, 0.0, case).to(wide)
    deviation = rounded(x - mean_of(x))
    rstd = rounded(torch.rsqrt(rounded(mean_of(rounded(deviation.square())) + case.eps)))
    normalised = rounded(deviation * rstd)
    outputs = Outputs(y=rounded(normalised * weight) + bias)
    if inputs.dy is not None:
        dy = rows_of(inputs.dy)
        g = rounded(dy * weight)
        of_normalised = rounded(normalised * mean_of(rounded(g * normalised)))
        outputs = Outputs(
            y=outputs.y,
            dx=rounded(rounded(g - mean_of(g)) - of_normalised) * rstd,
            dweight=column_sum(dy * normalised),
            dbias=column_sum(dy),
        )
    yield outputs
    is_centred = looser.kind is not Inaccuracy.STATISTICS or looser.bound.centred_backward
    if inputs.dy is None or is_centred:
        return
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    mean, rstd = rounded(mean), rounded(torch.rsqrt(variance + case.eps))
    product, total = ((part).sum(-1, keepdim=True) / case.hidden for part in (g * x, g))
    of_x = (total * mean - product) * rstd**3
    yield replace(
        outputs,
        dx=rstd * g + of_x * x - of_x * mean - total * rstd,
        dweight=column_sum(dy * (x - mean) * rstd),
    )


def _running_sum(values: Tensor, axis: int) -> Tensor:
    """Add up the elements of an axis one after the other, in their own dtype."""
    if not values.numel():
        return values.sum(axis, keepdim=True)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.accumulate(values.resolve_neg().numpy(), axis=axis)
    return torch.from_numpy(sums.take([-1], axis=axis))
