"""Two passes in C for the CPU, with the residual mean removed as well.

On one core, PyTorch's own kernel is limited by its arithmetic and not by memory, which leaves time
for a second centring where a row needs one. A row whose mean is small compared to its deviations
is read once, which is as accurate (forward.h). The first call compiles the C code with the system's
compiler (:mod:`implementations.cpu.build`); without a compiler, every call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Algorithm, implementation
from implementations.cpu import calls, operators
from implementations.torch_private import is_observed, is_zero_tensor

__all__ = ["c_recentred"]


@implementation(
    source="this project; residual mean as in the corrected two-pass variance of Chan, Golub and "
    "LeVeque, Am. Stat. 37 (1983) 242-247, but removed from x too",
    algorithm=Algorithm.RECENTRED,
    devices=frozenset({"cpu"}),
)
def c_recentred(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Two-pass without a residual mean in C, compiled on first use, in float32 or wider."""
    if is_observed(x, weight, bias):
        return operators.layer_norm(x, normalized_shape, weight, bias, eps)
    hidden = operators.elements_of_a_row(x, normalized_shape, weight, bias)
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        y: Tensor = _Direct.apply(x, weight, bias, hidden, eps)  # type: ignore[no-untyped-call]
        return y
    return calls.forward(x, weight, bias, hidden, eps, False)[0]


class _Direct(torch.autograd.Function):
    """Forward and backward in C, called without the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
    ) -> Tensor:
        y, statistics = calls.forward(x, weight, bias, hidden, eps, True)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.hidden, ctx.eps = hidden, eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return operators.composed_gradients(ctx, dy)
        if dy.is_neg() or is_zero_tensor(dy):  # the C code reads memory, which lacks both
            dy = dy.clone()
        x, weight, bias, statistics = ctx.saved_tensors
        wants_dx, wants_dweight, wants_dbias, _, _ = ctx.needs_input_grad
        found = calls.backward(
            dy, x, weight, bias, statistics, ctx.hidden, wants_dx, wants_dweight, wants_dbias
        )
        return *found, None, None
