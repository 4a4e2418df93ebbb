"""One pass over each row: variance = E[x^2] - E[x]^2.

It needs half the memory traffic of :mod:`implementations.two_pass`, but the subtraction cancels if
``|mean| >> std``. Rounding can make the variance smaller than ``-eps``, and the square root is then
NaN. There is no clamp at zero, which would turn the NaN into finite garbage of up to
``1/sqrt(eps)``. This implementation is here for measurements and is not recommended.
"""

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

_SOURCE = "textbook formula; karpathy/llm.c, dev/cuda/layernorm_forward.cu, kernel 4"


def _normalise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    mean = x.mean(axes, keepdim=True)
    variance = x.square().mean(axes, keepdim=True) - mean.square()
    return (x - mean) * torch.rsqrt(variance + eps)


@implementation(source=_SOURCE, algorithm=Algorithm.ONE_PASS)
def one_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """E[x^2] - E[x]^2, with statistics in float32 or wider."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    y = _normalise(x.to(wide_dtype(x.dtype)), axes, eps)
    return scale_and_shift(y, weight, bias).to(x.dtype)


@implementation(source=_SOURCE, algorithm=Algorithm.ONE_PASS, statistics_in_input_dtype=True)
def one_pass_input_dtype(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """E[x^2] - E[x]^2 in x's own dtype, as tutorials write it."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    return scale_and_shift(_normalise(x, axes, eps), weight, bias).to(x.dtype)
