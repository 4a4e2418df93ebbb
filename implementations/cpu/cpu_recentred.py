"""Two passes in C++ for the CPU, with the residual mean removed as well.

On one core, PyTorch's own kernel is limited by its arithmetic and not by memory, which leaves time
for a second centring where a row needs one. A row whose mean is small compared to its deviations
is read once, which is as accurate (forward.h). The first call compiles the kernel with the system's
compiler (:mod:`implementations.cpu.build`); without a compiler, every call is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import Algorithm, UnsupportedError, implementation
from implementations.cpu.operators import load_operator

is_compiling = torch.compiler.is_dynamo_compiling  # looked up once: short calls pay for it


@implementation(
    source="this project; residual mean as in the corrected two-pass variance of Chan, Golub and "
    "LeVeque, Am. Stat. 37 (1983) 242-247, but removed from x too",
    algorithm=Algorithm.RECENTRED,
    devices=frozenset({"cpu"}),
)
def cpu_recentred(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Two-pass without a residual mean in C++, compiled on first use, in float32 or wider."""
    try:
        if is_compiling():
            from implementations.cpu.compiling import load_untraced

            load_untraced()
            operator = torch.ops.layernorm_bench.cpu_recentred.default
            y: Tensor = operator(x, normalized_shape, weight, bias, eps)
            return y
        return load_operator()(x, normalized_shape, weight, bias, eps)
    except NotImplementedError as error:  # the operator's way to refuse dtypes and devices
        raise UnsupportedError(str(error).partition("\n")[0]) from None
