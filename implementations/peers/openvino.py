"""OpenVINO's MVN on the CPU, then weight and bias; it reads and writes torch's memory.

The hinted precision is x's dtype, except float32 for float64, for which there are no kernels. A
non-contiguous x is copied first, within the timed call. With one thread there is no stream, and
the calling thread computes.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Algorithm, Param, Reduction, install_extra
from implementations.peers.peer import Package, environment, peer

PACKAGE = Package("openvino", ("openvino",), install_extra("openvino"))
_TYPES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
_KEPT = 128  # compiled models, one per kind of case; trade-off: memory against compiling again


@peer(
    PACKAGE,
    tuple(_TYPES),
    params_like_x=True,
    forward_only=True,
    outside_torch=True,
    source="https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/"
    "operation-specs/normalization/mvn-6.html",
    algorithm=Algorithm.TWO_PASS,
    reduction=Reduction.BLOCKS,
    lanes=4,  # float32 in SSE4.1, the narrowest vectors of its kernels
)
def openvino(x: Tensor, dims: int, weight: Param, bias: Param, eps: float) -> Tensor:
    """OpenVINO: MVN, Multiply and Add on the CPU, compiled for the shape, in x's precision."""
    given = (x, weight, bias)
    request = _request(
        x.dtype,
        tuple(x.shape),
        dims,
        (weight is not None, bias is not None),
        eps,
        torch.get_num_threads(),
    )
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    inputs = [tensor.detach().resolve_neg().contiguous() for tensor in given if tensor is not None]
    for index, tensor in enumerate(inputs):
        request.set_input_tensor(index, _shared(tensor))
    request.set_output_tensor(_shared(y))
    request.infer()
    return y


@cache
def _runtime() -> Any:
    # with CI set, it does not start a process that sends telemetry
    with environment("CI", "true"):
        return PACKAGE.load()


def _shared(tensor: Tensor) -> Any:
    """Return OpenVINO's view of a contiguous tensor."""
    package = _runtime()
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16
        kind = getattr(package.Type, _TYPES[tensor.dtype])
        return package.Tensor(tensor.view(torch.uint16).numpy(), list(tensor.shape), kind)
    return package.Tensor(tensor.numpy(), shared_memory=True)


@lru_cache(maxsize=_KEPT)
def _request(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    dims: int,
    has: tuple[bool, bool],
    eps: float,
    threads: int,
) -> Any:
    """Return a request for MVN, followed by Multiply and Add if weight and bias are given."""
    package = _runtime()
    operations = PACKAGE.load("openvino.opset13")
    kind = getattr(package.Type, _TYPES[dtype])
    inputs = [operations.parameter(list(shape), kind, name="x")]
    axes = operations.constant(list(range(-dims, 0)), package.Type.i64)
    y = operations.mvn(inputs[0], axes, True, eps, "INSIDE_SQRT")
    for is_there, operation in zip(has, (operations.multiply, operations.add), strict=True):
        if is_there:
            inputs.append(operations.parameter(list(shape[len(shape) - dims :]), kind))
            y = operation(y, inputs[-1])
    settings = {
        "INFERENCE_PRECISION_HINT": _TYPES[torch.float32 if dtype == torch.float64 else dtype],
        "NUM_STREAMS": 0 if threads == 1 else 1,
        "INFERENCE_NUM_THREADS": threads,
    }
    model = package.Model([y], inputs)
    return package.Core().compile_model(model, "CPU", settings).create_infer_request()
