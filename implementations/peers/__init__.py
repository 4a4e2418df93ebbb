"""LayerNorms of other packages, called with the contract's signature.

A package is imported by the first call. If it is missing, the call raises ``UnsupportedError`` with
the command that installs it.
"""

from __future__ import annotations

from implementations.contract import Implementation
from implementations.peers import (
    apex,
    flash_attn,
    flax,
    jax,
    liger,
    numba,
    numpy,
    onnxruntime,
    openvino,
    quack,
    transformer_engine,
)
from implementations.peers.package import Package

__all__ = ["PACKAGES", "PEERS"]

PEERS: tuple[Implementation, ...] = (
    numpy.numpy,
    numba.numba,
    jax.jax,
    flax.flax,
    flax.flax_slow_variance,
    onnxruntime.onnxruntime,
    openvino.openvino,
    liger.liger,
    quack.quack,
    transformer_engine.transformer_engine,
    flash_attn.flash_attn,
    apex.apex,
)

PACKAGES: tuple[Package, ...] = (
    numpy.PACKAGE,
    numba.PACKAGE,
    jax.PACKAGE,
    flax.PACKAGE,
    onnxruntime.PACKAGE,
    openvino.PACKAGE,
    liger.PACKAGE,
    quack.PACKAGE,
    transformer_engine.PACKAGE,
    flash_attn.PACKAGE,
    apex.PACKAGE,
)
