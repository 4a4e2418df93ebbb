"""`c_recentred` with an autograd node in C++, so that no Python runs in forward and backward.

A call may take only tens of microseconds, of which Python is a considerable part. The first call
compiles the C++ code against PyTorch's headers, which takes about half a minute
(:mod:`implementations.cpu.build`); without a compiler, every call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from implementations.contract import Algorithm, implementation
from implementations.cpu import calls, node, operators
from implementations.torch_private import is_observed

__all__ = ["cpp_recentred"]


@implementation(
    source="this project, as c_recentred",
    algorithm=Algorithm.RECENTRED,
    devices=frozenset({"cpu"}),
)
def cpp_recentred(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Two-pass without a residual mean in C and C++, compiled on first use."""
    if is_observed(x, weight, bias):
        return operators.layer_norm(x, normalized_shape, weight, bias, eps)
    hidden = operators.elements_of_a_row(x, normalized_shape, weight, bias)
    calls.kinds(x.dtype, weight, bias)  # raises if a dtype is not supported
    return node.layer_norm()(x, weight, bias, hidden, eps)
