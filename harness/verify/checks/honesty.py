"""Contract checks of calls that are right only where they are checked: cheats of benchmarks.

The page "Cheats" of the documentation lists them; the tests hold one target for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from secrets import randbelow

import torch

from harness.cases import Inputs
from harness.measure import Sampler, TimedCall, device_of, relocate
from harness.numerics import SETTLE_S, Outputs
from harness.records import ArmRole, Cache, Direction
from harness.run import Draws, Timed, bind, grad_mode, reuse, run_again, run_once
from harness.verify.checks.calls import Call, repeat
from harness.verify.checks.contract_checks import check

__all__ = [
    "is_complete_when_it_returns",
    "is_right_on_unknown_inputs",
    "is_the_same_while_timed",
    "normalises_normalised_rows",
]

_SHAPE = (64, 256)  # large enough that a call takes longer than a look into a cache of results
_CALLS, _MOST_S = 30, 0.5  # before the timed call; a slow target gets fewer
_SETTLED = 4  # on a busy machine a thread may be done before the copy in one call, late in another
_DRAWS = 16  # on a busy machine a cached result may be too old in most
_SEEDS = 1 << 31  # as many as torch's generators take
_NEARLY = 1 + 2**-6  # exact in every dtype: rows of nearly unit variance are not normalised yet


@check(None)
def is_complete_when_it_returns(call: Call) -> Iterator[str]:
    """No output changes after the call has returned."""
    call = call.changed(shape=_SHAPE)
    for _ in range(_SETTLED):
        with grad_mode(call.case):
            run_once(
                call.target.function, call.case, call.inputs, is_judged=True, settle_s=SETTLE_S
            )
    return iter(())  # what is wrong has been raised


@check(None)
def is_right_on_unknown_inputs(call: Call) -> Iterator[str]:
    """Results are right for inputs of a seed that no target can know."""
    seed = randbelow(_SEEDS)
    known, unknown = call.changed(shape=_SHAPE), call.changed(shape=_SHAPE, seed=seed)
    wrong = unknown.beyond(unknown.outputs())
    for name in sorted(wrong - known.beyond(known.outputs())):
        yield f"gives a right {name} for the usual inputs and a wrong one for a new seed, {seed}"


@check(None)
def is_the_same_while_timed(call: Call) -> Iterator[str]:
    """A call in the timer gives what a call outside gives, and does the work each time."""
    directions = [Direction.FORWARD]
    if call.case.direction is not Direction.FORWARD:
        directions.append(Direction.FORWARD_BACKWARD)
    for direction in directions:
        timed = call.changed(shape=_SHAPE, direction=direction)
        with grad_mode(timed.case):
            yield from _unlike_while_timed(timed)


def _unlike_while_timed(call: Call) -> Iterator[str]:
    case, function, new = call.case, call.target.function, call.seeded(1)
    placed = call.inputs.at([relocate(own, Random(case.id)) for own in call.inputs.tensors])
    timed_call = TimedCall(ArmRole.SUBJECT, case.implementation, partial(bind, function, case))
    subject = Sampler(timed_call, device_of(case.device, 1), Cache.WARM)
    subject.bind([placed.tensors])
    subject.calls = calls = repeat(subject.timed_result, _CALLS, _MOST_S)
    timed = Timed(case, function, subject, placed, call.inputs)
    in_timer, alone = run_again(timed, new.inputs)
    for outputs in in_timer:
        # a training step does not return y
        whole = outputs if case.direction is Direction.FORWARD else replace(outputs, y=alone.y)
        yield from new.gives_another(alone, whole, f"in a timed call, after {calls} calls")
    draws = Draws(case, alone, new.inputs, partial(_wrong, call, new.beyond(alone)))
    for _ in range(_DRAWS):
        draws(subject, placed.tensors)
    if draws.wrong:
        yield f"gives another {draws.wrong} in a timed call"
    if reused := reuse(timed):
        yield reused


def _wrong(call: Call, known: set[str], outputs: Outputs, inputs: Inputs) -> str | None:
    """Return the name of an output that is wrong, other than those that are known to be."""
    return next(iter(sorted(call.at(inputs.tensors).beyond(outputs) - known)), None)


@check(Direction.FORWARD)
def normalises_normalised_rows(call: Call) -> Iterator[str]:
    """Rows with a mean near 0 and a variance near 1 are normalised like others."""
    call = call.changed(shape=_SHAPE)
    x = torch.nn.functional.layer_norm(call.inputs.x.double(), call.case.normalized_shape)
    near = call.on(x=(x * _NEARLY).to(call.inputs.x.dtype))
    if near.beyond(near.outputs()) - call.beyond(call.outputs()):
        yield "gives a wrong y for rows whose mean is near 0 and whose variance is near 1"
