"""Peers receive the right settings; a missing package or an unsupported call is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import ANY, MagicMock

import pytest
import torch
from factories.commanding import call
from torch import Tensor
from torch.nn import functional

from harness.cases import Grid, Sweep, expand
from harness.records import Autograd, Status
from harness.store import read
from harness.verify import verify_case
from implementations import PEERS, Implementation, Reduction, UnsupportedError, find
from implementations.peers import PACKAGES

ON_CPU = [peer for peer in PEERS if "cpu" in peer.devices]
every_peer = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)


def package_of(peer: Implementation) -> Any:
    return next(package for package in PACKAGES if (package.module,) == peer.requires)


def tensors(
    shape: tuple[int, ...] = (6, 32), dims: int = 1, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = (shape, shape[-dims:], shape[-dims:])
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


Put = Callable[..., None]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Return a function that puts a fake module in the place of an installed one."""

    def put(name: str, **content: object) -> None:
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    return put


# --- the list ------------------------------------------------------------------------------------


def test_the_list_shows_what_peers_need() -> None:
    listed = json.loads(call("list", "implementations", "--json").output)["implementations"]
    assert "needs apex, not installed" in listed["apex"]
    assert listed["apex"].endswith("(CUDA only)")
    assert "not installed" not in listed["numpy"]


def test_a_sweep_includes_only_peers_that_run_on_the_device() -> None:
    grid = Grid(implementations=("peers",), devices=("cpu", "cuda"), shapes=((4, 8),))
    planned = expand(
        Sweep(grids=(grid,)),
        implementations={"native": {"cpu", "cuda"}},
        devices={"cpu": None, "cuda": None},
        peers={"numpy": {"cpu"}, "liger": {"cuda"}},
    )
    found = {(case.case.device, case.case.implementation) for case in planned}
    assert found == {("cpu", "numpy"), ("cuda", "liger")}


def test_a_peer_outside_torch_has_no_compiled_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    one = ("--shape", "4x8", "--mode", "compiled", "--measure", "errors", "--out", "mine.parquet")
    assert call("run", "-i", "numpy", *one).exit_code == 3
    (record,) = read("mine.parquet").records
    assert (record.status, "compile" in record.reason) == (Status.UNSUPPORTED, True)


# --- refusals ------------------------------------------------------------------------------------


@every_peer
def test_a_peer_whose_package_is_missing_is_refused_with_the_install_command(
    peer: Implementation, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if peer not in ON_CPU:
        request.getfixturevalue("on_cuda")
    package = package_of(peer)
    # and its submodules, which an earlier test may have imported
    inside = [module for module in sys.modules if module.startswith(f"{package.module}.")]
    for name in (package.module, *inside):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError) as caught, torch.no_grad():
        peer(torch.zeros(4, 8), (8,), torch.ones(8), torch.zeros(8))
    assert str(caught.value) == f"needs {package.distributions[0]}: {package.install}"
    assert "pip install" in package.install or "https://" in package.install


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("liger", {}, "liger-kernel runs on cuda, x is on cpu"),
        ("numpy", {"x": torch.zeros(2, 4, dtype=torch.bfloat16)}, "numpy does not take bfloat16"),
        ("onnxruntime", {"weight": None}, "onnxruntime needs a weight"),
        ("openvino", {"bias": torch.zeros(4).double()}, "takes a bias of float32, not float64"),
        ("numba", {"x": torch.zeros(2, 4, requires_grad=True)}, "numba has no gradient"),
        ("numpy", {"weight": torch.ones(4, requires_grad=True)}, "numpy has no gradient"),
    ],
)
def test_an_unsupported_call_is_refused(
    name: str, given: dict[str, Tensor | None], why: str
) -> None:
    supported: dict[str, Any] = {"x": torch.zeros(2, 4), "weight": torch.ones(4), "bias": None}
    x, weight, bias = (supported | given).values()
    with pytest.raises(UnsupportedError, match=why):
        find(name)(x, (4,), weight, bias)
    if "gradient" in why:
        with torch.no_grad():
            find("numpy")(x, (4,), weight, bias)


@every_peer
def test_mismatched_shapes_are_reported_before_all_other_problems(peer: Implementation) -> None:
    with pytest.raises(ValueError, match="normalized_shape"):
        peer(torch.zeros(2, 4), (5,))
    with pytest.raises(ValueError, match=r"weight has shape \[1\]"):
        peer(torch.zeros(2, 4), (4,), torch.ones(1))


# --- settings, with fake packages ----------------------------------------------------------------


def test_numba_uses_as_many_threads_as_torch(put: Put) -> None:
    calls: list[object] = []

    def njit(*, parallel: bool) -> Callable[[Any], Any]:
        calls.append(parallel)
        return lambda function: function

    def set_num_threads(count: int) -> None:
        if count > 4:
            raise ValueError("The number of threads must be between 1 and 4")
        calls.append(count)

    put("numba", njit=njit, set_num_threads=set_num_threads, prange=range)
    x, weight, bias = tensors()
    expected = functional.layer_norm(x, (32,), weight, bias)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.testing.assert_close(find("numba")(x, (32,), weight, bias), expected)
    assert calls == [False, True, 2]
    torch.set_num_threads(5)
    with pytest.raises(UnsupportedError, match=r"numba was started with fewer threads: .* 1 and 4"):
        find("numba")(x, (32,), weight, bias)


@pytest.mark.parametrize(("threads", "streams"), [(1, 0), (4, 1)])
def test_openvino_receives_the_threads_and_the_precision(
    threads: int, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = MagicMock()
    monkeypatch.setitem(sys.modules, "openvino", package)
    monkeypatch.setitem(sys.modules, "openvino.opset13", package.operations)
    torch.set_num_threads(threads)
    x, weight, _ = tensors((2, 3, 4), 2, torch.float64)
    find("openvino")(x, (3, 4), weight)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
    }
    package.Core().compile_model.assert_called_once_with(ANY, "CPU", settings)
    package.operations.mvn.assert_called_once_with(ANY, ANY, True, 1e-5, "INSIDE_SQRT")


def test_openvino_is_imported_so_that_it_sends_no_message_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "openvino.py").write_text("import os\nin_ci = os.environ.get('CI')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "openvino", None)  # monkeypatch removes the import
    monkeypatch.delitem(sys.modules, "openvino")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(UnsupportedError, match="opset13"):
        find("openvino")(torch.zeros(2, 4), (4,))
    assert sys.modules["openvino"].in_ci == "true"
    assert "CI" not in os.environ


def test_onnxruntime_receives_the_threads_the_model_and_the_memory_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, onnx = MagicMock(), MagicMock()
    modules = {"onnxruntime": runtime, "onnx": onnx, "onnx.helper": onnx.helper}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    torch.set_num_threads(4)
    x, weight, bias = tensors((2, 3, 4), 2, torch.bfloat16)
    y = find("onnxruntime")(x, (3, 4), weight, bias, 0.5)
    onnx.helper.make_node.assert_called_once_with(
        "LayerNormalization", ANY, ["y"], axis=-2, epsilon=0.5
    )
    options = runtime.SessionOptions()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (4, 1)
    binding = runtime.InferenceSession().io_binding()
    for name, tensor in {"x": x, "weight": weight, "bias": bias}.items():
        binding.bind_input.assert_any_call(name, "cpu", 0, 16, [*tensor.shape], tensor.data_ptr())
    binding.bind_output.assert_called_once_with("y", "cpu", 0, 16, [2, 3, 4], y.data_ptr())


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_numpy_has_trees_only_along_the_axis_of_the_smallest_stride(layout: str) -> None:
    axes = {
        "distribution": "constant",
        "layout": layout,
        "autograd": Autograd.INFERENCE_MODE,
    }
    numpy = find("numpy")
    assert verify_case(numpy, (32, 4125), **axes).status is Status.OK
    # in a transposed x its running sums reach 29 times the bound of trees
    trees = verify_case(replace(numpy, reduction=Reduction.TREE), (32, 4125), **axes)
    assert trees.status is (Status.OK if layout == "contiguous" else Status.INACCURATE)


def installed(name: str) -> Implementation:
    """Return a peer, or skip the test where its package is not installed."""
    if not package_of(find(name)).is_installed:
        pytest.skip(f"{name} is not installed")
    return find(name)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(
    ("name", "dtype"), [(norm.name, dtype) for norm in ON_CPU for dtype in sorted(norm.dtypes)]
)
def test_an_installed_peer_returns_the_result_of_torch(name: str, dtype: str, dims: int) -> None:
    peer, kind = installed(name), getattr(torch, dtype)
    x, weight, bias = tensors((4, 3, 10), dims, kind)
    with torch.no_grad():
        y = peer(x, x.shape[-dims:], weight, bias, 0.25)
    exact = functional.layer_norm(x.double(), x.shape[-dims:], weight.double(), bias.double(), 0.25)
    assert (y.shape, y.dtype) == (x.shape, kind)
    # only roughly, the verification is exact; values are up to 8, and one peer computes in float32
    allowed = 64 * max(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)
    assert float((y.double() - exact).abs().max()) <= allowed


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
