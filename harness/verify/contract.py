"""Promises that no single result shows: all of them in order, and here refusals and repetition.

The others are in the modules named ``*_contract``, after what they are of, and in
:mod:`harness.verify.second_derivative`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.answers import (
    differing_outputs,
    elsewhere,
    has_bits_of,
    outputs_beyond,
    outputs_of,
    y_of,
)
from harness.verify.backward_contract import (
    adds_to_what_there_is,
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_the_same_recorded,
    gives_them_again,
    notices_what_has_changed,
)
from harness.verify.calls_contract import (
    is_as_right_under_autocast,
    leaves_the_process_as_it_was,
    records_nothing_unasked,
    serves_several_callers_at_once,
    takes_arguments_as_torch_does,
)
from harness.verify.errors import Outputs
from harness.verify.guest import GuestError, Unmet, refuses
from harness.verify.memory_contract import (
    has_memory_for_each_element,
    reads_what_lies_anywhere,
    shares_no_memory,
)
from harness.verify.module_contract import is_the_same_in_evaluation, starts_as_torchs_does
from harness.verify.second_derivative import differentiates_again_or_refuses
from harness.verify.training_contract import (
    follows_its_parameters,
    keeps_graphs_apart,
    leaves_given_gradients_alone,
)
from implementations.contract import Implementation

__all__ = ["BACKWARD_CHECKS", "CHECKS", "broken_promises"]

CALLS = 100  # ours: a cache of the first few results is found out
_THREADS, _RACES = 4, 3  # ours
# Enough for two threads of PyTorch, which gives each 32768 elements, and a row over; and fewer rows
# than threads.
_SHARED = ((257, 256), (2, 20_000), (3, 96))

Check = Callable[[Implementation, Case], str | None]
"""Returns what is broken, or None."""


def broken_promises(implementation: Implementation, case: Case) -> Iterator[str]:
    """Yield each promise that ``implementation`` breaks, in words, once.

    Args:
        implementation: what is checked; where it declines a call, no promise is broken.
        case: gives dtype, device and direction; shapes are chosen here.
    """
    told: set[str] = set()
    for check in CHECKS if implementation.forward_only else CHECKS + BACKWARD_CHECKS:
        try:
            found = check(implementation, case)
        except GuestError as ended:
            if ended.status is Status.UNSUPPORTED:
                continue
            found = f"raises in a call like others that it answers: {ended.reason}"
        except Unmet as broken:
            found = str(broken)
        if found and found not in told:
            told.add(found)
            yield found


def refuses_wrong_parameters(implementation: Implementation, case: Case) -> str | None:
    """A weight or bias of another shape is an error, not something to broadcast."""
    inputs = make_inputs(replace(case, shape=(4, 6), direction=Direction.FORWARD))
    for name in ("weight", "bias"):
        parameter = getattr(inputs, name)
        for wrong in (parameter[:1], parameter[:3], parameter.repeat(2), parameter.expand(4, 6)):
            given = {"weight": inputs.weight, "bias": inputs.bias, name: wrong}
            arguments = (inputs.x, (6,), given["weight"], given["bias"], case.eps)
            if refuses(implementation.function, *arguments):
                continue
            return f"accepts a {name} of shape {list(wrong.shape)} for a normalized_shape of [6]"
    return None


def refuses_a_wrong_shape(implementation: Implementation, case: Case) -> str | None:
    """A normalized_shape that x does not end in is an error."""
    x = make_inputs(replace(case, shape=(4, 6), direction=Direction.FORWARD)).x
    for wrong in ((4,), (2, 6), (4, 3), (3, 4, 6)):
        if not refuses(implementation.function, x, wrong, None, None, case.eps):
            return f"accepts a normalized_shape of {list(wrong)} for an x of shape [4, 6]"
    return None


def refuses_parameters_of_fewer_axes(implementation: Implementation, case: Case) -> str | None:
    """Of several normalized axes weight and bias have all."""
    asked = replace(case, shape=(3, 5, 7), normalized_dims=2, direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    if inputs.weight is None or inputs.bias is None:
        return None
    y_of(implementation, asked, inputs)  # what declines two axes declines this check
    for weight, bias in ((inputs.weight[0], inputs.bias), (inputs.weight, inputs.bias[0])):
        if not refuses(implementation.function, inputs.x, (5, 7), weight, bias, case.eps):
            return "accepts a weight or bias of shape [7] for a normalized_shape of [5, 7]"
    return None


def answers_alike_every_time(implementation: Implementation, case: Case) -> str | None:
    """The hundredth call gives what the first gave, with other calls between them."""
    case = replace(case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    given = y_of(implementation, case, inputs)
    first, kept = Outputs(y=given.clone()), [(given, given.clone())]
    other = replace(case, seed=case.seed + 1, eps=0.25)
    others = make_inputs(other)
    expected = Outputs(y=y_of(implementation, other, others).clone())
    for call in range(2, CALLS + 1):
        again = Outputs(y=y_of(implementation, case, inputs))
        kept.append((again.y, again.y.clone()))
        if call in (2, CALLS) and differing_outputs(implementation, case, inputs, first, again):
            return f"call {call} gives another answer than the first, for the same arguments"
    again = Outputs(y=y_of(implementation, other, others))
    if differing_outputs(implementation, other, others, expected, again):
        return "an answer changes when other calls have come between"
    # bit by bit: no two random inputs have the same LayerNorm
    if torch.equal(first.y, expected.y):
        return "gives the same answer for other arguments of the same shape"
    if not all(torch.equal(y, copy) for y, copy in kept):
        return "y changes after it was returned, when later calls are made"
    return None


def sees_new_data(implementation: Implementation, case: Case) -> str | None:
    """New numbers at the old address, and a new weight or shape, are not taken for the old ones."""
    case = replace(case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    held = inputs.at([each.clone() for each in inputs.tensors])
    y_of(implementation, case, held)
    later = make_inputs(replace(case, seed=case.seed + 1))
    for name in ("x", "weight", "bias"):
        tensor, new = getattr(held, name), getattr(later, name)
        tensor.copy_(new)
        fresh = replace(held, **{name: elsewhere(new)})
        of_held = Outputs(y=y_of(implementation, case, held).clone())
        of_fresh = Outputs(y=y_of(implementation, case, fresh))
        if differing_outputs(implementation, case, fresh, of_fresh, of_held):
            return f"takes new numbers in {name} at an old address for the old ones"
    longer = replace(case, shape=(4, 48))
    y_of(implementation, longer, make_inputs(longer))  # another shape must not stop it
    return None


def is_right_on_several_threads(implementation: Implementation, case: Case) -> str | None:
    """Several threads of the CPU are as right as one, each time: none's rows or sums are lost."""
    if case.device != "cpu":
        return None
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    for shape in _SHARED:
        asked = replace(case, shape=shape, affine=Affine.BOTH, direction=direction)
        if found := _loses_what_is_shared(implementation, asked):
            return found
    return None


def _loses_what_is_shared(implementation: Implementation, asked: Case) -> str | None:
    """Return what is right on one thread alone."""
    inputs = make_inputs(asked)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = outputs_of(implementation, asked, inputs)
        torch.set_num_threads(_THREADS)
        for _ in range(_RACES):
            shared = outputs_of(implementation, asked, inputs)
            if has_bits_of(shared, alone):
                continue
            right, wrong = (
                outputs_beyond(implementation, asked, inputs, each) for each in (alone, shared)
            )
            for name in sorted(wrong - right):
                return f"{name} is right on one thread and wrong on {_THREADS}"
    finally:
        torch.set_num_threads(before)
    return None


CHECKS: tuple[Check, ...] = (
    shares_no_memory,
    has_memory_for_each_element,
    refuses_wrong_parameters,
    refuses_a_wrong_shape,
    refuses_parameters_of_fewer_axes,
    answers_alike_every_time,
    sees_new_data,
    reads_what_lies_anywhere,
    is_right_on_several_threads,
    serves_several_callers_at_once,
    takes_arguments_as_torch_does,
    records_nothing_unasked,
    leaves_the_process_as_it_was,
    is_as_right_under_autocast,
    is_the_same_in_evaluation,
    starts_as_torchs_does,
)
"""Of a forward, and of a backward where there is one."""

BACKWARD_CHECKS: tuple[Check, ...] = (
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_them_again,
    gives_the_same_recorded,
    adds_to_what_there_is,
    notices_what_has_changed,
    leaves_given_gradients_alone,
    keeps_graphs_apart,
    follows_its_parameters,
    differentiates_again_or_refuses,
)
"""Of a backward, asked of those that have one."""
