"""Liger Kernel's LayerNorm: Triton kernels with one row per program, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import Algorithm, Reduction
from implementations.peers.package import Package
from implementations.peers.support import CUDA, Support, peer

__all__ = ["PACKAGE", "liger"]

PACKAGE = Package("liger_kernel", ("liger-kernel",), "pip install liger-kernel")
SUPPORT = Support(
    package=PACKAGE,
    dtypes=frozenset({torch.float16, torch.bfloat16, torch.float32}),
    devices=CUDA,
    needs=("weight", "bias"),
)


@peer(
    SUPPORT,
    source="https://github.com/linkedin/Liger-Kernel, src/liger_kernel/ops/layer_norm.py",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # one running sum per multiprocessor of the smallest GPUs
)
def liger(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Liger Kernel: liger_layer_norm, two passes over a row in registers, float32 inside."""
    SUPPORT.check(x, normalized_shape, weight, bias)
    functional = PACKAGE.load("liger_kernel.transformers.functional", "liger_layer_norm")
    assert weight is not None  # checked above
    assert bias is not None
    rows = x.reshape(-1, weight.numel())
    y: Tensor = functional.liger_layer_norm(rows, weight.reshape(-1), bias.reshape(-1), eps)
    return y.view(x.shape)
