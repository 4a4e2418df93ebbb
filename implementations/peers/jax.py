"""JAX: the plain formula, jitted; see :mod:`implementations.peers.xla` for memory and threads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from implementations.contract import Algorithm, Param, Reduction
from implementations.peers import xla
from implementations.peers.peer import ALL_DTYPES, peer

PACKAGE = xla.JAX


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
    PACKAGE,
    ALL_DTYPES,
    outside_torch=True,
    source="https://docs.jax.dev/en/latest/_autosummary/jax.numpy.var.html",
    algorithm=Algorithm.TWO_PASS,
    reduction=Reduction.SEQUENTIAL,  # XLA may vectorise, but does not guarantee it
    column_reduction=Reduction.SEQUENTIAL,
)
def jax(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """JAX: mean, var and the formula under jit, in float32 or wider; gradients by jax.vjp."""
    return xla.layer_norm(_formula, x, weight, bias, dims, eps)
