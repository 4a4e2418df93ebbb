"""Conditions on a call that a kernel can branch on: its tensors' metadata and values, and its mode.

A compound mutant (:mod:`harness.verify.mutants.compound`) makes a mistake only where some of these
hold. The sizes are those at which kernels change path: vectors, warps, blocks, powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from harness.verify.mutants.arguments import LayerNormCall

__all__ = ["CONDITIONS", "CallCondition", "CallFacts"]

_Table = Iterable[tuple[str, str, "Callable[[CallFacts], bool]"]]

_ROWS = (1, 2, 4, 8, 32, 64, 128)  # limits of one row per warp, of a block, of a grid
_LENGTHS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # of vectors, warps and blocks
_STEPS = (2, 4, 8, 32)  # unrolled loops, 16-byte loads of float32 and of float16, warps
_ALIGNMENT = 16  # bytes of one vector load


class CallFacts:
    """What a kernel can know about a call; made of its arguments, and of dy in a backward."""

    def __init__(self, call: LayerNormCall, dy: Tensor | None = None) -> None:
        self.x, self.weight, self.bias, self.eps = call.x, call.weight, call.bias, call.eps
        self.dy = dy
        self.axes = len(tuple(call.normalized_shape))
        self.leading = self.x.dim() - self.axes
        self.rows = self.x.shape[: self.leading].numel()
        self.hidden = self.x.shape[self.leading :].numel()

    @cached_property
    def _values(self) -> Tensor:
        """The values of x, (rows, hidden) float64."""
        return self.x.detach().double().reshape(self.rows, self.hidden)

    @cached_property
    def finite(self) -> Tensor:
        """The rows of x without NaN or infinity."""
        return self._values[self._values.isfinite().all(1)]

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each finite row; exactly 0 for a constant row."""
        mean = self.finite.mean(1)
        deviation = (self.finite - mean[:, None]).square().mean(1).sqrt()
        return mean, torch.where(self.is_constant, 0.0, deviation)

    @cached_property
    def is_constant(self) -> Tensor:
        """Whether all elements of a finite row are equal, by row."""
        return (self.finite == self.finite[:, :1]).all(1)

    def has_mean_of(self, deviations: float) -> bool:
        """Whether some row's mean is at least ``deviations`` standard deviations from 0."""
        mean, deviation = self.moments
        return bool(((deviation > 0) & (mean.abs() >= deviations * deviation)).any())

    def has_variance_below(self, limit: float) -> bool:
        """Whether some row's variance is positive and below ``limit``."""
        deviation = self.moments[1]
        return bool(((deviation > 0) & (deviation.square() < limit)).any())

    def has_outlier_at(self, column: int) -> bool:
        """Whether an element of ``column`` is ten times as far from 0 as the rest of its row."""
        if self.hidden < 2 or not len(self.finite):
            return False
        sizes = self.finite.abs()
        rest = sizes[:, 1:] if column == 0 else sizes[:, :-1]
        return bool((sizes[:, column] > 10 * rest.amax(1)).any())

    @property
    def has_rows_unlike_in_scale(self) -> bool:
        """Whether the standard deviations of the rows differ by a factor of 100 or more."""
        deviation = self.moments[1]
        return len(deviation) > 1 and bool(deviation.amax() >= 100 * deviation.amin())

    @property
    def largest(self) -> float:
        """The largest absolute value of the finite rows."""
        return float(self.finite.abs().amax()) if self.finite.numel() else 0.0

    @property
    def has_nan(self) -> bool:
        return bool(self._values.isnan().any())

    @property
    def has_infinity(self) -> bool:
        return bool(self._values.isinf().any())

    @property
    def has_evenly_spaced_rows(self) -> bool:
        """Whether one stride leads from each row of x to the next."""
        try:
            self.x.detach().view(self.rows, self.hidden)
        except RuntimeError:
            return False
        return True

    @property
    def is_last_axis_dense(self) -> bool:
        return self.x.shape[-1] < 2 or self.x.stride(-1) == 1

    @property
    def is_aligned(self) -> bool:
        return self.x.data_ptr() % _ALIGNMENT == 0

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(each for each in (self.weight, self.bias) if each is not None)

    @property
    def has_other_dtypes(self) -> bool:
        return any(each.dtype != self.x.dtype for each in self.parameters)

    @property
    def has_strided_parameters(self) -> bool:
        return not all(each.is_contiguous() for each in self.parameters)

    def has_weights(self, holds: Callable[[Tensor], Any]) -> bool:
        """Whether there is a weight that ``holds``."""
        return self.weight is not None and bool(holds(self.weight.detach()))

    @property
    def requires(self) -> tuple[bool, ...]:
        """Whether x, weight and bias require gradients in this call."""
        return tuple(
            each is not None and each.requires_grad and torch.is_grad_enabled()
            for each in (self.x, self.weight, self.bias)
        )

    @property
    def requires_of_parameters_alone(self) -> bool:
        return any(self.requires[1:]) and not self.requires[0]


def _repeats(tensor: Tensor) -> bool:
    """Whether several elements share one place in memory, as in an expanded tensor."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCondition:
    """A condition on a call."""

    axis: str
    """What it is about; a trigger has at most one condition on each axis."""
    text: str
    """Such as "N > 1024"."""
    holds: Callable[[CallFacts], bool]
    reads_dy: bool = False
    """Whether it is known in the backward only, so that y cannot depend on it."""


def _thresholds(axis: str, count: Callable[[CallFacts], int], limits: Sequence[int]) -> _Table:
    for limit in limits:
        yield axis, f"{axis} > {limit}", partial(_is_above, count, limit)
        yield axis, f"{axis} <= {limit}", partial(_is_at_most, count, limit)
    for step in _STEPS:
        yield axis, f"{axis} % {step} != 0", partial(_has_rest, count, step)
        yield axis, f"{axis} % {step} == 0", partial(_has_no_rest, count, step)


def _is_above(count: Callable[[CallFacts], int], limit: int, facts: CallFacts) -> bool:
    return count(facts) > limit


def _is_at_most(count: Callable[[CallFacts], int], limit: int, facts: CallFacts) -> bool:
    return count(facts) <= limit


def _has_rest(count: Callable[[CallFacts], int], step: int, facts: CallFacts) -> bool:
    return count(facts) % step != 0


def _has_no_rest(count: Callable[[CallFacts], int], step: int, facts: CallFacts) -> bool:
    return count(facts) % step == 0


_OF_CALLS: _Table = (
    *_thresholds("rows", lambda f: f.rows, _ROWS),
    *_thresholds("N", lambda f: f.hidden, _LENGTHS),
    ("N", "N is a power of two", lambda f: f.hidden.bit_count() == 1),
    ("N", "N is not a power of two", lambda f: f.hidden.bit_count() > 1),
    ("leading axes", "no leading axis", lambda f: f.leading == 0),
    ("leading axes", "one leading axis", lambda f: f.leading == 1),
    ("leading axes", "two or more leading axes", lambda f: f.leading >= 2),
    ("leading axes", "three or more leading axes", lambda f: f.leading >= 3),
    ("normalized axes", "one normalized axis", lambda f: f.axes == 1),
    ("normalized axes", "several normalized axes", lambda f: f.axes > 1),
    ("layout", "x is contiguous", lambda f: f.x.is_contiguous()),
    ("layout", "x is not contiguous", lambda f: not f.x.is_contiguous()),
    ("layout", "the last axis of x is not dense", lambda f: not f.is_last_axis_dense),
    ("layout", "x is not aligned", lambda f: not f.is_aligned),
    ("layout", "the rows of x are not evenly spaced", lambda f: not f.has_evenly_spaced_rows),
    ("layout", "x is expanded", lambda f: _repeats(f.x)),
    ("affine", "there is a weight", lambda f: f.weight is not None),
    ("affine", "there is no weight", lambda f: f.weight is None),
    ("affine", "there is a bias", lambda f: f.bias is not None),
    ("affine", "there is no bias", lambda f: f.bias is None),
    ("affine", "there are both weight and bias", lambda f: len(f.parameters) == 2),
    ("affine", "there is a weight alone", lambda f: f.weight is not None and f.bias is None),
    ("affine", "there is a bias alone", lambda f: f.weight is None and f.bias is not None),
    ("affine", "there is neither weight nor bias", lambda f: not f.parameters),
    ("parameters", "parameters in another dtype", lambda f: f.has_other_dtypes),
    ("parameters", "all in one dtype", lambda f: not f.has_other_dtypes),
    ("parameters", "parameters are not contiguous", lambda f: f.has_strided_parameters),
    ("parameters", "no weight is positive", lambda f: f.has_weights(lambda w: (w <= 0).all())),
    ("parameters", "a weight is negative", lambda f: f.has_weights(lambda w: (w < 0).any())),
    ("eps", "eps is 0", lambda f: f.eps == 0),
    ("eps", "eps < 1e-8", lambda f: f.eps < 1e-8),
    ("eps", "eps < 1e-5", lambda f: f.eps < 1e-5),
    ("eps", "eps is 1e-5", lambda f: f.eps == 1e-5),
    ("eps", "eps is not 1e-5", lambda f: f.eps != 1e-5),
    ("eps", "eps > 1e-5", lambda f: f.eps > 1e-5),
    ("eps", "eps > 0.01", lambda f: f.eps > 0.01),
    ("autograd", "gradients are recorded", lambda f: any(f.requires)),
    ("autograd", "no gradient is recorded", lambda f: not any(f.requires)),
    ("autograd", "inference mode", lambda f: torch.is_inference_mode_enabled()),
    ("autograd", "x requires a gradient", lambda f: f.requires[0]),
    ("autograd", "parameters alone require gradients", lambda f: f.requires_of_parameters_alone),
    ("autograd", "x alone requires a gradient", lambda f: f.requires == (True, False, False)),
    ("autograd", "the weight requires a gradient", lambda f: f.requires[1]),
    ("autograd", "the bias requires a gradient", lambda f: f.requires[2]),
    ("autograd", "x is not a leaf", lambda f: not f.x.is_leaf),
    ("threads", "one thread", lambda f: torch.get_num_threads() == 1),
    ("threads", "several threads", lambda f: torch.get_num_threads() > 1),
    ("data", "|mean| >= 10 sd", lambda f: f.has_mean_of(1e1)),
    ("data", "|mean| >= 100 sd", lambda f: f.has_mean_of(1e2)),
    ("data", "|mean| >= 1000 sd", lambda f: f.has_mean_of(1e3)),
    ("data", "|mean| >= 10000 sd", lambda f: f.has_mean_of(1e4)),
    ("data", "|mean| < 10 sd", lambda f: not f.has_mean_of(1e1)),
    ("data", "variance < 1e-3", lambda f: f.has_variance_below(1e-3)),
    ("data", "variance < 1e-6", lambda f: f.has_variance_below(1e-6)),
    ("data", "variance < eps", lambda f: f.has_variance_below(f.eps)),
    ("data", "a constant row", lambda f: bool(f.is_constant.any())),
    ("data", "no constant row", lambda f: not f.is_constant.any()),
    ("data", "an outlier at the first element", lambda f: f.has_outlier_at(0)),
    ("data", "an outlier at the last element", lambda f: f.has_outlier_at(-1)),
    ("data", "rows unlike in scale", lambda f: f.has_rows_unlike_in_scale),
    ("data", "|x| > 100", lambda f: f.largest > 1e2),
    ("data", "|x| > 10000", lambda f: f.largest > 1e4),
    ("data", "|x| < 1", lambda f: f.largest < 1),
    ("data", "a NaN", lambda f: f.has_nan),
    ("data", "an infinity", lambda f: f.has_infinity),
    ("data", "all finite", lambda f: not (f.has_nan or f.has_infinity)),
    ("data", "no element is negative", lambda f: bool((f.finite >= 0).all())),
)  # fmt: skip
_OF_DY: tuple[tuple[str, Callable[[Tensor], Any]], ...] = (
    ("dy is contiguous", lambda dy: dy.is_contiguous()),
    ("dy is not contiguous", lambda dy: not dy.is_contiguous()),
    ("the last axis of dy is not dense", lambda dy: dy.shape[-1] > 1 and dy.stride(-1) != 1),
    ("dy is expanded", lambda dy: _repeats(dy)),
    ("most of dy is 0", lambda dy: 2 * int((dy == 0).sum()) > dy.numel()),
    ("no dy is 0", lambda dy: (dy != 0).all()),
    ("dy is not finite", lambda dy: not dy.isfinite().all()),
    ("dy is finite", lambda dy: dy.isfinite().all()),
    ("|dy| > 10", lambda dy: (dy.abs() > 10).any()),
    ("|dy| < 1e-3", lambda dy: (dy.abs() < 1e-3).all()),
    ("dy is the same everywhere", lambda dy: (dy == dy.flatten()[0]).all()),
)


def _in_backward(holds: Callable[[Tensor], Any], facts: CallFacts) -> bool:
    return facts.dy is not None and facts.dy.numel() > 0 and bool(holds(facts.dy))


CONDITIONS: tuple[CallCondition, ...] = (
    *(CallCondition(axis=axis, text=text, holds=holds) for axis, text, holds in _OF_CALLS),
    *(
        CallCondition(axis="dy", text=text, holds=partial(_in_backward, holds), reads_dy=True)
        for text, holds in _OF_DY
    ),
)
