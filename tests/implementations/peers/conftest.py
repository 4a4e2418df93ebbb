"""What tests of peers share: no peer remembers a package, and those for GPUs can run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from implementations.peers import gpu, numba, onnxruntime, openvino, peer, xla

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


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    """Clear the caches of peers before and after the test, and restore torch's one thread."""
    for cache in CACHES:
        cache.cache_clear()
    yield
    torch.set_num_threads(1)
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make peers believe that every tensor is on a GPU."""
    monkeypatch.setattr(peer, "_device_kind", lambda x: "cuda")
