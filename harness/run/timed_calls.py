"""What is timed in turn for a case, and how many bytes a call must move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor

import implementations
from harness.inputs import Inputs
from harness.measure.environment import compiler
from harness.measure.sampler import TimedCall
from harness.numerics.computed import bind
from harness.records import ArmRole, Case, Direction, Mode
from implementations.contract import Implementation, LayerNormFunction
from implementations.cpu.copies import can_stream, streamed_copy
from implementations.torch_private import negated_view

__all__ = ["model_bytes", "refusal", "result_bytes", "timed_calls_of"]

REFERENCE = implementations.find("native")
_STREAMED_BYTES = 1 << 20  # below, results fit in a cache, and a copy through it is faster
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def timed_calls_of(
    function: LayerNormFunction, case: Case, reference: Implementation | None = None
) -> list[TimedCall]:
    """Return the calls that are timed in turn: the implementation, a reference, and copies.

    Args:
        function: the implementation's, or its compiled version.
        case: bound to each call.
        reference: timed without copies, for a comparison with it alone; None for the usual
            reference, if it takes the case, and all copies.
    """
    calls = [TimedCall(ArmRole.SUBJECT, case.implementation, partial(bind, function, case))]
    if reference is not None:
        return [*calls, _reference_call(reference, case)]
    if not refusal(REFERENCE, case):  # without a reference the record has no ratio
        calls.append(_reference_call(REFERENCE, case))
    calls.append(TimedCall(ArmRole.CEILING, "torch copy_", _bind_torch_copy))
    if case.device == "cuda":  # the driver's copy may be slower than a kernel's
        calls.append(TimedCall(ArmRole.CEILING, "torch add", _bind_torch_add))
    if case.device == "cpu":  # below 1 MB numpy is up to twice as fast: it dispatches less
        calls.append(TimedCall(ArmRole.CEILING, "numpy copyto", _bind_numpy_copy))
        if _may_stream(case):
            calls.append(TimedCall(ArmRole.CEILING, "streamed copy", _bind_streamed_copy))
    return calls


def _reference_call(reference: Implementation, case: Case) -> TimedCall:
    prepare = partial(bind, reference.function, case)
    return TimedCall(ArmRole.REFERENCE, reference.name, prepare)


def _may_stream(case: Case) -> bool:
    """Whether a copy that bypasses the caches can be made, and may be the fastest."""
    size = prod(case.shape) * getattr(torch, case.dtype).itemsize
    return size >= _STREAMED_BYTES and case.layout == "contiguous" and can_stream()


def refusal(implementation: Implementation, case: Case) -> str | None:
    """Return why an implementation cannot run a case, by what it declares; None if it can."""
    if case.device not in implementation.devices:
        return f"{implementation.name} is not written for {case.device}"
    if case.dtype not in implementation.dtypes:
        return f"{implementation.name} does not take {case.dtype}"
    if implementation.forward_only and case.direction is not Direction.FORWARD:
        return f"{implementation.name} has no gradient"
    if case.mode is Mode.COMPILED and implementation.outside_torch:
        return f"{implementation.name} computes outside torch, which cannot compile it"
    if case.mode is Mode.COMPILED and case.device == "cpu" and compiler() is None:
        return "torch.compile needs a C++ compiler, and there is none (install g++, or set CXX)"
    return None


def model_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes any implementation must move: needed tensors read, results written once."""
    read = {
        Direction.FORWARD: (inputs.x, inputs.weight, inputs.bias),
        Direction.BACKWARD: (inputs.x, inputs.dy, inputs.weight),
        # both passes read x: the rest of a model runs between them
        Direction.FORWARD_BACKWARD: (
            inputs.x,
            inputs.weight,
            inputs.bias,
            inputs.x,
            inputs.dy,
            inputs.weight,
        ),
    }[case.direction]
    return _bytes_of(read) + result_bytes(case, inputs)


def result_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes of the results: y is like x, and each gradient like its input."""
    gradients = tuple(getattr(inputs, name) for name in case.differentiated)
    results = {
        Direction.FORWARD: (inputs.x,),
        Direction.BACKWARD: gradients,
        Direction.FORWARD_BACKWARD: (inputs.x, *gradients),
    }[case.direction]
    return _bytes_of(results)


def _bytes_of(tensors: Sequence[Tensor | None]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)


def _bind_torch_copy(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Copy x into preallocated memory."""
    x = tensors[0]
    out = torch.empty_like(x)
    return partial(out.copy_, x)


def _bind_torch_add(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Copy x by a kernel: an addition of 0."""
    x = tensors[0]
    return partial(torch.add, x, 0, out=torch.empty_like(x))


def _bind_numpy_copy(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Copy x with numpy, as integers of its size, since numpy lacks some dtypes."""
    x = negated_view(tensors[0]) if tensors[0].is_neg() else tensors[0]  # as it lies in memory
    x = x.view(_AS_INTEGERS[x.element_size()])
    return partial(np.copyto, torch.empty_like(x).numpy(), x.numpy())


def _bind_streamed_copy(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Copy x past the caches, as an implementation may write results that exceed them."""
    return streamed_copy(torch.empty_like(tensors[0]), tensors[0])
