"""Peers receive the right settings; a missing package or an unsupported call is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from factories.fake_device import LocalFleet
from torch import Tensor
from torch.nn import functional

from harness.cases import Grid, Sweep
from harness.cli import main
from harness.measure.environment import read_environment
from harness.records import (
    Allocation,
    Autograd,
    Budget,
    Case,
    Measurement,
    Mode,
    Status,
    WarningKind,
)
from harness.run.attempt import attempt
from harness.run.case import CaseRunner
from harness.run.integrity import Trusted
from harness.run.session import plan
from harness.run.timing import refusal
from implementations import PEERS, Implementation, Reduction, UnsupportedError, find
from implementations.peers import PACKAGES, gpu, numba, onnxruntime, openvino, xla
from implementations.peers.peer import Package, environment

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


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Clear the caches of peers before and after the test."""
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- the list ------------------------------------------------------------------------------------


def test_the_list_shows_what_peers_need() -> None:
    output = CliRunner().invoke(main, ["list", "implementations", "--json"]).output
    listed = json.loads(output)["implementations"]
    assert "needs apex, not installed" in listed["apex"]
    assert listed["apex"].endswith("(CUDA only)")
    assert "needs numpy" in listed["numpy"]
    assert "not installed" not in listed["numpy"]


def test_the_versions_of_peers_are_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.measure import environment as module

    monkeypatch.setattr(module, "_version", lambda package: f"1 of {package}")
    found = dict(read_environment().packages)
    assert found["flash-attn"] == "1 of flash-attn"
    assert {name for package in PACKAGES for name in package.distributions} <= found.keys()


def test_a_sweep_includes_only_peers_that_run_on_the_device() -> None:
    fleet = LocalFleet()
    fleet.info = replace(
        fleet.info,
        peers={norm.name: norm.devices for norm in PEERS},
        unavailable={},
        device_counts={"cpu": 1, "cuda": 1},
    )
    grid = Grid(implementations=("native", "peers"), devices=("cpu", "cuda"), shapes=((4, 8),))
    cases = [case.case for case in plan(Sweep(grids=(grid,)), fleet)]
    of_device = {
        kind: [case.implementation for case in cases if case.device == kind]
        for kind in ("cpu", "cuda")
    }
    for kind, names in of_device.items():
        assert names == ["native", *(norm.name for norm in PEERS if kind in norm.devices)]
        assert len(names) > 4


# --- packages ------------------------------------------------------------------------------------


@every_package
def test_a_missing_package_is_reported_with_its_install_command(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package.module, None)  # makes its import fail
    with pytest.raises(UnsupportedError) as caught:
        package.load()
    assert str(caught.value) == f"needs {package.distributions[0]}: {package.install}"
    assert "pip install" in package.install or "https://" in package.install


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("peer", ON_CPU, ids=lambda norm: norm.name)
def test_a_peer_whose_package_is_missing_is_unsupported(
    peer: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of(peer)
    runner = CaseRunner("here", Allocation.DEFAULT, Trusted())  # which itself imports NumPy
    # and its submodules, which an earlier test may have imported
    for name in [
        package.module,
        *(module for module in sys.modules if module.startswith(f"{package.module}.")),
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    case = Case(implementation=peer.name, shape=(4, 8))
    record = runner.run(case, [], Budget())
    assert record.status is Status.UNSUPPORTED
    assert record.reason == f"needs {package.distributions[0]}: {package.install}"


def test_another_package_of_the_same_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "apex.py").write_text("")  # like the other apex on PyPI, without apex.normalization
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "apex", None)  # monkeypatch removes the import after the test
    monkeypatch.delitem(sys.modules, "apex")
    package = package_of(find("apex"))
    with pytest.raises(UnsupportedError, match=r"apex cannot be imported .*apex\.normalization"):
        package.load("apex.normalization")


def test_a_version_without_a_needed_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", ModuleType("quack.rmsnorm"))
    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    package = package_of(find("quack"))
    with pytest.raises(UnsupportedError, match=r"no quack\.rmsnorm\.layernorm_bwd: pip install -U"):
        package.load("quack.rmsnorm", "layernorm_bwd")


def test_an_environment_variable_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNB_SET", "old")
    monkeypatch.delenv("LNB_UNSET", raising=False)
    with environment("LNB_SET", "new"), environment("LNB_UNSET", "new"):
        assert os.environ["LNB_SET"] == os.environ["LNB_UNSET"] == "new"
    assert os.environ["LNB_SET"] == "old"
    assert "LNB_UNSET" not in os.environ


# --- support -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("liger", {}, "liger-kernel runs on cuda, x is on cpu"),
        ("numpy", {"x": torch.zeros(2, 4, dtype=torch.bfloat16)}, "numpy does not take bfloat16"),
        ("onnxruntime", {"weight": None}, "onnxruntime needs a weight"),
        (
            "openvino",
            {"bias": torch.zeros(4, dtype=torch.float64)},
            "openvino takes a bias of float32, not float64",
        ),
        ("numba", {"x": torch.zeros(2, 4, requires_grad=True)}, "numba has no gradient"),
        ("numpy", {"weight": torch.ones(4, requires_grad=True)}, "numpy has no gradient"),
    ],
)
def test_an_unsupported_call_is_refused(
    name: str, given: dict[str, Tensor | None], why: str
) -> None:
    supported: dict[str, Any] = {"x": torch.zeros(2, 4), "weight": torch.ones(4), "bias": None}
    call = {**supported, **given}
    with pytest.raises(UnsupportedError, match=why):
        find(name)(call["x"], (4,), call["weight"], call["bias"])
    if "gradient" in why:
        with torch.no_grad():
            find("numpy")(call["x"], (4,), call["weight"], call["bias"])


@every_peer
def test_mismatched_shapes_are_reported_before_all_other_problems(peer: Implementation) -> None:
    with pytest.raises(ValueError, match="normalized_shape"):
        peer(torch.zeros(2, 4), (5,))
    with pytest.raises(ValueError, match=r"weight has shape \[1\]"):
        peer(torch.zeros(2, 4), (4,), torch.ones(1))


def test_a_peer_outside_torch_has_no_compiled_mode_and_no_memory_count() -> None:
    numpy = find("numpy")
    assert numpy.outside_torch
    compiled = Case(implementation="numpy", shape=(4, 8), mode=Mode.COMPILED)
    assert "compile" in str(refusal(numpy, compiled))
    case = Case(implementation="numpy", shape=(4, 8))
    record = CaseRunner("here", Allocation.DEFAULT).run(case, [Measurement.MEMORY], Budget())
    assert (record.status, record.memory) == (Status.OK, None)
    assert [warning.kind for warning in record.warnings] == [WarningKind.MEMORY_NOT_COUNTED]


class FakeNumba(ModuleType):
    """Compiles nothing, and accepts up to four threads."""

    prange = range

    def __init__(self) -> None:
        super().__init__("numba")
        self.calls: list[object] = []

    def njit(self, *, parallel: bool) -> Callable[[Any], Any]:
        self.calls.append(parallel)
        return lambda function: function

    def set_num_threads(self, count: int) -> None:
        if count > 4:
            raise ValueError("The number of threads must be between 1 and 4")
        self.calls.append(count)


@pytest.mark.usefixtures("forgetful", "one_thread")
def test_numba_uses_as_many_threads_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNumba()
    monkeypatch.setitem(sys.modules, "numba", fake)
    x, weight, bias = tensors()
    expected = functional.layer_norm(x, (32,), weight, bias)
    torch.testing.assert_close(find("numba")(x, (32,), weight, bias), expected)
    assert fake.calls == [False]
    torch.set_num_threads(2)
    torch.testing.assert_close(find("numba")(x, (32,), weight, bias), expected)
    assert fake.calls == [False, True, 2]
    torch.set_num_threads(5)
    with pytest.raises(UnsupportedError, match=r"numba was started with fewer threads: .* 1 and 4"):
        find("numba")(x, (32,), weight, bias)


@pytest.mark.usefixtures("forgetful", "one_thread")
@pytest.mark.parametrize("default", ["cpu", "gpu"])
def test_jax_is_started_on_the_cpu_with_as_many_threads_as_torch(
    default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, seen = ModuleType("jax"), {}
    found = {
        "enable_x64": None,
        "config": SimpleNamespace(update=seen.__setitem__),
        "devices": lambda kind: [seen.setdefault(kind, os.environ.get("NPROC"))],
        "default_backend": lambda: default,
    }
    for name, value in found.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.setenv("NPROC", "64")
    runtime = xla._runtime()
    assert seen == {"jax_cpu_enable_async_dispatch": False, "cpu": "1"}
    assert os.environ["NPROC"] == "64"
    assert runtime.threads == 1
    assert runtime.device == (None if default == "cpu" else "1")


class FakeOperation:
    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(("threads", "streams"), [(1, 0), (4, 1)])
def test_openvino_receives_the_number_of_threads_and_the_precision(
    threads: int, streams: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "openvino.py").write_text("import os\nin_ci = os.environ.get('CI')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "openvino", None)  # monkeypatch removes the import
    monkeypatch.delitem(sys.modules, "openvino")
    fake = openvino._runtime()
    assert fake.in_ci == "true"  # it sends no message home
    settings: dict[str, Any] = {}

    def compile_model(model: object, device: str, given: dict[str, Any]) -> Any:
        settings.update(given)
        return SimpleNamespace(create_infer_request=lambda: model)

    fake.Core = lambda: SimpleNamespace(compile_model=compile_model)
    fake.Type = SimpleNamespace(f64="f64", i64="i64")
    fake.Model = FakeOperation
    operations = ModuleType("openvino.opset13")
    for name in ("constant", "mvn", "multiply", "add"):
        setattr(operations, name, FakeOperation)
    setattr(operations, "parameter", lambda shape, kind, name="": (shape, kind))  # noqa: B010
    monkeypatch.setitem(sys.modules, "openvino.opset13", operations)
    model = openvino._request(torch.float64, (2, 3, 4), 2, (True, False), 1e-5, threads)
    assert settings == {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
    }
    (multiply,), inputs = model.arguments
    assert inputs == [([2, 3, 4], "f64"), ([3, 4], "f64")]
    assert multiply.arguments[0].arguments[2:] == (True, 1e-5, "INSIDE_SQRT")
    assert multiply.arguments[0].arguments[1].arguments == ([-2, -1], "i64")


@pytest.mark.usefixtures("forgetful")
def test_onnxruntime_receives_the_number_of_threads_and_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = SimpleNamespace(entries={})
    options.add_session_config_entry = options.entries.__setitem__
    runtime, onnx, helper = (ModuleType(name) for name in ("onnxruntime", "onnx", "onnx.helper"))
    given = {
        runtime: {
            "SessionOptions": lambda: options,
            "InferenceSession": lambda model, options, providers: (model, options, providers),
        },
        helper: {
            "make_tensor_value_info": lambda name, kind, sizes: SimpleNamespace(
                name=name, kind=kind, sizes=sizes
            ),
            "make_node": lambda *arguments, **attributes: (arguments, attributes),
            "make_graph": lambda nodes, name, inputs, outputs: nodes,
            "make_opsetid": lambda domain, version: version,
            "make_model": lambda graph, opset_imports, ir_version: SimpleNamespace(
                SerializeToString=lambda: (graph, opset_imports)
            ),
        },
    }
    for module, found in given.items():
        for name, value in found.items():
            setattr(module, name, value)
    for module in (runtime, onnx, helper):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    (nodes, opsets), used, providers = onnxruntime._session(torch.float32, 3, 2, True, 0.5, 4)
    assert nodes == [
        (("LayerNormalization", ["x", "weight", "bias"], ["y"]), {"axis": -2, "epsilon": 0.5})
    ]
    assert (opsets, providers) == ([17], ["CPUExecutionProvider"])
    assert (used.intra_op_num_threads, used.inter_op_num_threads) == (4, 1)
    assert used.entries == {"session.intra_op.allow_spinning": "0"}


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
