"""Means and squares of small groups of a row, combined as a tree (Chan), fused.

A row too long for registers is read in blocks, whose moments are combined sequentially.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from implementations.contract import Algorithm, Reduction, implementation
from implementations.triton import layout, operators


@implementation(
    source="Chan, Golub and LeVeque, Am. Stat. 37 (1983) 242-247, eq. 2.1",
    algorithm=Algorithm.WELFORD,
    reduction=Reduction.BLOCKS,  # shorter rows: a tree
    backward_reduction=Reduction.TREE,
    lanes=layout.LONG_BLOCK,
    column_reduction=Reduction.SEQUENTIAL,  # as in the others; `lanes` is of a row here
    devices=frozenset({"cuda"}),
    requires=("triton",),
)
def triton_welford(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean and squares of groups combined in a tree, in a fused GPU kernel, float32 or wider."""
    return operators.layer_norm("welford", x, normalized_shape, weight, bias, eps)
