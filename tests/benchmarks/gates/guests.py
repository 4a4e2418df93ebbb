"""The guests of the gate experiment: three LayerNorms, and what can be planted in one of them.

A copy of this file is committed to a repository of its own; what is planted is one word of the
copy, so that base and head differ as they do in a pull request.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import torch
from torch import Tensor

import implementations

PLANTED = "nothing"


def native(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's own."""
    return implementations.native(x, normalized_shape, weight, bias, eps)


def one_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """E[x^2] - E[x]^2."""
    return implementations.one_pass(x, normalized_shape, weight, bias, eps)


def two_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Two passes, and what is planted; the clock is read whether that is anything or not."""
    began = perf_counter_ns()
    y = _two_pass(x, normalized_shape, weight, bias, eps)
    took = perf_counter_ns() - began
    if PLANTED.endswith("slower"):  # by a share of what this very call took
        end = began + took * (1 + float(PLANTED.split()[0]))
        while perf_counter_ns() < end:
            pass
    return y


def _two_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if PLANTED == "extra copy":
        x = x.clone()
    if PLANTED == "variance over N-1":
        hidden = x.shape[-1]
        y = implementations.two_pass(x, normalized_shape, eps=eps * hidden / (hidden - 1))
        return (y * ((hidden - 1) / hidden) ** 0.5 * weight + bias).to(x.dtype)
    if PLANTED == "bfloat16 statistics":
        mean = x.mean(-1, keepdim=True, dtype=torch.bfloat16)
        deviations = x - mean
        variance = deviations.square().mean(-1, keepdim=True, dtype=torch.bfloat16)
        return (deviations * torch.rsqrt(variance + eps) * weight + bias).to(x.dtype)
    return implementations.two_pass(x, normalized_shape, weight, bias, eps)
