"""JAX: the plain formula, jitted; see :mod:`implementations.peers.xla` for memory and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Algorithm, Reduction
from implementations.peers import xla
from implementations.peers.support import Support, peer

__all__ = ["PACKAGE", "jax"]

PACKAGE = xla.JAX
SUPPORT = Support(
    package=PACKAGE,
    dtypes=frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64}),
    outside_torch=True,
)


def _formula(jax: Any, x: Any, weight: Any, bias: Any, dims: int, eps: float) -> Any:
    axes = tuple(range(-dims, 0))
    wide = x.astype(jax.numpy.promote_types(x.dtype, jax.numpy.float32))
    mean = wide.mean(axes, keepdims=True)
    variance = wide.var(axes, keepdims=True)
    y = (wide - mean) * jax.lax.rsqrt(variance + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype)


@peer(
    SUPPORT,
    source="https://docs.jax.dev/en/latest/_autosummary/jax.numpy.var.html",
    algorithm=Algorithm.TWO_PASS,
    reduction=Reduction.SEQUENTIAL,  # XLA may vectorise, but does not guarantee it
    column_reduction=Reduction.SEQUENTIAL,
)
def jax(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """JAX: mean, var and the formula under jit, in float32 or wider; gradients by jax.vjp."""
    dims = SUPPORT.check(x, normalized_shape, weight, bias)
    return xla.layer_norm(_formula, x, weight, bias, dims, eps)
