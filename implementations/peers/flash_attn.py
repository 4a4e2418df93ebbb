"""flash-attention's LayerNorm in Triton, without residual and dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import Algorithm, Reduction
from implementations.peers.package import Package
from implementations.peers.support import CUDA, Support, peer

__all__ = ["PACKAGE", "flash_attn"]

PACKAGE = Package("flash_attn", ("flash-attn",), "pip install flash-attn --no-build-isolation")
SUPPORT = Support(
    package=PACKAGE,
    dtypes=frozenset({torch.float16, torch.bfloat16, torch.float32}),
    devices=CUDA,
    needs=("weight",),
)


@peer(
    SUPPORT,
    source="https://github.com/Dao-AILab/flash-attention, flash_attn/ops/triton/layer_norm.py",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=64,  # eight running sums per multiprocessor of the smallest GPUs
)
def flash_attn(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """flash-attention: layer_norm_fn, two passes over a row in registers, float32 inside."""
    SUPPORT.check(x, normalized_shape, weight, bias)
    kernels = PACKAGE.load("flash_attn.ops.triton.layer_norm", "layer_norm_fn")
    assert weight is not None  # checked above
    rows = x.reshape(-1, weight.numel())
    shift = None if bias is None else bias.reshape(-1)
    y: Tensor = kernels.layer_norm_fn(rows, weight.reshape(-1), shift, eps=eps)
    return y.view(x.shape)
