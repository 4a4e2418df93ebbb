"""ONNX Runtime's LayerNormalization on the CPU; it reads and writes torch's memory.

The operator takes eps as a float32 for every dtype of x. A non-contiguous x is copied first, within
the timed call. Its threads do not spin while they wait, because they would take processor time
from the implementations that are timed alternately.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Algorithm, Param, Reduction, install_extra
from implementations.peers.peer import Package, peer

PACKAGE = Package("onnxruntime", ("onnxruntime", "onnx"), install_extra("onnxruntime"))
# numbers of onnx.TensorProto.DataType, as the format fixes them
_ELEMENT_TYPES = {torch.float32: 1, torch.float16: 10, torch.float64: 11, torch.bfloat16: 16}
_OPSET = 17  # the first with LayerNormalization
_IR_VERSION = 8  # released with that opset, so every runtime that has the opset reads it
_ERRORS_ALONE = 3  # lowest severity that is written to standard error
_KEPT = 128  # sessions, one per kind of case; trade-off: memory against building one again


@peer(
    PACKAGE,
    tuple(_ELEMENT_TYPES),
    needs=("weight",),
    params_like_x=True,
    forward_only=True,
    outside_torch=True,
    source="https://onnx.ai/onnx/operators/onnx__LayerNormalization.html",
    algorithm=Algorithm.WELFORD,
    reduction=Reduction.SEQUENTIAL,
)
def onnxruntime(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """ONNX Runtime: its LayerNormalization on the CPU, inputs and result bound in place."""
    session = _session(x.dtype, x.dim(), dims, bias is not None, eps, torch.get_num_threads())
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    given = {"x": x, "weight": weight, "bias": bias}
    inputs = {
        name: tensor.resolve_neg().contiguous()
        for name, tensor in given.items()
        if tensor is not None
    }
    binding = session.io_binding()
    for name, tensor in inputs.items():
        binding.bind_input(name, *_where(tensor))
    binding.bind_output("y", *_where(y))
    session.run_with_iobinding(binding)
    return y


def _where(tensor: Tensor) -> tuple[str, int, int, list[int], int]:
    """Return device, its number, element type, shape and address."""
    return "cpu", 0, _ELEMENT_TYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr()


@lru_cache(maxsize=_KEPT)
def _session(
    dtype: torch.dtype, ndim: int, dims: int, has_bias: bool, eps: float, threads: int
) -> Any:
    """Return a session of one LayerNormalization, for x of any sizes."""
    runtime = PACKAGE.load()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ALONE
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    model = _model(_ELEMENT_TYPES[dtype], ndim, dims, has_bias, eps)
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _model(element_type: int, ndim: int, dims: int, has_bias: bool, eps: float) -> bytes:
    PACKAGE.load("onnx")
    helper = PACKAGE.load("onnx.helper")

    def tensor(name: str, axes: int) -> Any:
        sizes = [f"{name}{axis}" for axis in range(axes)]  # symbolic, set at run time
        return helper.make_tensor_value_info(name, element_type, sizes)

    inputs = [tensor("x", ndim), tensor("weight", dims), *([tensor("bias", dims)] * has_bias)]
    names = [declared.name for declared in inputs]
    node = helper.make_node("LayerNormalization", names, ["y"], axis=-dims, epsilon=eps)
    graph = helper.make_graph([node], "layer_norm", inputs, [tensor("y", ndim)])
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized
