"""Time a case in turn with a reference and copies; on a GPU, also a replay from a CUDA graph.

A replay is timed where launching the call takes long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from random import Random

import numpy as np
import torch
from torch import Tensor

import implementations
from harness.cases.inputs import Inputs
from harness.measure import SAMPLE_S, Device, Sampled, Sampler, Sampling, TimedCall, compiler
from harness.records import Allocation, ArmRole, Budget, Cache, Case, Direction, Mode, Status
from harness.run.attempt import Judged
from harness.run.call import ImplementationError, bind
from implementations.contract import Implementation, LayerNormFunction
from implementations.cpu.copies import can_stream, streamed_copy
from implementations.torch_private import negated_view

REFERENCE = implementations.find("native")
_STREAMED_BYTES = 1 << 20  # below, results fit in a cache, and a copy through it is faster
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# trade-off: from this share on, the time of a call on a GPU may depend on the host
_LAUNCH_SHARE = 0.5
_MOST_RECORDED = 20  # trade-off: calls in a graph, whose own launch takes 1 to 2 us


def time_case(
    judged: Judged,
    inputs: Inputs,
    device: Device,
    budget: Budget,
    *,
    allocation: Allocation,
    cache: Cache,
    reference: Implementation | None = None,
    reference_first: bool = False,
    draw: Callable[[Sampler, Sequence[Tensor]], None] | None = None,
) -> Sampled:
    """Time what was judged on ``inputs``, in turn with the usual reference and copies.

    If ``reference`` is given, it replaces the usual reference and the copies; ``reference_first``
    prepares and warms it up first. ``draw`` is that of :class:`harness.measure.latency.Sampling`.
    """
    case = judged.case
    sampling = partial(
        Sampling,
        tensors=inputs.tensors,
        device=device,
        budget=budget,
        # each process has other addresses and orders, so that their luck averages out
        random=Random(f"{case.id}/{os.getpid()}"),
        allocation=allocation,
        model_bytes=model_bytes(case, inputs),
        copied_bytes=2 * inputs.x.nbytes,
        cache=cache,
    )
    timed_calls = timed_calls_of(judged.called, case, reference)
    if reference_first:
        timed_calls.reverse()
    sampled = sampling(timed_calls, draw=draw).sampled()
    latency = sampled.latency
    if latency is None or (latency.launch_s or 0.0) <= _LAUNCH_SHARE * latency.per_call_s.value:
        return sampled
    recorded_calls = 1  # per graph; a flush of the cache is before the graph, not in it
    if cache is Cache.WARM:
        fitting = int(SAMPLE_S / latency.per_call_s.value)
        recorded_calls = max(1, min(fitting, _MOST_RECORDED))
    recorded = [
        _replaying(timed_call, device, recorded_calls)
        for timed_call in timed_calls
        if timed_call.role is not ArmRole.CEILING
    ]
    try:
        replayed = sampling(recorded).sampled()
    except ImplementationError:  # it may call what a graph cannot record
        return sampled
    if (replay := replayed.latency) is not None:
        names = ("value", "low", "high")
        per_call = {name: getattr(replay.per_call_s, name) / recorded_calls for name in names}
        replay_s = replace(replay.per_call_s, **per_call)
        latency = replace(latency, replay_s=replay_s, replay_ratio=replay.reference_ratio)
    return replace(
        sampled,
        latency=latency,
        sampling_s=sampled.sampling_s + replayed.sampling_s,
        warming_s=sampled.warming_s + replayed.warming_s,
    )


def _replaying(timed_call: TimedCall, device: Device, calls: int) -> TimedCall:
    def prepare(tensors: Sequence[Tensor]) -> Callable[[], object]:
        replay = device.replayed(partial(timed_call.prepare, tensors), calls)
        if replay is None:
            raise ImplementationError(Status.UNSUPPORTED, "a graph cannot record the call")
        return replay

    return replace(timed_call, prepare=prepare)


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
    if case.device == "cpu":  # numpy may be faster for small tensors: it dispatches less
        calls.append(TimedCall(ArmRole.CEILING, "numpy copyto", _bind_numpy_copy))
        size = prod(case.shape) * getattr(torch, case.dtype).itemsize
        if size >= _STREAMED_BYTES and case.layout == "contiguous" and can_stream():
            calls.append(TimedCall(ArmRole.CEILING, "streamed copy", _bind_streamed_copy))
    return calls


def _reference_call(reference: Implementation, case: Case) -> TimedCall:
    prepare = partial(bind, reference.function, case)
    return TimedCall(ArmRole.REFERENCE, reference.name, prepare)


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
    read: list[Tensor | None] = []
    if case.direction is not Direction.BACKWARD:
        read += [inputs.x, inputs.weight, inputs.bias]
    if case.direction is not Direction.FORWARD:
        # x and the weight again: the rest of a model runs between the passes
        read += [inputs.x, inputs.dy, inputs.weight]
    return sum(map(_distinct_bytes, read)) + result_bytes(case, inputs)


def result_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes of the results: y is like x, and each gradient like its input."""
    results = [] if case.direction is Direction.BACKWARD else [inputs.x]
    if case.direction is not Direction.FORWARD:
        results += [getattr(inputs, name) for name in case.differentiated]
    return sum(tensor.nbytes for tensor in results if tensor is not None)


def _distinct_bytes(tensor: Tensor | None) -> int:
    """Return the bytes of the elements of a tensor; those of an expanded axis count once."""
    if tensor is None:
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * prod(size for size, stride in sizes if stride or not size)


def _bind_torch_copy(tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Copy x into preallocated memory."""
    return partial(torch.empty_like(tensors[0]).copy_, tensors[0])


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
