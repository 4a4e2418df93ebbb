"""The weight of a case: what a call allocates, what its forward keeps, and its operators."""

from __future__ import annotations

from random import Random

from harness.inputs import Inputs
from harness.measure.memory import count_allocations
from harness.measure.placement import relocate
from harness.numerics.computed import bind, bind_recording_forward
from harness.records import Case, Direction, Memory
from harness.run.timed_calls import result_bytes
from implementations.contract import LayerNormFunction

__all__ = ["weigh"]


def weigh(function: LayerNormFunction, case: Case, inputs: Inputs) -> tuple[Memory, int]:
    """Count what one call of the case allocates and its forward keeps, and its operators."""
    # copies: what the function might write to is nobody else's
    tensors = [relocate(each, Random(case.id)) for each in inputs.tensors]
    call = bind(function, case, tensors)
    call()  # caches and workspaces are made once, and are not the call's
    counted = count_allocations(call, case.device)
    saved = None
    if case.direction is not Direction.FORWARD:
        forward = bind_recording_forward(function, case, tensors)
        y_bytes = inputs.x.numel() * inputs.x.element_size()
        saved = count_allocations(forward, case.device).held_bytes - y_bytes
    memory = Memory(
        peak_extra_bytes=counted.peak_bytes,
        allocated_bytes=counted.total_bytes,
        allocations=counted.count,
        saved_bytes=saved,
        minimum_bytes=result_bytes(case, inputs),
    )
    return memory, counted.operators
