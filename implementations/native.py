"""PyTorch's own kernel: the reference everything else is compared with for speed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from implementations.contract import Algorithm, Reduction, implementation

__all__ = ["native"]


@implementation(
    source="torch.nn.functional.layer_norm",
    algorithm=Algorithm.WELFORD,  # chunks of vectors, their moments combined as a tree
    backward_reduction=Reduction.BLOCKS,  # one running sum for each lane of a vector register
    lanes=4,  # float64 in AVX2, the narrowest that its kernels are built for
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
