"""Count the memory of a case: of one call, and of what its forward keeps for the backward."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from harness.inputs import Inputs
from harness.measure.memory import count_allocations, uncountable, undercounted
from harness.measure.placement import relocate
from harness.numerics.computed import bind, bind_recording_forward
from harness.records import Case, Direction, Memory
from harness.run.timed_calls import result_bytes
from implementations.contract import LayerNormFunction

__all__ = ["CountedMemory", "count_memory"]


class CountedMemory(NamedTuple):
    """What one call allocates, and its operators."""

    memory: Memory
    operators: int


def count_memory(function: LayerNormFunction, case: Case, inputs: Inputs) -> CountedMemory | str:
    """Return the memory and the operators of a call, or why they cannot be counted.

    Raises:
        ImplementationError: the implementation raised.
    """
    if why := uncountable(case.device):
        return why
    # copies: the function may write to its inputs
    tensors = [relocate(each, Random(case.id)) for each in inputs.tensors]
    call = bind(function, case, tensors)
    call()  # creates caches and workspaces, which are not part of a call
    counted, y_bytes = count_allocations(call, case.device), inputs.x.nbytes
    minimum_bytes = result_bytes(case, inputs)
    if why := undercounted(counted, minimum_bytes - _not_held_bytes(case, inputs)):
        return why
    saved_bytes = None
    if case.direction is not Direction.FORWARD:
        forward = bind_recording_forward(function, case, tensors)
        forward_counted = count_allocations(forward, case.device)
        if why := undercounted(forward_counted, y_bytes):
            return f"in the forward {why}"
        saved_bytes = forward_counted.held_bytes - y_bytes
    memory = Memory(
        peak_extra_bytes=counted.peak_bytes,
        allocated_bytes=counted.total_bytes,
        allocations=counted.count,
        saved_bytes=saved_bytes,
        minimum_bytes=minimum_bytes,
    )
    return CountedMemory(memory, counted.operators)


def _not_held_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes of results that a call need not hold at its end."""
    if case.direction is Direction.FORWARD:
        return 0
    y_bytes = inputs.x.nbytes if case.direction is Direction.FORWARD_BACKWARD else 0
    # of a single row, dbias is dy: torch's autograd returns the dy that it was given
    dbias_bytes = inputs.bias.nbytes if inputs.bias is not None and case.rows == 1 else 0
    return y_bytes + dbias_bytes  # a training step returns gradients, but not y
