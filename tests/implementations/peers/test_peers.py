"""Peers receive the right settings; a missing package or an unsupported call is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
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
        peers={peer.name: peer.devices for peer in PEERS},
    )
    found = {(case.case.device, case.case.implementation) for case in planned}
    assert found == {(kind, peer.name) for peer in PEERS for kind in peer.devices}


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


def test_numba_uses_as_many_threads_as_torch_and_reads_its_memory(put: Put) -> None:
    calls: list[object] = []
    addresses: list[int] = []

    def njit(*, parallel: bool) -> Callable[[Any], Any]:
        def compiled(function: Any) -> Any:
            def loops(x: Any, *rest: Any) -> None:
                addresses.append(x.ctypes.data)
                function(x, *rest)

            return loops

        calls.append(parallel)
        return compiled

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
    assert (calls, addresses) == ([False, True, 2], [x.data_ptr()] * 2)
    torch.set_num_threads(5)
    with pytest.raises(UnsupportedError, match=r"numba was started with fewer threads: .* 1 and 4"):
        find("numba")(x, (32,), weight, bias)


@pytest.mark.parametrize("default", ["cpu", "gpu"])
def test_jax_is_started_on_the_cpu_with_as_many_threads_as_torch(
    default: str, monkeypatch: pytest.MonkeyPatch, put: Put
) -> None:
    seen: dict[str, Any] = {}

    @contextmanager
    def default_device(device: str) -> Iterator[None]:
        seen["device"] = device
        yield

    def jit(function: Any, static_argnums: int) -> Any:
        def run(*arguments: Any) -> Any:
            seen["y"] = function(*arguments)
            return SimpleNamespace(block_until_ready=lambda: seen["y"])

        return run

    put(
        "jax",
        config=SimpleNamespace(update=seen.__setitem__),
        devices=lambda kind: [seen.setdefault(kind, os.environ.get("NPROC"))],
        default_backend=lambda: default,
        default_device=default_device,
        enable_x64=lambda wanted: nullcontext(),
        jit=jit,
        numpy=np,
        lax=SimpleNamespace(rsqrt=lambda value: 1 / np.sqrt(value)),
    )
    monkeypatch.setenv("NPROC", "64")
    x, weight, bias = tensors()
    y = find("jax")(x, (32,), weight, bias)
    torch.testing.assert_close(y, functional.layer_norm(x, (32,), weight, bias))
    assert y.data_ptr() == seen.pop("y").ctypes.data  # torch reads the memory that jax wrote
    chosen = {} if default == "cpu" else {"device": "1"}
    assert seen == {"jax_cpu_enable_async_dispatch": False, "cpu": "1", **chosen}
    assert os.environ["NPROC"] == "64"
    torch.set_num_threads(2)
    with pytest.raises(UnsupportedError, match=r"1 threads.* 2"):
        find("jax")(x, (32,), weight, bias)


OPENVINO = """
import os
from types import SimpleNamespace

in_ci, seen, Type = os.environ.get("CI"), {}, SimpleNamespace(f64="f64", i64="i64")

def Tensor(array, shared_memory):
    return array.ctypes.data

def Model(results, inputs):
    return results, inputs

class Core:
    def compile_model(self, model, device, settings):
        seen.update(model=model, device=device, settings=settings)
        return SimpleNamespace(create_infer_request=lambda: SimpleNamespace(
            set_input_tensor=seen.__setitem__,
            set_output_tensor=lambda address: seen.update(y=address),
            infer=lambda: None,
        ))
"""
OPSET = """
def operation(name):
    return lambda *arguments, **named: (name, *arguments)

parameter, constant, mvn, multiply = map(operation, ("parameter", "constant", "mvn", "multiply"))
add = None
"""


@pytest.mark.parametrize(("threads", "streams"), [(1, 0), (4, 1)])
def test_openvino_receives_the_threads_the_precision_and_the_memory_of_torch(
    threads: int, streams: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, source in (("__init__", OPENVINO), ("opset13", OPSET)):
        path = tmp_path / "openvino" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("openvino", "openvino.opset13"):
        monkeypatch.setitem(sys.modules, name, None)  # monkeypatch removes the import
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("CI", raising=False)
    torch.set_num_threads(threads)
    x, weight, _ = tensors((2, 3, 4), 2, torch.float64)
    y = find("openvino")(x, (3, 4), weight)
    fake = sys.modules["openvino"]
    assert fake.in_ci == "true"  # it sends no message home
    assert "CI" not in os.environ
    inputs = [("parameter", [2, 3, 4], "f64"), ("parameter", [3, 4], "f64")]
    axes = ("constant", [-2, -1], "i64")
    normalised = ("mvn", inputs[0], axes, True, 1e-5, "INSIDE_SQRT")
    assert fake.seen == {
        "model": ([("multiply", normalised, inputs[1])], inputs),
        "device": "CPU",
        "settings": {
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
        },
        0: x.data_ptr(),
        1: weight.data_ptr(),
        "y": y.data_ptr(),
    }


def test_onnxruntime_receives_the_threads_the_model_and_the_memory_of_torch(put: Put) -> None:
    seen: dict[str, Any] = {}

    def session(model: object, options: Any, providers: list[str]) -> Any:
        seen.update(model=model, providers=providers, options=vars(options))
        return SimpleNamespace(io_binding=lambda: binding, run_with_iobinding=lambda _: None)

    def bind(name: str, *where: object) -> None:
        seen[name] = where

    def make_model(graph: object, opset_imports: list[int], ir_version: int) -> Any:
        return SimpleNamespace(SerializeToString=lambda: (graph, opset_imports))

    binding = SimpleNamespace(bind_input=bind, bind_output=bind)
    entries: dict[str, str] = {}
    options = SimpleNamespace(add_session_config_entry=entries.__setitem__)
    put("onnxruntime", SessionOptions=lambda: options, InferenceSession=session)
    put("onnx")
    put(
        "onnx.helper",
        make_tensor_value_info=lambda name, kind, sizes: SimpleNamespace(name=name),
        make_node=lambda *arguments, **attributes: (arguments, attributes),
        make_graph=lambda nodes, name, inputs, outputs: nodes,
        make_opsetid=lambda domain, version: version,
        make_model=make_model,
    )
    torch.set_num_threads(4)
    x, weight, bias = tensors((2, 3, 4), 2, torch.bfloat16)
    y = find("onnxruntime")(x, (3, 4), weight, bias, 0.5)
    node = ("LayerNormalization", ["x", "weight", "bias"], ["y"]), {"axis": -2, "epsilon": 0.5}
    assert (seen["model"], seen["providers"]) == (([node], [17]), ["CPUExecutionProvider"])
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (4, 1)
    assert entries == {"session.intra_op.allow_spinning": "0"}
    for name, tensor in {"x": x, "weight": weight, "bias": bias, "y": y}.items():
        assert seen[name] == ("cpu", 0, 16, list(tensor.shape), tensor.data_ptr())


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
