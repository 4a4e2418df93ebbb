"""Transformer Engine's LayerNorm kernels, called as its module calls them.

The module itself owns its parameters and frees saved tensors after one backward. Here, the caller
passes the parameters, and the backward can run repeatedly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Algorithm, Reduction
from implementations.peers.package import Package
from implementations.peers.support import CUDA, Support, peer

__all__ = ["PACKAGE", "transformer_engine"]

PACKAGE = Package(
    "transformer_engine",
    ("transformer-engine",),
    "pip install --no-build-isolation 'transformer-engine[pytorch]'",
)
SUPPORT = Support(
    package=PACKAGE,
    dtypes=frozenset({torch.float16, torch.bfloat16, torch.float32}),
    devices=CUDA,
    needs=("weight", "bias"),
    params_like_x=True,
)
_SM_MARGIN = 0  # multiprocessors left free for other kernels
_ZERO_CENTRED = False  # whether 1 is added to the weight


@peer(
    SUPPORT,
    source="https://github.com/NVIDIA/TransformerEngine, "
    "transformer_engine/pytorch/ops/basic/layer_norm.py",
    algorithm=Algorithm.WELFORD,  # each thread's moments in two passes, then combined
    reduction=Reduction.BLOCKS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # over the rows; a row has more, at least those of a warp
)
def transformer_engine(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Transformer Engine: layernorm_fwd and layernorm_bwd, unquantised, float32 inside."""
    SUPPORT.check(x, normalized_shape, weight, bias)
    assert weight is not None  # checked above
    assert bias is not None
    kernels, kinds = _loaded()
    rows = x.reshape(-1, weight.numel()).contiguous()
    y: Tensor = _Bound.apply(  # type: ignore[no-untyped-call]
        rows, weight.reshape(-1), bias.reshape(-1), eps, kernels, kinds[x.dtype]
    )
    return y.view(x.shape)


@cache
def _loaded() -> tuple[Any, Any]:
    """Return the kernels, and the package's names of dtypes."""
    PACKAGE.load("transformer_engine.pytorch")  # it loads the library of the kernels
    constants = PACKAGE.load("transformer_engine.pytorch.constants", "TE_DType")
    kernels = PACKAGE.load("transformer_engine_torch", "layernorm_fwd", "layernorm_bwd")
    return kernels, constants.TE_DType


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        kernels: Any,
        kind: Any,
    ) -> Tensor:
        # None, None: allocate the output, no quantizer
        y, mean, rstd = kernels.layernorm_fwd(
            x, weight, bias, eps, None, None, kind, _SM_MARGIN, _ZERO_CENTRED
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, mean, rstd, weight)
            ctx.kernels = kernels
        result: Tensor = y
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.kernels.layernorm_bwd(
            dy.contiguous(), *ctx.saved_tensors, _SM_MARGIN, _ZERO_CENTRED
        )
        return *gradients, None, None, None
