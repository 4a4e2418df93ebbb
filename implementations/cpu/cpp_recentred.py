"""`c_recentred` with its node in autograd's graph in C++: no Python runs in either direction.

Where a call takes tens of microseconds, that of Python is a good part of them. The C++ includes
PyTorch's headers, which come with it, and is compiled on first use by the system's compiler within
half a minute (:mod:`implementations.cpu.build`); without one every call is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from implementations.contract import Algorithm, implementation
from implementations.cpu import calls, node, operators
from implementations.torch_private import is_seen

__all__ = ["cpp_recentred"]


@implementation(
    source="ours, as c_recentred",
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
    if is_seen(x, weight, bias):
        return operators.layer_norm(x, normalized_shape, weight, bias, eps)
    hidden = operators.elements_of_a_row(x, normalized_shape, weight, bias)
    calls.kinds(x.dtype, weight, bias)  # or it says which dtypes are not taken
    return node.layer_norm()(x, weight, bias, hidden, eps)
