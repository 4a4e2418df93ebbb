"""Conditions on a call that a kernel can branch on: its tensors' metadata and values, and its mode.

A mutant under conditions makes a mistake only where all of them hold. The sizes are those at which
kernels change path: vectors, warps, blocks, powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nextafter
from typing import Any

import torch
from torch import Tensor

from harness.cases import Condition, Relation
from harness.mutants.arguments import LayerNormCall
from implementations.contract import requires_gradient

_ROWS = (1, 2, 4, 8, 32, 64, 128)  # limits of one row per warp, of a block, of a grid
_LENGTHS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # of vectors, warps and blocks
_STEPS = (2, 4, 8, 32)  # unrolled loops, 16-byte loads of float32 and of float16, warps
_ALIGNMENT = 16  # bytes of one vector load


class CallFacts:
    """What a kernel can know about a call; made of its arguments, and of dy in a backward."""

    def __init__(self, call: LayerNormCall, dy: Tensor | None = None) -> None:
        self.x, self.weight, self.bias, self.eps = call.x, call.weight, call.bias, call.eps
        self.dy: Any = dy  # known to conditions of the backward alone
        self.normalized_axes = len(tuple(call.normalized_shape))
        self.leading_axes = self.x.dim() - self.normalized_axes
        self.rows = self.x.shape[: self.leading_axes].numel()
        self.hidden = self.x.shape[self.leading_axes :].numel()
        self.parameters = [tensor for tensor in (self.weight, self.bias) if tensor is not None]
        self.requires = tuple(map(requires_gradient, (self.x, self.weight, self.bias)))
        """Whether x, weight and bias require gradients in this call."""

    @cached_property
    def values(self) -> Tensor:
        """The values of x, (rows, hidden) float64."""
        return self.x.detach().double().reshape(self.rows, self.hidden)

    @cached_property
    def finite(self) -> Tensor:
        """The rows of x without NaN or infinity."""
        return self.values[self.values.isfinite().all(1)]

    @cached_property
    def is_constant(self) -> Tensor:
        """Whether all elements of a finite row are equal, by row."""
        return (self.finite == self.finite[:, :1]).all(1)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each finite row; exactly 0 for a constant row."""
        mean = self.finite.mean(1)
        deviation = (self.finite - mean[:, None]).square().mean(1).sqrt()
        return mean, torch.where(self.is_constant, 0.0, deviation)

    @property
    def offset_ratio(self) -> float:
        """The largest |mean| of a row over its standard deviation; 0 if all are constant."""
        mean, deviation = self.moments
        return _largest(mean.abs()[deviation > 0] / deviation[deviation > 0])

    @property
    def least_variance(self) -> float:
        """The smallest variance of a row that is not constant; infinite if all are."""
        deviation = self.moments[1]
        variances = deviation[deviation > 0].square()
        return float(variances.amin()) if len(variances) else inf

    @property
    def has_evenly_spaced_rows(self) -> bool:
        """Whether one stride leads from each row of x to the next."""
        try:
            self.x.detach().view(self.rows, self.hidden)
        except RuntimeError:
            return False
        return True

    @property
    def has_rows_unlike_in_scale(self) -> bool:
        """Whether the standard deviations of the rows differ by a factor of 100 or more."""
        deviation = self.moments[1]
        return len(deviation) > 1 and bool(deviation.amax() >= 100 * deviation.amin())

    def has_weights(self, holds: Callable[[Tensor], Any]) -> bool:
        """Whether there is a weight that ``holds``."""
        return self.weight is not None and bool(holds(self.weight.detach()))

    def has_outlier_at(self, column: int) -> bool:
        """Whether an element of ``column`` is ten times as far from 0 as the rest of its row."""
        sizes = self.finite.abs()
        rest = sizes[:, 1:] if column == 0 else sizes[:, :-1]
        return self.hidden > 1 and bool((sizes[:, column] > 10 * rest.amax(1)).any())


def _largest(values: Tensor) -> float:
    """The largest of some numbers; 0 if there are none."""
    return float(values.amax()) if values.numel() else 0.0


def _repeats(tensor: Tensor) -> bool:
    """Whether several elements share memory, as in an expanded tensor."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in steps)


def _is_transposed_square(tensor: Tensor) -> bool:
    rows = len(tensor) if tensor.dim() == 2 else 0
    return tensor.shape == (rows, rows) and tensor.stride() == (1, rows)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.shape[-1] < 2 or tensor.stride(-1) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCondition(Condition):
    """A condition on a fact of a call, in words of its own."""

    about: str
    """A trigger has at most one condition about each."""
    words: str
    """Such as "N > 1024"."""

    @property
    def text(self) -> str:
        """The condition in words."""
        return self.words

    @property
    def reads_dy(self) -> bool:
        """Whether it is known in the backward only, so that y cannot depend on it."""
        return self.about == "dy"

    def holds(self, facts: Any) -> bool:
        """Whether a call meets it; one about dy does not hold for an empty dy."""
        is_known = not self.reads_dy or (facts.dy is not None and facts.dy.numel() > 0)
        return is_known and self.holds_for(_FACTS[self.axis](facts))


Test = tuple[Relation, Any]
_YES: Test = (Relation.IS, True)
_NO: Test = (Relation.IS, False)


def _is(value: Any) -> Test:
    return Relation.IS, value


def _least(value: float) -> Test:
    return Relation.AT_LEAST, value


def _above(value: float) -> Test:
    return Relation.AT_LEAST, nextafter(value, inf)


def _below(value: float) -> Test:
    return Relation.AT_MOST, nextafter(value, -inf)


def _sizes(name: str, limits: Sequence[int]) -> dict[str, Test]:
    """Return the conditions on a number of rows or elements: thresholds and divisors."""
    found: dict[str, Test] = {}
    for limit in limits:
        found[f"{name} > {limit}"] = Relation.AT_LEAST, limit + 1
        found[f"{name} <= {limit}"] = Relation.AT_MOST, limit
    for step in _STEPS:
        found[f"{name} % {step} != 0"] = Relation.NOT_MULTIPLE, step
        found[f"{name} % {step} == 0"] = Relation.MULTIPLE, step
    return found


_Row = tuple[str, str, Callable[[CallFacts], Any], Mapping[str, Test]]
"""What it is about, the name of a fact, its value in a call, and conditions on it in words."""
# the red team draws by position: another order draws other mutants
_TABLE: tuple[_Row, ...] = (
    ("rows", "rows", lambda f: f.rows, _sizes("rows", _ROWS)),
    ("N", "hidden", lambda f: f.hidden, _sizes("N", _LENGTHS)),
    ("N", "is_power_of_two", lambda f: f.hidden.bit_count() == 1,
     {"N is a power of two": _YES, "N is not a power of two": _NO}),
    ("leading axes", "leading_axes", lambda f: f.leading_axes,
     {"no leading axis": _is(0), "one leading axis": _is(1), "two or more leading axes": _least(2),
      "three or more leading axes": _least(3)}),
    ("normalized axes", "normalized_axes", lambda f: f.normalized_axes,
     {"one normalized axis": _is(1), "several normalized axes": _least(2)}),
    ("layout", "is_contiguous", lambda f: f.x.is_contiguous(),
     {"x is contiguous": _YES, "x is not contiguous": _NO}),
    ("layout", "is_row_dense", lambda f: _is_dense(f.x), {"the last axis of x is not dense": _NO}),
    ("layout", "is_aligned", lambda f: f.x.data_ptr() % _ALIGNMENT == 0, {"x is not aligned": _NO}),
    ("layout", "has_evenly_spaced_rows", lambda f: f.has_evenly_spaced_rows,
     {"the rows of x are not evenly spaced": _NO}),
    ("layout", "is_expanded", lambda f: _repeats(f.x), {"x is expanded": _YES}),
    ("affine", "has_weight", lambda f: f.weight is not None,
     {"there is a weight": _YES, "there is no weight": _NO}),
    ("affine", "has_bias", lambda f: f.bias is not None,
     {"there is a bias": _YES, "there is no bias": _NO}),
    ("affine", "affine", lambda f: (f.weight is not None, f.bias is not None),
     {"there are both weight and bias": _is((True, True)),
      "there is a weight alone": _is((True, False)), "there is a bias alone": _is((False, True)),
      "there is neither weight nor bias": _is((False, False))}),
    ("parameters", "is_in_one_dtype", lambda f: all(p.dtype == f.x.dtype for p in f.parameters),
     {"parameters in another dtype": _NO, "all in one dtype": _YES}),
    ("parameters", "has_dense_parameters", lambda f: all(p.is_contiguous() for p in f.parameters),
     {"parameters are not contiguous": _NO}),
    ("parameters", "has_no_positive_weight", lambda f: f.has_weights(lambda w: (w <= 0).all()),
     {"no weight is positive": _YES}),
    ("parameters", "has_negative_weight", lambda f: f.has_weights(lambda w: (w < 0).any()),
     {"a weight is negative": _YES}),
    ("eps", "eps", lambda f: f.eps,
     {"eps is 0": _is(0), "eps < 1e-8": _below(1e-8), "eps < 1e-5": _below(1e-5),
      "eps is 1e-5": _is(1e-5), "eps is not 1e-5": (Relation.IS_NOT, 1e-5),
      "eps > 1e-5": _above(1e-5), "eps > 0.01": _above(0.01)}),
    ("autograd", "is_recorded", lambda f: any(f.requires),
     {"gradients are recorded": _YES, "no gradient is recorded": _NO}),
    ("autograd", "is_inference_mode", lambda f: torch.is_inference_mode_enabled(),
     {"inference mode": _YES}),
    ("autograd", "x_requires_gradient", lambda f: f.requires[0], {"x requires a gradient": _YES}),
    ("autograd", "parameters_alone_require", lambda f: any(f.requires[1:]) and not f.requires[0],
     {"parameters alone require gradients": _YES}),
    ("autograd", "requires", lambda f: f.requires,
     {"x alone requires a gradient": _is((True, False, False))}),
    ("autograd", "weight_requires_gradient", lambda f: f.requires[1],
     {"the weight requires a gradient": _YES}),
    ("autograd", "bias_requires_gradient", lambda f: f.requires[2],
     {"the bias requires a gradient": _YES}),
    ("autograd", "x_is_leaf", lambda f: f.x.is_leaf, {"x is not a leaf": _NO}),
    ("threads", "threads", lambda f: torch.get_num_threads(),
     {"one thread": _is(1), "several threads": _least(2)}),
    ("data", "offset_ratio", lambda f: f.offset_ratio,
     {"|mean| >= 10 sd": _least(1e1), "|mean| >= 100 sd": _least(1e2),
      "|mean| >= 1000 sd": _least(1e3), "|mean| >= 10000 sd": _least(1e4),
      "|mean| < 10 sd": _below(1e1)}),
    ("data", "least_variance", lambda f: f.least_variance,
     {"variance < 1e-3": _below(1e-3), "variance < 1e-6": _below(1e-6)}),
    ("data", "is_variance_below_eps", lambda f: f.least_variance < f.eps, {"variance < eps": _YES}),
    ("data", "has_constant_row", lambda f: f.is_constant.any(),
     {"a constant row": _YES, "no constant row": _NO}),
    ("data", "has_outlier_first", lambda f: f.has_outlier_at(0),
     {"an outlier at the first element": _YES}),
    ("data", "has_outlier_last", lambda f: f.has_outlier_at(-1),
     {"an outlier at the last element": _YES}),
    ("data", "has_rows_unlike_in_scale", lambda f: f.has_rows_unlike_in_scale,
     {"rows unlike in scale": _YES}),
    ("data", "largest", lambda f: _largest(f.finite.abs()),
     {"|x| > 100": _above(1e2), "|x| > 10000": _above(1e4), "|x| < 1": _below(1)}),
    ("data", "has_nan", lambda f: f.values.isnan().any(), {"a NaN": _YES}),
    ("data", "has_infinity", lambda f: f.values.isinf().any(), {"an infinity": _YES}),
    ("data", "is_finite", lambda f: f.values.isfinite().all(), {"all finite": _YES}),
    ("data", "has_negative", lambda f: (f.finite < 0).any(), {"no element is negative": _NO}),
    ("dy", "dy_is_contiguous", lambda f: f.dy.is_contiguous(),
     {"dy is contiguous": _YES, "dy is not contiguous": _NO}),
    ("dy", "dy_is_dense", lambda f: _is_dense(f.dy), {"the last axis of dy is not dense": _NO}),
    ("dy", "dy_is_expanded", lambda f: _repeats(f.dy), {"dy is expanded": _YES}),
    ("dy", "dy_is_mostly_zero", lambda f: 2 * int((f.dy == 0).sum()) > f.dy.numel(),
     {"most of dy is 0": _YES}),
    ("dy", "dy_has_zero", lambda f: (f.dy == 0).any(), {"no dy is 0": _NO}),
    ("dy", "dy_is_finite", lambda f: f.dy.isfinite().all(),
     {"dy is not finite": _NO, "dy is finite": _YES}),
    ("dy", "dy_is_large_somewhere", lambda f: (f.dy.abs() > 10).any(), {"|dy| > 10": _YES}),
    ("dy", "dy_is_small", lambda f: (f.dy.abs() < 1e-3).all(), {"|dy| < 1e-3": _YES}),
    ("dy", "dy_is_constant", lambda f: (f.dy == f.dy.flatten()[0]).all(),
     {"dy is the same everywhere": _YES}),
    # of single mutants alone: no trigger is drawn from these
    ("", "gradient_mode", lambda f: torch.is_grad_enabled(), {"no gradient mode": _NO}),
    ("", "rows", lambda f: f.rows, {"rows > 31": _least(32)}),
    ("", "hidden", lambda f: f.hidden, {"N is 2048": _is(2048), "N is 1": _is(1)}),
    ("", "first_axis", lambda f: f.x.shape[0], {"the first axis > 128": _least(129)}),
    ("", "last_axis", lambda f: f.x.shape[-1],
     {"the last axis > 1024": _least(1025), "the last axis % 4 == 0": (Relation.MULTIPLE, 4),
      "the last axis % 4 != 0": (Relation.NOT_MULTIPLE, 4),
      "the last axis % 64 == 0": (Relation.MULTIPLE, 64)}),
    ("", "axes", lambda f: f.x.dim(), {"x has three axes": _is(3)}),
    ("", "is_transposed_square", lambda f: _is_transposed_square(f.x) and f.normalized_axes == 1,
     {"x is a transposed square": _YES}),
    ("", "is_x_frozen", lambda f: not f.x.requires_grad, {"x is frozen": _YES}),
    ("", "is_weight_frozen", lambda f: f.weight is not None and not f.weight.requires_grad,
     {"the weight is frozen": _YES}),
    ("", "is_weight_of_ones", lambda f: f.has_weights(lambda w: (w == 1).all()),
     {"every weight is 1": _YES}),
    ("", "is_first_weight_1", lambda f: f.has_weights(lambda w: (w.flatten()[:1] == 1).all()),
     {"the first weight is 1": _YES}),
    ("", "is_weight_almost_of_ones",
     lambda f: f.has_weights(lambda w: torch.allclose(w, torch.ones_like(w))),
     {"every weight is almost 1": _YES}),
    ("", "has_bfloat16_parameter", lambda f: any(p.dtype is torch.bfloat16 for p in f.parameters),
     {"a parameter is bfloat16": _YES}),
    ("", "largest", lambda f: _largest(f.finite.abs()),
     {"|x| > 100000": _above(1e5)}),
    ("", "eps", lambda f: f.eps, {"eps < 1e-6": _below(1e-6)}),
    ("", "default_dtype", lambda f: torch.get_default_dtype(),
     {"the default dtype is float16": _is(torch.float16)}),
    ("", "is_deterministic", lambda f: torch.are_deterministic_algorithms_enabled(),
     {"deterministic mode": _YES}),
)  # fmt: skip
_FACTS = {fact: value for _, fact, value, _ in _TABLE}
_BY_TEXT = {
    words: CallCondition(about=about, axis=fact, relation=relation, value=value, words=words)
    for about, fact, _, conditions in _TABLE
    for words, (relation, value) in conditions.items()
}
CONDITIONS: tuple[CallCondition, ...] = tuple(part for part in _BY_TEXT.values() if part.about)
"""The conditions that triggers are drawn from."""


def conditions_of(*texts: str) -> tuple[CallCondition, ...]:
    """Return the conditions with these texts."""
    return tuple(_BY_TEXT[text] for text in texts)
