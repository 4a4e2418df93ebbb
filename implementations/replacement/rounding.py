"""torch's LayerNorm in float64, and bounds on the rounding error of results and gradients.

The bounds hold for benign inputs: rows whose mean is of the size of their standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from implementations.contract import Param

_OPERATIONS = (
    8  # roundings per element beside the sums: centre, square, add eps, root, divide, affine
)
_MARGIN = 2.0  # a kernel's sum may have more roundings than a tree: one per block


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A LayerNorm's arguments in float64, and its result; x is (rows, hidden)."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    deviation: Tensor
    variance: Tensor
    y: Tensor

    @classmethod
    def of(
        cls, x: Tensor, normalized_shape: tuple[int, ...], weight: Param, bias: Param, eps: float
    ) -> Problem:
        """Convert arguments of any dtype; no weight counts as 1, no bias as 0."""
        rows = x.detach().double().cpu().reshape(-1, torch.Size(normalized_shape).numel())
        one, zero = torch.ones_like(rows[0]), torch.zeros_like(rows[0])
        scale = one if weight is None else weight.detach().double().cpu().flatten()
        shift = zero if bias is None else bias.detach().double().cpu().flatten()
        deviation = rows - rows.mean(-1, keepdim=True)
        variance = deviation.square().mean(-1, keepdim=True)
        return cls(
            x=rows,
            weight=scale,
            bias=shift,
            eps=eps,
            deviation=deviation,
            variance=variance,
            y=layer_norm(rows, rows.shape[1:], scale, shift, eps),
        )

    @property
    def std(self) -> Tensor:
        return (self.variance + self.eps).sqrt()

    @property
    def xhat_error(self) -> Tensor:
        """The error of each standardised element, in roundings."""
        return (self.deviation.abs() + self.x.abs().mean(-1, keepdim=True)) / self.std

    def mistaken(
        self, eps: float, normalized_shape: tuple[int, ...]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the result of each frequent mistake, with a description that continues "it"."""
        size = self.x.shape[-1]
        unbiased = self.variance * size / max(size - 1, 1)
        outside = "adds its eps outside the root"
        for mistake, divisor in (
            ("divides by N - 1 in its variance, not by N", (unbiased + eps).sqrt()),
            (outside, self.variance.sqrt() + eps),
            (f"{outside}, and divides by N - 1 in its variance", unbiased.sqrt() + eps),
        ):
            yield mistake, self.deviation / divisor * self.weight + self.bias
        if len(normalized_shape) > 1:
            last = self.x.unflatten(-1, normalized_shape)
            last = layer_norm(last, last.shape[-1:], eps=eps).flatten(-len(normalized_shape))
            yield (
                "normalises the last axis alone, with parameters over several",
                last * self.weight + self.bias,
            )


def difference(found: Tensor, exact: Tensor, allowed: Tensor) -> str | None:
    """Return how far off the worst element is; None if each is within its bound. NaN is not."""
    distance = (found.detach().double().cpu().reshape(exact.shape) - exact).abs()
    if bool((distance <= allowed).all()):
        return None
    worst = int((distance / allowed).nan_to_num(nan=torch.inf).argmax())
    if not bool(torch.isfinite(found).all()):
        return "NaN or infinite for a finite x"
    off, margin = float(distance.flatten()[worst]), float(allowed.flatten()[worst])
    return f"up to {off:.2g} off, where rounding explains {margin:.1g}"


def allowed_result(problem: Problem, dtype: torch.dtype) -> Tensor:
    """Return a bound on the error of each element of y, computed in ``dtype``.

    A sum over N elements is assumed to be a tree, with log2 N roundings. The mean's error, which is
    relative to the mean of |x|, is divided by the standard deviation as the elements are.
    """
    terms = problem.xhat_error * problem.weight.abs() + problem.bias.abs()
    return _factor(problem, dtype) * terms


def allowed_gradients(
    problem: Problem, grad_output: Tensor, dtype: torch.dtype
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return gradient and error bound of ``"x"``, ``"its weight"`` and ``"its bias"``.

    In dx = (g - mean(g) - xhat mean(g xhat)) / sigma with g = grad_output weight, each term may
    have the relative error of an element of y; so may each addend of the sums over rows.
    """
    dy = grad_output.double().cpu().reshape(problem.x.shape)
    inputs = [
        tensor.clone().requires_grad_() for tensor in (problem.x, problem.weight, problem.bias)
    ]
    y = layer_norm(inputs[0], problem.x.shape[1:], inputs[1], inputs[2], problem.eps)
    dx, dweight, dbias = torch.autograd.grad(y, inputs, dy)
    xhat = problem.xhat_error
    g = (dy * problem.weight).abs()
    terms = g + g.mean(-1, keepdim=True) + 2 * xhat * (g * xhat).mean(-1, keepdim=True)
    factor = _factor(problem, dtype)
    return {
        "x": (dx, factor * terms / problem.std),
        "its weight": (dweight, factor * (dy.abs() * xhat).sum(0)),
        "its bias": (dbias, factor * dy.abs().sum(0)),
    }


def _factor(problem: Problem, dtype: torch.dtype) -> float:
    roundings = log2(max(problem.x.shape[-1], problem.x.shape[0])) + _OPERATIONS
    # a module in float64 may compute in float32 internally
    unit = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) / 2
    return _MARGIN * roundings * unit
