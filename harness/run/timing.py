"""The latency of a case, and where its launching takes longer than its work, of a replay of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from torch import Tensor

from harness.inputs import Inputs
from harness.measure.device import Device
from harness.measure.latency import Sampled, measure_latency
from harness.measure.sampler import TimedCall
from harness.numerics.computed import ImplementationError, function_of, run_once
from harness.records import Allocation, ArmRole, Budget, Cache, Case, Latency
from harness.run.timed_calls import model_bytes, timed_calls_of
from implementations.contract import Implementation, LayerNormFunction

__all__ = ["time_beside", "time_case"]

_LAUNCH_SHARE = 0.5  # ours: from here on the time of a call on a GPU depends on the host's


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
    rival: Implementation | None = None,
) -> Sampled:
    """Time ``function`` on ``inputs``, beside the reference and a copy, or a rival alone."""
    measure = partial(
        measure_latency,
        tensors=inputs.tensors,
        device=device,
        budget=budget,
        # places and orders of its own in each process: one's luck is not the next one's
        random=Random(f"{case.id}/{os.getpid()}"),
        allocation=allocation,
        model_bytes=model_bytes(case, inputs),
        copied_bytes=2 * inputs.x.numel() * inputs.x.element_size(),
        compile_s=compile_s,
        cache=cache,
    )
    timed_calls = timed_calls_of(function, case, rival)
    sampled = measure(timed_calls)
    if sampled.latency is None or not _is_launch_bound(sampled.latency):
        return sampled
    recorded = [
        _replaying(each, device) for each in timed_calls if each.role is not ArmRole.CEILING
    ]
    try:
        replayed = measure(recorded)
    except (_NotReplayable, ImplementationError):  # it may call what no graph can record
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


def time_beside(
    rival: Implementation,
    function: LayerNormFunction,
    case: Case,
    inputs: Inputs,
    *more: Any,
    **named: Any,
) -> Sampled:
    """Time ``function`` as :func:`time_case` does, beside ``rival``, run as the case is."""
    again = replace(rival, function=function_of(rival, case.mode, keep=True))
    run_once(again.function, case, inputs)  # what is compiled is compiled now
    return time_case(function, case, inputs, *more, rival=again, **named)


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
