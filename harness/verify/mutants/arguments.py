"""The arguments of a LayerNorm in the two forms in which mutants are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps

import torch
from torch import Tensor

from implementations.contract import LayerNormFunction, scale_and_shift, trailing_axes, wide_dtype

__all__ = ["LayerNormCall", "Rows", "layer_norm_of"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The arguments of a LayerNorm in the form that most mutants need."""

    x: Tensor
    """(rows, hidden), in float32 or wider."""
    weight: Tensor | None
    """(hidden,)"""
    bias: Tensor | None
    """(hidden,)"""
    eps: float

    @property
    def hidden(self) -> int:
        return self.x.shape[1]

    @property
    def mean(self) -> Tensor:
        return self.x.mean(-1, keepdim=True)

    @property
    def deviation(self) -> Tensor:
        return self.x - self.mean

    @property
    def variance(self) -> Tensor:
        return self.deviation.square().mean(-1, keepdim=True)

    @property
    def unbiased_variance(self) -> Tensor:
        """The variance divided by N-1 instead of N."""
        # not Tensor.var, which warns where N is 1; 0/0 is NaN all the same
        return self.deviation.square().sum(-1, keepdim=True) / (self.hidden - 1)

    @property
    def rstd(self) -> Tensor:
        return torch.rsqrt(self.variance + self.eps)

    @property
    def normalised(self) -> Tensor:
        return self.deviation * self.rstd

    @property
    def y(self) -> Tensor:
        """The right result."""
        return self.affine(self.normalised)

    def affine(self, normalised: Tensor) -> Tensor:
        """Scale by weight and shift by bias, where they are given."""
        return scale_and_shift(normalised, self.weight, self.bias)

    def normalised_by(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return y for other statistics."""
        return self.affine((self.x - mean) * torch.rsqrt(variance + self.eps))

    def with_statistics_of(self, x: Tensor) -> Tensor:
        """Return y for the statistics of other rows, or of a part of each row."""
        mean = x.mean(-1, keepdim=True)
        return self.normalised_by(mean, (x - mean).square().mean(-1, keepdim=True))


def layer_norm_of(rows_to_y: Callable[[Rows], Tensor]) -> LayerNormFunction:
    """Give a function of rows the signature of a LayerNorm, with its shapes, dtypes and checks."""

    @wraps(rows_to_y)
    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        split = x.dim() - len(trailing_axes(x, normalized_shape, weight, bias))
        rows = x.reshape(x.shape[:split].numel(), x.shape[split:].numel())
        weight, bias = (None if each is None else each.flatten() for each in (weight, bias))
        y = rows_to_y(Rows(rows.to(wide_dtype(x.dtype)), weight, bias, eps))
        return y.reshape(x.shape).to(x.dtype)

    return layer_norm


_right = layer_norm_of(lambda rows: rows.y)


@dataclass(frozen=True, slots=True)
class LayerNormCall:
    """The arguments of a LayerNorm as they were given."""

    x: Tensor
    normalized_shape: Sequence[int]
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @property
    def y(self) -> Tensor:
        """The right result."""
        return self.by(_right)

    def by(self, layer_norm: LayerNormFunction) -> Tensor:
        """Return the result of ``layer_norm``."""
        return layer_norm(self.x, self.normalized_shape, self.weight, self.bias, self.eps)
