"""LayerNorms of other packages, called with the contract's signature.

A package is imported by the first call. If it is missing, the call raises ``UnsupportedError`` with
the command that installs it.
"""

from __future__ import annotations

from implementations.contract import Implementation
from implementations.peers import flax, gpu, jax, numba, numpy, onnxruntime, openvino
from implementations.peers.peer import Package

__all__ = ["PACKAGES", "PEERS"]

PEERS: tuple[Implementation, ...] = (
    numpy.numpy,
    numba.numba,
    jax.jax,
    flax.flax,
    flax.flax_slow_variance,
    onnxruntime.onnxruntime,
    openvino.openvino,
    gpu.liger,
    gpu.quack,
    gpu.transformer_engine,
    gpu.flash_attn,
    gpu.apex,
)

PACKAGES: tuple[Package, ...] = (
    *(module.PACKAGE for module in (numpy, numba, jax, flax, onnxruntime, openvino)),
    *gpu.PACKAGES,
)
