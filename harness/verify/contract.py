"""Promises that no single result shows: memory, refusals, and the same answer every time.

Those of a backward alone are in :mod:`harness.verify.backward_contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.inputs import LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.answers import (
    copies_of,
    differing_outputs,
    elsewhere,
    has_bits_of,
    outputs_beyond,
    outputs_of,
    y_of,
)
from harness.verify.backward_contract import (
    differentiates_again_or_refuses,
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_them_again,
    leaves_given_gradients_alone,
    notices_what_has_changed,
)
from harness.verify.errors import Outputs
from harness.verify.guest import GuestError, Unmet, refuses
from implementations.contract import Implementation

__all__ = ["BACKWARD_CHECKS", "CHECKS", "broken_promises"]

CALLS = 100  # ours: a cache of the first few results is found out
_THREADS, _RACES = 4, 3  # ours
_SHARED = (
    257,
    256,
)  # enough for two threads of PyTorch, which gives each 32768 elements; a row over

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


def shares_no_memory(implementation: Implementation, case: Case) -> str | None:
    """y is memory of its own: not that of x, weight or bias, and not that of the y before."""
    inputs = make_inputs(replace(case, shape=(4, 32), direction=Direction.FORWARD))
    first, second = (y_of(implementation, case, inputs) for _ in range(2))
    owners = {"x": inputs.x, "weight": inputs.weight, "bias": inputs.bias, "the y before": first}
    for name, tensor in owners.items():
        if tensor is not None and _meet(tensor, second):
            return f"y shares the memory of {name}"
    return None


def has_memory_for_each_element(implementation: Implementation, case: Case) -> str | None:
    """No two elements of y or of a gradient are one place in memory, where writing one writes both.

    Otherwise strides are free; whether they are those of x is a property. An x that is itself
    expanded is where a result becomes so by taking over its strides.
    """
    directions = [Direction.FORWARD]
    if not implementation.forward_only:
        directions.append(Direction.BACKWARD)
    for layout, direction in product(("contiguous", "expanded"), directions):
        asked = replace(case, shape=(4, 32), layout=layout, direction=direction)
        try:
            outputs = outputs_of(implementation, asked, make_inputs(asked))
        except GuestError:
            if layout == "contiguous":
                raise
            continue  # which layouts are taken is for the catalogue to find
        for name in ("y", "dx", "dweight", "dbias"):
            tensor = getattr(outputs, name)
            if tensor is not None and _overlaps(tensor):
                return f"{name}'s elements overlap in memory, for an x that is {layout}"
    return None


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
    if refuses(implementation.function, x, (4,), None, None, case.eps):
        return None
    return "accepts a normalized_shape of [4] for an x of shape [4, 6]"


def answers_alike_every_time(implementation: Implementation, case: Case) -> str | None:
    """The hundredth call gives what the first gave, with other calls between them."""
    case = replace(case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    first = Outputs(y=y_of(implementation, case, inputs).clone())
    other = replace(case, seed=case.seed + 1, eps=0.25)
    others = make_inputs(other)
    expected = Outputs(y=y_of(implementation, other, others).clone())
    for call in range(2, CALLS + 1):
        again = Outputs(y=y_of(implementation, case, inputs))
        if call in (2, CALLS) and differing_outputs(implementation, case, inputs, first, again):
            return f"call {call} gives another answer than the first, for the same arguments"
    again = Outputs(y=y_of(implementation, other, others))
    if differing_outputs(implementation, other, others, expected, again):
        return "an answer changes when other calls have come between"
    # bit by bit: no two random inputs have the same LayerNorm
    if torch.equal(first.y, expected.y):
        return "gives the same answer for other arguments of the same shape"
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


def reads_what_lies_anywhere(implementation: Implementation, case: Case) -> str | None:
    """Weight, bias and dy count by their values, as x does, wherever in memory these are.

    The gradient of y.sum() is one number expanded, and that behind a transposed y is transposed.
    """
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    asked = replace(case, shape=(6, 32), affine=Affine.BOTH, direction=direction)
    inputs = make_inputs(asked)
    moved = [("dy", ("dy",)), ("weight or bias", ("weight", "bias"))]
    for (what, names), (layout, lay) in product(moved[inputs.dy is None :], _ANYWHERE.items()):
        laid = replace(inputs, **{name: lay(getattr(inputs, name)) for name in names})
        plain = replace(inputs, **{name: elsewhere(getattr(laid, name)) for name in names})
        try:
            expected = copies_of(outputs_of(implementation, asked, plain))
            found = outputs_of(implementation, asked, laid)
        except GuestError as ended:
            if ended.status is Status.UNSUPPORTED:
                continue
            raise
        if not has_bits_of(found, expected):
            for name in differing_outputs(implementation, asked, plain, expected, found):
                return f"{name} changes with the layout of {what}: {layout}"
    return None


def is_right_on_several_threads(implementation: Implementation, case: Case) -> str | None:
    """Several threads of the CPU are as right as one, each time: none's rows or sums are lost."""
    if case.device != "cpu":
        return None
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    asked = replace(case, shape=_SHARED, affine=Affine.BOTH, direction=direction)
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


_ANYWHERE = LAYOUTS | {"one number expanded": lambda tensor: tensor.new_ones(()).expand_as(tensor)}


CHECKS: tuple[Check, ...] = (
    shares_no_memory,
    has_memory_for_each_element,
    refuses_wrong_parameters,
    refuses_a_wrong_shape,
    answers_alike_every_time,
    sees_new_data,
    reads_what_lies_anywhere,
    is_right_on_several_threads,
)
"""Of a forward, and of a backward where there is one."""

BACKWARD_CHECKS: tuple[Check, ...] = (
    gives_each_gradient,
    gives_the_gradients_asked_for,
    gives_them_again,
    leaves_given_gradients_alone,
    notices_what_has_changed,
    differentiates_again_or_refuses,
)
"""Of a backward, asked of those that have one."""


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements have one address."""
    steps: tuple[int, ...] = tensor.stride()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True))
    places = torch.arange(last + 1).as_strided(tensor.shape, steps)
    return len(set(places.flatten().tolist())) < tensor.numel()


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie over each other; side by side in one slab they do not."""
    first, second = _places(one), _places(other)
    return max(first.start, second.start) < min(first.stop, second.stop)


def _places(tensor: Tensor) -> range:
    """The addresses from its first element to its last."""
    if not tensor.numel():
        return range(0)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    start = tensor.data_ptr()
    return range(start, start + (last + 1) * tensor.element_size())
