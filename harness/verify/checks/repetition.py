"""Contract checks of repeated calls: an earlier call never changes the result of a later one."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch

from harness.inputs import make_inputs
from harness.numerics.outputs import Outputs
from harness.records import Case
from harness.verify.checks.outputs import (
    compute_y,
    elsewhere,
    first_differing_output,
    forward_case,
)
from harness.verify.checks.settings import EVERY_SETTING, PATHS, SMALL, at
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = ["repeated_calls_agree", "sees_new_values_at_old_addresses"]

CALLS = 100  # more than a cache of the first few results holds
_CALLS_AT_OTHER_SIZES = 12  # the number matters at one size; a ring of buffers is shorter
_MOST_S = 2.0  # a slow target gets fewer calls


@at(*EVERY_SETTING)
def repeated_calls_agree(implementation: Implementation, case: Case) -> str | None:
    """Call 100 returns what call 1 returned, with other calls in between."""
    case, inputs = forward_case(implementation, case)
    y = compute_y(implementation, case, inputs)
    first, kept = Outputs(y=y.clone()), [(y, y.clone())]
    other_case = fitted(implementation, case, seed=case.seed + 1, eps=0.25)
    began = perf_counter()
    other_inputs = make_inputs(other_case)
    expected = Outputs(y=compute_y(implementation, other_case, other_inputs).clone())
    wanted = CALLS if case.shape == SMALL.shape else _CALLS_AT_OTHER_SIZES
    calls = min(wanted, max(4, int(_MOST_S / (perf_counter() - began))))
    for call in range(2, calls + 1):
        again = Outputs(y=compute_y(implementation, case, inputs))
        kept.append((again.y, again.y.clone()))
        if call in (2, calls) and first_differing_output(
            implementation, case, inputs, first, again
        ):
            return f"call {call} returns another result than call 1, for the same arguments"
    again = Outputs(y=compute_y(implementation, other_case, other_inputs))
    if first_differing_output(implementation, other_case, other_inputs, expected, again):
        return "a result changes after calls with other arguments"
    # bit by bit: no two random inputs have the same LayerNorm
    if torch.equal(first.y, expected.y):
        return "returns the same result for other arguments of the same shape"
    if not all(torch.equal(y, copy) for y, copy in kept):
        return "later calls overwrite a y that was returned"
    return None


@at(*PATHS)
def sees_new_values_at_old_addresses(implementation: Implementation, case: Case) -> str | None:
    """Values that change in place, at the same address, change the result."""
    case, inputs = forward_case(implementation, case)
    held = inputs.copies()
    compute_y(implementation, case, held)
    later = make_inputs(replace(case, seed=case.seed + 1))
    for name in ("x", "weight", "bias"):
        tensor, new = getattr(held, name), getattr(later, name)
        if tensor is None:
            continue
        tensor.copy_(new)
        moved = replace(held, **{name: elsewhere(new)})
        at_old_address = Outputs(y=compute_y(implementation, case, held).clone())
        at_new_address = Outputs(y=compute_y(implementation, case, moved))
        if first_differing_output(implementation, case, moved, at_new_address, at_old_address):
            return f"uses the old values of {name} after {name} was changed in place"
    longer = fitted(implementation, case, shape=(4, 48))
    compute_y(implementation, longer, make_inputs(longer))  # a second shape must not raise
    return None
