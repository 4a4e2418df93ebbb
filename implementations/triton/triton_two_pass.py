"""Two passes over each row, fused: the mean, then the mean of squared deviations from it.

A row that fits into registers is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from implementations.contract import Algorithm, Reduction, implementation
from implementations.triton import layout, operators


@implementation(
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv 1607.06450, equation 3",
    algorithm=Algorithm.TWO_PASS,
    column_reduction=Reduction.BLOCKS,
    lanes=layout.PARTS_LANES,
    devices=frozenset({"cuda"}),
    requires=("triton",),
)
def triton_two_pass(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean, then mean of squared deviations, in a fused GPU kernel, in float32 or wider."""
    return operators.layer_norm("two_pass", x, normalized_shape, weight, bias, eps)
