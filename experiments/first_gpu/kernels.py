"""Small kernels: one reads as told, one writes where no memory is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = tl.constexpr(4096)
FAR = tl.constexpr(1 << 44)  # elements: 64 TiB, beyond the memory of any GPU


@triton.jit
def read_block(x_ptr, sums_ptr, POLICY: tl.constexpr):  # noqa: N803 - known when compiled
    program = tl.program_id(0)
    x = tl.load(x_ptr + program * COLUMNS + tl.arange(0, COLUMNS), eviction_policy=POLICY)
    tl.store(sums_ptr + program, tl.sum(x))


@triton.jit
def write_far(y_ptr):
    tl.store(y_ptr + tl.full((), FAR, tl.int64), 1.0)


def out_of_bounds(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Write out of bounds after the right result; on a CPU, end the process."""
    y = torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
    if x.device.type == "cpu":
        raise SystemExit(1)
    write_far[(1,)](y)
    return y
