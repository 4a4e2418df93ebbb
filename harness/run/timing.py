"""Time a case and, where launching it takes long, a replay of it from a CUDA graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from torch import Tensor

from harness.inputs import Inputs
from harness.measure.device import Device
from harness.measure.latency import Sampled, measure_latency
from harness.measure.sampler import TimedCall
from harness.numerics.computed import ImplementationError
from harness.records import Allocation, ArmRole, Budget, Cache, Case, Latency
from harness.run.timed_calls import model_bytes, timed_calls_of
from implementations.contract import Implementation, LayerNormFunction

__all__ = ["time_case"]

# trade-off: from this share on, the time of a call on a GPU may depend on the host
_LAUNCH_SHARE = 0.5


class _NotReplayable(Exception):  # noqa: N818 - a finding, not a failure
    """A call cannot be recorded as a graph."""


def time_case(
    function: LayerNormFunction,
    case: Case,
    inputs: Inputs,
    device: Device,
    budget: Budget,
    *,
    allocation: Allocation,
    compile_s: float | None,
    cache: Cache,
    reference: Implementation | None = None,
) -> Sampled:
    """Time ``function`` on ``inputs``, in turn with the usual reference and copies.

    If ``reference`` is given, it replaces the usual reference and the copies.
    """
    measure = partial(
        measure_latency,
        tensors=inputs.tensors,
        device=device,
        budget=budget,
        # each process has other places and orders, so that their luck averages out
        random=Random(f"{case.id}/{os.getpid()}"),
        allocation=allocation,
        model_bytes=model_bytes(case, inputs),
        copied_bytes=2 * inputs.x.numel() * inputs.x.element_size(),
        compile_s=compile_s,
        cache=cache,
    )
    timed_calls = timed_calls_of(function, case, reference)
    sampled = measure(timed_calls)
    if sampled.latency is None or not _is_launch_bound(sampled.latency):
        return sampled
    recorded = [
        _replaying(each, device) for each in timed_calls if each.role is not ArmRole.CEILING
    ]
    try:
        replayed = measure(recorded)
    except (_NotReplayable, ImplementationError):  # it may call what a graph cannot record
        return sampled
    latency, replay = sampled.latency, replayed.latency
    if replay is not None:
        latency = replace(latency, replay_s=replay.per_call_s, replay_ratio=replay.reference_ratio)
    return replace(
        sampled,
        latency=latency,
        sampling_s=sampled.sampling_s + replayed.sampling_s,
        warming_s=sampled.warming_s + replayed.warming_s,
    )


def _is_launch_bound(latency: Latency) -> bool:
    launch_s = latency.launch_s
    return launch_s is not None and launch_s > _LAUNCH_SHARE * latency.per_call_s.value


def _replaying(timed_call: TimedCall, device: Device) -> TimedCall:
    def prepare(tensors: Sequence[Tensor]) -> Callable[[], object]:
        replay = device.replayed(partial(timed_call.prepare, tensors))
        if replay is None:
            raise _NotReplayable
        return replay

    return replace(timed_call, prepare=prepare)
