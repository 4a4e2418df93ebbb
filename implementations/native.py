"""PyTorch's own kernel: the reference for speed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from implementations.contract import Algorithm, Reduction, implementation


@implementation(
    source="torch.nn.functional.layer_norm",
    algorithm=Algorithm.WELFORD,  # the moments of chunks are combined in a tree
    backward_reduction=Reduction.BLOCKS,  # one running sum per lane of a vector register
    centred_backward=False,  # ds and db of layer_norm_kernel.cpp, with a weight or without
    lanes=4,  # float64 in AVX2, the narrowest vectors of its kernels
    column_reduction=Reduction.SEQUENTIAL,  # row by row into one buffer
)
def native(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.layer_norm, as installed."""
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)
