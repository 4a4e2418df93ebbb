"""Peers and their packages, for the tests of peers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from implementations import PEERS, Implementation, find
from implementations.peers import PACKAGES, gpu, numba, onnxruntime, openvino, xla
from implementations.peers.peer import Package

ON_CPU = [peer for peer in PEERS if "cpu" in peer.devices]
CACHES = (
    xla._runtime,
    xla._forward,
    xla._backward,
    numba._compiled,
    onnxruntime._session,
    openvino._runtime,
    openvino._request,
    gpu._loaded,
)

every_peer = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
every_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)


def package_of(peer: Implementation) -> Package:
    return next(package for package in PACKAGES if (package.module,) == peer.requires)


def installed(name: str) -> Implementation:
    """Return a peer, or skip the test where its package is not installed."""
    peer = find(name)
    if not package_of(peer).is_installed:
        pytest.skip(f"{name} is not installed")
    return peer


def tensors(
    shape: tuple[int, ...] = (6, 32), dims: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (
        torch.randn(sizes, generator=generator).to(dtype)
        for sizes in (shape, shape[-dims:], shape[-dims:])
    )
    return x, weight, bias


def python(program: str) -> None:
    """Run a program in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
