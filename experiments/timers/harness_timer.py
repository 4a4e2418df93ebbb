"""The harness's sampler, called as the harness calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from time import perf_counter

from pairs import ROLES, Pair
from peer_timers import Measured
from torch import Tensor

from harness.measure.devices import device_of
from harness.measure.latency import Sampling, TimedCall
from harness.measure.memory import fault_in
from harness.records import Allocation, ArmRole, Budget
from harness.run.call import bind

__all__ = ["sampler"]


def sampler(pair: Pair, random: Random, *, limit_s: float) -> Measured:
    """Measure ``pair`` for ``limit_s`` seconds, however wide the interval is then.

    The functions are bound as for any case of a sweep, so the harness's own layer is around each
    call and its cost is in the figures. No copy is timed.
    """
    tensors = pair.tensors()
    # no interval is as narrow as 0 and no run has so many epochs: only the time limit ends it
    budget = Budget(target_ratio=0.0, max_epochs=1_000_000)
    timed_calls = [
        TimedCall(role, pair.implementation(role), partial(_bind, pair, role)) for role in ROLES
    ]
    began = perf_counter()
    fault_in(
        8 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    )  # as for any case
    left_s = limit_s - (perf_counter() - began)
    sampling = Sampling(
        timed_calls,
        tensors,
        device_of("cpu", threads=1),
        replace(budget, limit_s=left_s),
        random,
        allocation=Allocation.STEADY,
        model_bytes=0,  # only stored with the result, which is not kept here
        copied_bytes=0,
    )
    sampled = sampling.sampled()
    seconds = perf_counter() - began
    latency = sampled.latency
    assert latency is not None  # the clock of a CPU does step
    assert latency.reference_ratio is not None  # there is a reference
    return Measured(latency.reference_ratio.value, seconds)


def _bind(pair: Pair, role: ArmRole, tensors: Sequence[Tensor]) -> Callable[[], object]:
    return bind(pair.function(role), pair.case, tensors)
