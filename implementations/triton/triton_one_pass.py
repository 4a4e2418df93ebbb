"""One pass over each row, fused: variance = E[x^2] - E[x]^2, from one read of x.

It is as inaccurate as :mod:`implementations.one_pass`; it is here for measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from implementations.contract import Algorithm, Reduction, implementation
from implementations.triton import layout, operators


@implementation(
    source="textbook formula; karpathy/llm.c, dev/cuda/layernorm_forward.cu, kernel 4",
    algorithm=Algorithm.ONE_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=layout.PARTS_LANES,
    devices=frozenset({"cuda"}),
    requires=("triton",),
)
def triton_one_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """E[x^2] - E[x]^2 in a fused GPU kernel, in float32 or wider."""
    return operators.layer_norm("one_pass", x, normalized_shape, weight, bias, eps)
