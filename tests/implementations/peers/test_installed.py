"""Peers whose packages are installed compute a LayerNorm, and share memory with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from factories.peering import (
    ON_CPU,
    installed,
    python,
    tensors,
)
from torch import Tensor
from torch.nn import functional

from harness.records import Autograd, Case, Direction, Status
from harness.run.attempt import attempt
from implementations import Reduction, UnsupportedError, find
from implementations.peers import numba, onnxruntime, openvino, xla
from layernorm_bench import assert_layer_norm


def test_numpy_is_a_layer_norm() -> None:
    assert_layer_norm("numpy", directions=[Direction.FORWARD], dtypes=["float32"])


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_numpy_has_trees_only_along_the_axis_of_the_smallest_stride(layout: str) -> None:
    numpy = find("numpy")
    case = Case(
        implementation="numpy",
        shape=(32, 4125),
        distribution="constant",
        layout=layout,
        autograd=Autograd.INFERENCE_MODE,
    )
    assert attempt(numpy, case).status is Status.OK
    # in a transposed x its running sums reach 29 times the bound of trees
    trees = attempt(replace(numpy, reduction=Reduction.TREE), case)
    assert trees.status is (Status.OK if layout == "contiguous" else Status.INACCURATE)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(
    ("name", "dtype"), [(norm.name, dtype) for norm in ON_CPU for dtype in sorted(norm.dtypes)]
)
def test_an_installed_peer_returns_the_result_of_torch(name: str, dtype: str, dims: int) -> None:
    peer = installed(name)
    kind = getattr(torch, dtype)
    x, weight, bias = tensors((4, 3, 10), dims, kind)
    with torch.no_grad():
        y = peer(x, x.shape[-dims:], weight, bias, 0.25)
    exact = functional.layer_norm(x.double(), x.shape[-dims:], weight.double(), bias.double(), 0.25)
    assert (y.shape, y.dtype) == (x.shape, kind)
    # only roughly, the verification is exact; values are up to 8, and one peer computes in float32
    allowed = 64 * max(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)
    assert float((y.double() - exact).abs().max()) <= allowed


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", [norm.name for norm in ON_CPU if not norm.forward_only])
def test_an_installed_peer_returns_the_gradients_of_torch(name: str) -> None:
    peer = installed(name)
    leaves = [tensor.double().requires_grad_() for tensor in tensors((4, 10))]
    dy = torch.randn(10, 4, dtype=torch.float64).T
    found, expected = (
        torch.autograd.grad(norm(leaves[0], (10,), *leaves[1:]), leaves, dy)
        for norm in (peer, functional.layer_norm)
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("one_thread")
def test_jax_keeps_the_threads_it_was_started_with() -> None:
    jax = installed("jax")
    x, weight, bias = tensors()
    jax(x, (32,), weight, bias)
    torch.set_num_threads(2)
    with pytest.raises(UnsupportedError, match=r"1 threads.* 2"):
        jax(x, (32,), weight, bias)


# --- memory is shared ----------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
def test_torch_reads_the_memory_that_jax_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = installed("jax")
    written: list[Any] = []
    shared: Callable[[Any], Tensor] = xla.from_dlpack

    def remember(array: Any) -> Tensor:
        written.append(array)
        return shared(array)

    monkeypatch.setattr(xla, "from_dlpack", remember)
    y = jax(tensors()[0], (32,))
    assert y.data_ptr() == written[0].unsafe_buffer_pointer()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no peak of memory to read")
def test_jax_reads_the_memory_of_torch() -> None:
    installed("jax")
    # in its own process, whose peak memory nothing else has raised
    program = """
import torch
from implementations.peers import xla
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
def first_row(jax, x, weight, bias, dims, eps):
    return x[:1]
torch.set_num_threads(1)
for dtype in (torch.float32, torch.bfloat16):
    x = torch.zeros((1 << 16, 1024), dtype=dtype)
    xla._runtime().forward(first_row, (1, 1e-5), x[:8], None, None)
    before = peak()
    xla._runtime().forward(first_row, (1, 1e-5), x, None, None)
    assert peak() - before < x.nbytes / 2, (dtype, peak() - before)
"""
    python(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_openvino_reads_and_writes_the_memory_of_torch(dtype: torch.dtype) -> None:
    installed("openvino")
    x = torch.ones(3, 4, dtype=dtype)
    assert openvino._shared(x).data.__array_interface__["data"][0] == x.data_ptr()


def test_onnxruntime_and_numba_read_the_memory_of_torch() -> None:
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    assert onnxruntime._where(x) == ("cpu", 0, 16, [3, 4], x.data_ptr())
    x = torch.ones(2, 3, 4)
    assert numba._matrix(x, 12).__array_interface__["data"][0] == x.data_ptr()
