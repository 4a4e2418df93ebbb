"""Peers call their packages with the right settings, recorded by stand-ins."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from factories.peering import (
    tensors,
)
from torch.nn import functional

from implementations import UnsupportedError, find
from implementations.peers import onnxruntime, openvino, xla


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
