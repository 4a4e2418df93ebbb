"""QuACK's LayerNorm in the CuTe DSL; its forward and backward are bound to autograd here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Algorithm, Reduction
from implementations.peers.package import Package
from implementations.peers.support import CUDA, Support, peer

__all__ = ["PACKAGE", "quack"]

PACKAGE = Package("quack", ("quack-kernels",), "pip install -U quack-kernels")
SUPPORT = Support(
    package=PACKAGE,
    dtypes=frozenset({torch.float16, torch.bfloat16, torch.float32}),
    devices=CUDA,
    needs=("weight",),
    param_dtype=torch.float32,
)


@peer(
    SUPPORT,
    source="https://github.com/Dao-AILab/quack, quack/rmsnorm.py",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # one running sum per multiprocessor of the smallest GPUs
)
def quack(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """QuACK: layernorm_fwd and layernorm_bwd, two passes over a row on chip, float32 inside."""
    SUPPORT.check(x, normalized_shape, weight, bias)
    assert weight is not None  # checked above
    kernels = PACKAGE.load("quack.rmsnorm", "layernorm_fwd", "layernorm_bwd")
    rows = x.reshape(-1, weight.numel()).contiguous()
    shift = None if bias is None else bias.reshape(-1).contiguous()
    y: Tensor = _Bound.apply(  # type: ignore[no-untyped-call]
        rows, weight.reshape(-1).contiguous(), shift, eps, kernels
    )
    return y.view(x.shape)


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, kernels: Any
    ) -> Tensor:
        y: Tensor
        if not any(ctx.needs_input_grad):
            y = kernels.layernorm_fwd(x, weight, bias, eps)
            return y
        y, rstd, mean = kernels.layernorm_fwd(
            x, weight, bias, eps, return_rstd=True, return_mean=True
        )
        ctx.save_for_backward(x, weight, rstd, mean)
        ctx.has_bias, ctx.kernels = bias is not None, kernels
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd, mean = ctx.saved_tensors
        dx, dweight, dbias = ctx.kernels.layernorm_bwd(
            x, weight, dy.contiguous(), rstd, mean, has_bias=ctx.has_bias
        )
        return dx, dweight, dbias, None, None
