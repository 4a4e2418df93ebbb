"""Contract checks of the caller's state: a call leaves it unchanged and respects its modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.completeness import copies_of
from harness.numerics.computed import checked, guarded
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.verify.checks.graph import Graph, training_case
from harness.verify.checks.outputs import (
    compute,
    compute_y,
    first_differing_output,
    forward_case,
    outputs_beyond,
)
from harness.verify.checks.settings import BLOCK, LONG, SMALL, at
from harness.verify.process_state import (
    process_state,
    process_state_restored,
    set_caller_state,
    set_other_state,
    set_usual_state,
)
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = [
    "is_correct_under_autocast",
    "is_unchanged_by_modes_of_the_caller",
    "is_unchanged_in_inference_mode",
    "keeps_accuracy_under_autocast",
    "records_no_unwanted_graph",
    "restores_process_state",
]

_AUTOCAST_LIMIT = 2.0**-4  # of the norm of y: sixteen roundings of bfloat16 (2^-8) in a row


def records_no_unwanted_graph(implementation: Implementation, case: Case) -> str | None:
    """y requires a gradient only if an input does and gradients are being recorded."""
    case, inputs = forward_case(implementation, case, (6, 32))
    leaves = [each.clone().requires_grad_() for each in inputs.tensors]
    if compute_y(implementation, case, inputs.at(leaves)).requires_grad:
        return "y requires a gradient under torch.no_grad()"
    with torch.enable_grad():
        if _called(implementation, case, inputs).requires_grad:
            return "y requires a gradient although no input does"
    return None


@at(SMALL, BLOCK, LONG)
def restores_process_state(implementation: Implementation, case: Case) -> str | None:
    """Random number generators, modes and defaults are left as they were."""
    case, inputs = training_case(implementation, case)
    arguments = (inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
    call = guarded(implementation.function, *arguments)
    calls: list[Callable[[], object]] = [call]
    if not implementation.forward_only:
        calls.append(lambda: Graph.of(implementation, case, inputs).gradients())
    with process_state_restored():
        for each in calls:
            each()  # a first call may import modules, which may change filters or the environment
        for set_state in (set_other_state, set_usual_state):
            for is_recording in (False, True):
                for each in calls:
                    set_state()
                    torch.set_grad_enabled(is_recording)
                    before = process_state()
                    each()
                    after = process_state()
                    for name, value in before.items():
                        if after[name] != value:
                            return f"changes {name} of the process"
    return None


def is_correct_under_autocast(implementation: Implementation, case: Case) -> str | None:
    """Under autocast, y is a LayerNorm to the accuracy of bfloat16."""
    if case.dtype != "float32":
        return None
    case, inputs = forward_case(implementation, case, (6, 64))
    plain = compute_y(implementation, case, inputs).clone()
    with torch.autocast(case.device, dtype=torch.bfloat16):
        y = compute_y(implementation, case, inputs)
    if not (plain - y).norm() <= _AUTOCAST_LIMIT * plain.norm():
        return "y is wrong under torch.autocast, beyond the rounding of bfloat16"
    return None


def keeps_accuracy_under_autocast(implementation: Implementation, case: Case) -> str | None:
    """Under autocast, y is as accurate as before: torch.nn.functional.layer_norm keeps float32."""
    if case.dtype != "float32":
        return None
    case, inputs = forward_case(implementation, case, (6, 64))
    plain = Outputs(y=compute_y(implementation, case, inputs).clone())
    with torch.autocast(case.device, dtype=torch.bfloat16):
        outputs = Outputs(y=compute_y(implementation, case, inputs))
    wrong_before, wrong_under_autocast = (
        outputs_beyond(implementation, case, inputs, each) for each in (plain, outputs)
    )
    if wrong_under_autocast - wrong_before:
        return "is less accurate under torch.autocast, where PyTorch's own computes in float32"
    return None


@at(SMALL, BLOCK, LONG)
def is_unchanged_by_modes_of_the_caller(implementation: Implementation, case: Case) -> str | None:
    """The default dtype and the deterministic mode change no result."""
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    mixed = replace(case, distribution="mixed_conditions")  # shows other statistics, too
    case = fitted(implementation, mixed, direction=direction)
    inputs = make_inputs(case)
    expected = copies_of(compute(implementation, case, inputs))
    with process_state_restored():
        set_caller_state()
        outputs = compute(implementation, case, inputs)
    if name := first_differing_output(implementation, case, inputs, expected, outputs):
        return f"{name} changes with the default dtype or in the deterministic mode"
    return None


def is_unchanged_in_inference_mode(implementation: Implementation, case: Case) -> str | None:
    """torch.inference_mode changes no result."""
    case, inputs = forward_case(implementation, case, (6, 64))
    plain = Outputs(y=compute_y(implementation, case, inputs).clone())
    with torch.inference_mode():
        y = _called(implementation, case, inputs).clone()
    outputs = Outputs(y=y.clone())  # a normal tensor again
    if first_differing_output(implementation, case, inputs, plain, outputs):
        return "y changes under torch.inference_mode"
    return None


def _called(implementation: Implementation, case: Case, inputs: Inputs) -> Tensor:
    """Return y of a call in the modes that are set now."""
    x, shape = inputs.x, case.normalized_shape
    call = guarded(implementation.function, x, shape, inputs.weight, inputs.bias, case.eps)
    return checked("y", call(), x)
