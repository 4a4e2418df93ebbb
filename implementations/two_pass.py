"""Two passes over each row: the mean, then the mean of squared deviations from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import (
    Algorithm,
    implementation,
    scale_and_shift,
    trailing_axes,
    wide_dtype,
)

_SOURCE = "Ba, Kiros and Hinton, Layer Normalization, arXiv 1607.06450, equation 3"


def _normalise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    deviation = x - x.mean(axes, keepdim=True)
    variance = deviation.square().mean(axes, keepdim=True)
    return deviation * torch.rsqrt(variance + eps)


@implementation(source=_SOURCE, algorithm=Algorithm.TWO_PASS)
def two_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean, then mean of squared deviations, in float32 or wider."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    y = _normalise(x.to(wide_dtype(x.dtype)), axes, eps)
    return scale_and_shift(y, weight, bias).to(x.dtype)


@implementation(source=_SOURCE, algorithm=Algorithm.TWO_PASS, statistics_in_input_dtype=True)
def two_pass_input_dtype(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean, then mean of squared deviations, in x's own dtype, as tutorials write it."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    return scale_and_shift(_normalise(x, axes, eps), weight, bias).to(x.dtype)
