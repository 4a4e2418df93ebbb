"""Conditions on a call that a kernel can branch on: its tensors' metadata and values, and its mode.

A mutant under conditions makes a mistake only where all of them hold. The sizes are those at which
kernels change path: vectors, warps, blocks, powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import torch
from torch import Tensor

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
class CallCondition:
    """A condition on a fact of a call, in words of its own."""

    about: str
    """A trigger has at most one condition about each."""
    text: str
    """Such as "N > 1024"."""
    fact: Callable[[CallFacts], Any]
    """What it is a condition on."""
    relation: Callable[[Any, Any], Any]
    """Of the fact to the value."""
    value: Any

    @property
    def reads_dy(self) -> bool:
        """Whether it is known in the backward only, so that y cannot depend on it."""
        return self.about == "dy"

    def holds(self, facts: CallFacts) -> bool:
        """Whether a call meets it; one about dy does not hold for an empty dy."""
        is_known = not self.reads_dy or (facts.dy is not None and facts.dy.numel() > 0)
        return is_known and bool(self.relation(self.fact(facts), self.value))


def _multiple(own: int, step: int) -> bool:
    return own % step == 0


def _no_multiple(own: int, step: int) -> bool:
    return own % step != 0


Test = tuple[Callable[[Any, Any], Any], Any]
"""A relation and the value on its right."""
_YES: Test = (eq, True)
_NO: Test = (eq, False)


def _sizes(name: str, limits: Sequence[int]) -> dict[str, Test]:
    """Return the conditions on a number of rows or elements: thresholds and divisors."""
    found: dict[str, Test] = {}
    for limit in limits:
        found |= {f"{name} > {limit}": (gt, limit), f"{name} <= {limit}": (le, limit)}
    for step in _STEPS:
        found[f"{name} % {step} != 0"] = _no_multiple, step
        found[f"{name} % {step} == 0"] = _multiple, step
    return found


_Row = tuple[str, Callable[[CallFacts], Any], Mapping[str, Test]]
"""What it is about, a fact of a call, and conditions on it by their words."""
# the red team draws by position: another order draws other mutants
_TABLE: tuple[_Row, ...] = (
    ("rows", lambda f: f.rows, _sizes("rows", _ROWS)),
    ("N", lambda f: f.hidden, _sizes("N", _LENGTHS)),
    ("N", lambda f: f.hidden.bit_count() == 1,
     {"N is a power of two": _YES, "N is not a power of two": _NO}),
    ("leading axes", lambda f: f.leading_axes,
     {"no leading axis": (eq, 0), "one leading axis": (eq, 1), "two or more leading axes": (ge, 2),
      "three or more leading axes": (ge, 3)}),
    ("normalized axes", lambda f: f.normalized_axes,
     {"one normalized axis": (eq, 1), "several normalized axes": (ge, 2)}),
    ("layout", lambda f: f.x.is_contiguous(),
     {"x is contiguous": _YES, "x is not contiguous": _NO}),
    ("layout", lambda f: _is_dense(f.x), {"the last axis of x is not dense": _NO}),
    ("layout", lambda f: f.x.data_ptr() % _ALIGNMENT == 0, {"x is not aligned": _NO}),
    ("layout", lambda f: f.has_evenly_spaced_rows, {"the rows of x are not evenly spaced": _NO}),
    ("layout", lambda f: _repeats(f.x), {"x is expanded": _YES}),
    ("affine", lambda f: f.weight is not None,
     {"there is a weight": _YES, "there is no weight": _NO}),
    ("affine", lambda f: f.bias is not None, {"there is a bias": _YES, "there is no bias": _NO}),
    ("affine", lambda f: (f.weight is not None, f.bias is not None),
     {"there are both weight and bias": (eq, (True, True)),
      "there is a weight alone": (eq, (True, False)), "there is a bias alone": (eq, (False, True)),
      "there is neither weight nor bias": (eq, (False, False))}),
    ("parameters", lambda f: all(p.dtype == f.x.dtype for p in f.parameters),
     {"parameters in another dtype": _NO, "all in one dtype": _YES}),
    ("parameters", lambda f: all(p.is_contiguous() for p in f.parameters),
     {"parameters are not contiguous": _NO}),
    ("parameters", lambda f: f.has_weights(lambda w: (w <= 0).all()),
     {"no weight is positive": _YES}),
    ("parameters", lambda f: f.has_weights(lambda w: (w < 0).any()),
     {"a weight is negative": _YES}),
    ("eps", lambda f: f.eps,
     {"eps is 0": (eq, 0), "eps < 1e-8": (lt, 1e-8), "eps < 1e-5": (lt, 1e-5),
      "eps is 1e-5": (eq, 1e-5), "eps is not 1e-5": (ne, 1e-5),
      "eps > 1e-5": (gt, 1e-5), "eps > 0.01": (gt, 0.01)}),
    ("autograd", lambda f: any(f.requires),
     {"gradients are recorded": _YES, "no gradient is recorded": _NO}),
    ("autograd", lambda f: torch.is_inference_mode_enabled(), {"inference mode": _YES}),
    ("autograd", lambda f: f.requires[0], {"x requires a gradient": _YES}),
    ("autograd", lambda f: any(f.requires[1:]) and not f.requires[0],
     {"parameters alone require gradients": _YES}),
    ("autograd", lambda f: f.requires, {"x alone requires a gradient": (eq, (True, False, False))}),
    ("autograd", lambda f: f.requires[1], {"the weight requires a gradient": _YES}),
    ("autograd", lambda f: f.requires[2], {"the bias requires a gradient": _YES}),
    ("autograd", lambda f: f.x.is_leaf, {"x is not a leaf": _NO}),
    ("threads", lambda f: torch.get_num_threads(),
     {"one thread": (eq, 1), "several threads": (ge, 2)}),
    ("data", lambda f: f.offset_ratio,
     {"|mean| >= 10 sd": (ge, 1e1), "|mean| >= 100 sd": (ge, 1e2), "|mean| >= 1000 sd": (ge, 1e3),
      "|mean| >= 10000 sd": (ge, 1e4), "|mean| < 10 sd": (lt, 1e1)}),
    ("data", lambda f: f.least_variance,
     {"variance < 1e-3": (lt, 1e-3), "variance < 1e-6": (lt, 1e-6)}),
    ("data", lambda f: f.least_variance < f.eps, {"variance < eps": _YES}),
    ("data", lambda f: f.is_constant.any(), {"a constant row": _YES, "no constant row": _NO}),
    ("data", lambda f: f.has_outlier_at(0), {"an outlier at the first element": _YES}),
    ("data", lambda f: f.has_outlier_at(-1), {"an outlier at the last element": _YES}),
    ("data", lambda f: f.has_rows_unlike_in_scale, {"rows unlike in scale": _YES}),
    ("data", lambda f: _largest(f.finite.abs()),
     {"|x| > 100": (gt, 1e2), "|x| > 10000": (gt, 1e4), "|x| < 1": (lt, 1)}),
    ("data", lambda f: f.values.isnan().any(), {"a NaN": _YES}),
    ("data", lambda f: f.values.isinf().any(), {"an infinity": _YES}),
    ("data", lambda f: f.values.isfinite().all(), {"all finite": _YES}),
    ("data", lambda f: (f.finite < 0).any(), {"no element is negative": _NO}),
    ("dy", lambda f: f.dy.is_contiguous(), {"dy is contiguous": _YES, "dy is not contiguous": _NO}),
    ("dy", lambda f: _is_dense(f.dy), {"the last axis of dy is not dense": _NO}),
    ("dy", lambda f: _repeats(f.dy), {"dy is expanded": _YES}),
    ("dy", lambda f: 2 * int((f.dy == 0).sum()) > f.dy.numel(), {"most of dy is 0": _YES}),
    ("dy", lambda f: (f.dy == 0).any(), {"no dy is 0": _NO}),
    ("dy", lambda f: f.dy.isfinite().all(), {"dy is not finite": _NO, "dy is finite": _YES}),
    ("dy", lambda f: (f.dy.abs() > 10).any(), {"|dy| > 10": _YES}),
    ("dy", lambda f: (f.dy.abs() < 1e-3).all(), {"|dy| < 1e-3": _YES}),
    ("dy", lambda f: (f.dy == f.dy.flatten()[0]).all(), {"dy is the same everywhere": _YES}),
    # of single mutants alone: no trigger is drawn from these
    ("", lambda f: torch.is_grad_enabled(), {"no gradient mode": _NO}),
    ("", lambda f: f.rows, {"rows > 31": (gt, 31)}),
    ("", lambda f: f.hidden, {"N is 2048": (eq, 2048), "N is 1": (eq, 1)}),
    ("", lambda f: f.x.shape[0], {"the first axis > 128": (gt, 128)}),
    ("", lambda f: f.x.shape[-1],
     {"the last axis > 1024": (gt, 1024), "the last axis % 4 == 0": (_multiple, 4),
      "the last axis % 4 != 0": (_no_multiple, 4), "the last axis % 64 == 0": (_multiple, 64)}),
    ("", lambda f: f.x.dim(), {"x has three axes": (eq, 3)}),
    ("", lambda f: _is_transposed_square(f.x) and f.normalized_axes == 1,
     {"x is a transposed square": _YES}),
    ("", lambda f: not f.x.requires_grad, {"x is frozen": _YES}),
    ("", lambda f: f.weight is not None and not f.weight.requires_grad,
     {"the weight is frozen": _YES}),
    ("", lambda f: f.has_weights(lambda w: (w == 1).all()), {"every weight is 1": _YES}),
    ("", lambda f: f.has_weights(lambda w: (w.flatten()[:1] == 1).all()),
     {"the first weight is 1": _YES}),
    ("", lambda f: f.has_weights(lambda w: torch.allclose(w, torch.ones_like(w))),
     {"every weight is almost 1": _YES}),
    ("", lambda f: any(p.dtype is torch.bfloat16 for p in f.parameters),
     {"a parameter is bfloat16": _YES}),
    ("", lambda f: _largest(f.finite.abs()), {"|x| > 100000": (gt, 1e5)}),
    ("", lambda f: f.eps, {"eps < 1e-6": (lt, 1e-6)}),
    ("", lambda f: torch.get_default_dtype(),
     {"the default dtype is float16": (eq, torch.float16)}),
    ("", lambda f: torch.are_deterministic_algorithms_enabled(), {"deterministic mode": _YES}),
)  # fmt: skip
_BY_TEXT = {
    text: CallCondition(about=about, text=text, fact=fact, relation=relation, value=value)
    for about, fact, conditions in _TABLE
    for text, (relation, value) in conditions.items()
}
CONDITIONS: tuple[CallCondition, ...] = tuple(part for part in _BY_TEXT.values() if part.about)
"""The conditions that triggers are drawn from."""


def conditions_of(*texts: str) -> tuple[CallCondition, ...]:
    """Return the conditions with these texts."""
    return tuple(_BY_TEXT[text] for text in texts)
