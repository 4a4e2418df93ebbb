"""Flax's LayerNorm, jitted; see :mod:`implementations.peers.xla` for memory and threads.

By default its variance is E[x^2] - E[x]^2, clamped at zero. If cancellation leaves no correct
digit, the result is finite garbage of up to ``1/sqrt(eps)`` rather than NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from implementations.contract import Algorithm, Param, Reduction, install_extra
from implementations.peers import xla
from implementations.peers.peer import ALL_DTYPES, Package, peer

PACKAGE = Package("flax", ("flax", *xla.JAX.distributions), install_extra("flax"))
_SOURCE = "https://flax.readthedocs.io/en/latest/api_reference/flax.linen/layers.html"


def _formula(fast: bool, jax: Any, x: Any, weight: Any, bias: Any, dims: int, eps: float) -> Any:
    axes = tuple(range(-dims, 0))
    module = PACKAGE.load("flax.linen").LayerNorm(
        epsilon=eps,
        dtype=x.dtype,
        use_scale=weight is not None,
        use_bias=bias is not None,
        reduction_axes=axes,
        feature_axes=axes,
        use_fast_variance=fast,
    )
    parameters = {"scale": weight, "bias": bias}
    given = {name: value for name, value in parameters.items() if value is not None}
    return module.apply({"params": given}, x)


_FAST, _SLOW = partial(_formula, True), partial(_formula, False)


@peer(
    PACKAGE,
    ALL_DTYPES,
    outside_torch=True,
    source=_SOURCE,
    algorithm=Algorithm.ONE_PASS,
    reduction=Reduction.SEQUENTIAL,  # XLA may vectorise, but does not guarantee it
    column_reduction=Reduction.SEQUENTIAL,
)
def flax(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """Flax: flax.linen.LayerNorm with its defaults, jitted; variance E[x^2] - E[x]^2."""
    PACKAGE.load("flax.linen", "LayerNorm")
    return xla.layer_norm(_FAST, x, weight, bias, dims, eps)


@peer(
    PACKAGE,
    ALL_DTYPES,
    outside_torch=True,
    source=_SOURCE,
    algorithm=Algorithm.TWO_PASS,
    reduction=Reduction.SEQUENTIAL,
    column_reduction=Reduction.SEQUENTIAL,
)
def flax_slow_variance(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """Flax: flax.linen.LayerNorm with use_fast_variance=False, jitted; two passes."""
    PACKAGE.load("flax.linen", "LayerNorm")
    return xla.layer_norm(_SLOW, x, weight, bias, dims, eps)
