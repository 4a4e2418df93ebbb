"""Contract checks of calls that are right only where they are checked: cheats of benchmarks.

The page "Cheats" of the documentation lists them; the tests hold one target for each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from secrets import randbelow
from time import perf_counter

import torch

from harness.inputs import make_inputs
from harness.measure.devices import device_of
from harness.measure.placement import relocate
from harness.measure.sampler import Sampler, TimedCall
from harness.numerics.completeness import SETTLE_S
from harness.numerics.computed import bind, grad_mode, run_once
from harness.numerics.outputs import Outputs
from harness.records import ArmRole, Cache, Case, Direction
from harness.run.recheck import Timed, reuse, run_again
from harness.verify.checks.outputs import (
    compute,
    compute_y,
    differing_outputs,
    forward_case,
    outputs_beyond,
)
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = [
    "is_complete_when_it_returns",
    "is_right_on_unknown_inputs",
    "is_the_same_while_timed",
    "normalises_normalised_rows",
]

_SHAPE = (64, 256)  # large enough that a call takes longer than a look into a cache of results
_CALLS, _MOST_S = 30, 0.5  # before the timed call; a slow target gets fewer
_SEEDS = 1 << 31  # as many as torch's generators take
_NEARLY = 1 + 2**-6  # exact in every dtype: rows of nearly unit variance are not normalised yet


def is_complete_when_it_returns(implementation: Implementation, case: Case) -> str | None:
    """No output changes after the call has returned."""
    case = fitted(implementation, case, shape=_SHAPE, direction=_direction(implementation))
    with grad_mode(case):
        run_once(
            implementation.function, case, make_inputs(case), is_judged=True, settle_s=SETTLE_S
        )
    return None


def is_right_on_unknown_inputs(implementation: Implementation, case: Case) -> str | None:
    """Results are right for inputs of a seed that no target can know."""
    seed = randbelow(_SEEDS)
    known = fitted(implementation, case, shape=_SHAPE, direction=_direction(implementation))
    unknown = replace(known, seed=seed)
    for name in sorted(_wrong(implementation, unknown) - _wrong(implementation, known)):
        return f"{name} is right for the usual inputs and wrong for those of seed {seed}, a new one"
    return None


def _wrong(implementation: Implementation, case: Case) -> set[str]:
    """Return the names of the outputs that are wrong."""
    inputs = make_inputs(case)
    return outputs_beyond(implementation, case, inputs, compute(implementation, case, inputs))


def is_the_same_while_timed(implementation: Implementation, case: Case) -> str | None:
    """A call in the timer gives what a call outside gives, and does the work each time."""
    directions = [Direction.FORWARD]
    if not implementation.forward_only:
        directions.append(Direction.FORWARD_BACKWARD)
    for direction in directions:
        sized = fitted(implementation, case, shape=_SHAPE, direction=direction)
        with grad_mode(sized):
            if text := _unlike_while_timed(implementation, sized):
                return text
    return None


def _unlike_while_timed(implementation: Implementation, case: Case) -> str | None:
    first, new = make_inputs(case), make_inputs(replace(case, seed=case.seed + 1))
    placed = first.at([relocate(each, Random(case.id)) for each in first.tensors])
    timed_call = TimedCall(
        ArmRole.SUBJECT, case.implementation, partial(bind, implementation.function, case)
    )
    subject = Sampler(timed_call, device_of(case.device, 1), Cache.WARM)
    subject.bind([placed.tensors])
    began, calls = perf_counter(), 0
    while calls < _CALLS and perf_counter() - began < _MOST_S:
        subject.timed_result()
        calls += 1
    timed = Timed(case, implementation.function, subject, placed, first)
    subject.calls = calls
    in_timer, alone = run_again(timed, new)
    for each in in_timer:
        # a training step does not return y
        whole = each if case.direction is Direction.FORWARD else replace(each, y=alone.y)
        if names := differing_outputs(implementation, case, new, alone, whole):
            return f"{names[0]} differs in a timed call, after {calls} calls"
    return reuse(timed)


def normalises_normalised_rows(implementation: Implementation, case: Case) -> str | None:
    """Rows with a mean near 0 and a variance near 1 are normalised like others."""
    case, inputs = forward_case(implementation, case, _SHAPE)
    x = torch.nn.functional.layer_norm(inputs.x.double(), case.normalized_shape) * _NEARLY
    near = replace(inputs, x=x.to(inputs.x.dtype))
    usual, special = (
        outputs_beyond(implementation, case, each, Outputs(y=compute_y(implementation, case, each)))
        for each in (inputs, near)
    )
    if special - usual:
        return "y is wrong for rows whose mean is near 0 and whose variance is near 1"
    return None


def _direction(implementation: Implementation) -> Direction:
    return Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
