"""NVIDIA apex's fused LayerNorm in CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import Algorithm, Reduction, UnsupportedError
from implementations.peers.package import Package
from implementations.peers.support import CUDA, Support, peer

__all__ = ["PACKAGE", "apex"]

PACKAGE = Package(
    "apex",  # a different package has this name on PyPI; it has no apex.normalization
    ("apex",),
    "build it with its CUDA extensions, as described at https://github.com/NVIDIA/apex",
)
SUPPORT = Support(
    package=PACKAGE,
    dtypes=frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64}),
    devices=CUDA,
    params_like_x=True,  # with mixed dtypes, y would have the dtype of the parameters
)


@peer(
    SUPPORT,
    source="https://github.com/NVIDIA/apex, csrc/layer_norm_cuda_kernel.cu",
    algorithm=Algorithm.WELFORD,
    reduction=Reduction.BLOCKS,
    column_reduction=Reduction.BLOCKS,
    lanes=16,  # partial sums over the rows; a row has more, at least those of a warp
)
def apex(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """apex: fused_layer_norm_affine, or fused_layer_norm; Welford over a row, float32 or wider."""
    SUPPORT.check(x, normalized_shape, weight, bias)
    fused = PACKAGE.load(
        "apex.normalization.fused_layer_norm", "fused_layer_norm", "fused_layer_norm_affine"
    )
    PACKAGE.load("fused_layer_norm_cuda")  # apex itself imports it by the first call
    shape = torch.Size(normalized_shape)
    if weight is not None and bias is not None:
        y: Tensor = fused.fused_layer_norm_affine(x, weight, bias, shape, eps)
        return y
    if weight is not None or bias is not None:
        raise UnsupportedError("apex takes a weight and a bias, or neither")
    plain: Tensor = fused.fused_layer_norm(x, shape, eps)
    return plain
