"""The implementations of the gate experiment: three LayerNorms, and the changes planted in them.

A copy of this file is committed to a repository of its own. One line of the copy says what is
planted and where, so that base and head differ as in a pull request.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import torch
from torch import Tensor

import implementations

PLANTED, SUBJECT = "nothing", "two_pass"


def native(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's own."""
    began = perf_counter_ns()
    y = implementations.native(x, normalized_shape, weight, bias, eps)
    _take_longer("native", began)
    return y


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
    """Mean first, then the mean of squared deviations."""
    began = perf_counter_ns()
    y = _two_pass(x, normalized_shape, weight, bias, eps)
    _take_longer("two_pass", began)
    return y


def _take_longer(implementation: str, began: int) -> None:
    """Wait for a share of what the call took so far, if that is planted; read the clock anyway."""
    took = perf_counter_ns() - began
    if implementation == SUBJECT and PLANTED.endswith("slower"):
        end = began + took * (1 + float(PLANTED.split()[0]))
        while perf_counter_ns() < end:
            pass


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
