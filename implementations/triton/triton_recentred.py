"""Two passes with the mean of the deviations subtracted as well, fused.

The rounding error of the mean is in every deviation from it, and the mean of the deviations is that
error. Subtracting it costs two more sums over numbers that are in registers already, and makes the
error independent of the condition number. The backward uses the saved means.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from implementations.contract import Algorithm, Reduction, implementation
from implementations.triton import layout, operators


@implementation(
    source="this project; residual mean as in the corrected two-pass variance of Chan, Golub and "
    "LeVeque, Am. Stat. 37 (1983) 242-247, but removed from x too",
    algorithm=Algorithm.RECENTRED,
    column_reduction=Reduction.BLOCKS,
    lanes=layout.PARTS_LANES,
    devices=frozenset({"cuda"}),
    requires=("triton",),
)
def triton_recentred(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Two-pass without a residual mean in a fused GPU kernel, in float32 or wider."""
    return operators.layer_norm("recentred", x, normalized_shape, weight, bias, eps)
