"""Promises that no single result shows: memory, refusals, and the same answer every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.guest import GuestError, Unmet, refuses, run_once
from implementations.contract import Implementation

__all__ = ["CHECKS", "broken_promises"]

CALLS = 100  # ours: a cache of the first few results is found out

Check = Callable[[Implementation, Case], str | None]
"""Returns what is broken, or None."""


def broken_promises(implementation: Implementation, case: Case) -> Iterator[str]:
    """Yield each promise that ``implementation`` breaks, in words.

    Args:
        implementation: what is checked; where it declines a call, no promise is broken.
        case: gives dtype, device and direction; shapes are chosen here.
    """
    for check in CHECKS:
        try:
            found = check(implementation, case)
        except GuestError as ended:
            if ended.status is Status.UNSUPPORTED:
                continue
            found = f"raises in a call like others that it answers: {ended.reason}"
        except Unmet as broken:
            found = str(broken)
        if found:
            yield found


def shares_no_memory(implementation: Implementation, case: Case) -> str | None:
    """y is memory of its own: not that of x, weight or bias, and not that of the y before."""
    inputs = make_inputs(replace(case, shape=(4, 32), direction=Direction.FORWARD))
    first, second = (_y(implementation, case, inputs) for _ in range(2))
    owners = {"x": inputs.x, "weight": inputs.weight, "bias": inputs.bias, "the y before": first}
    for name, tensor in owners.items():
        if tensor is not None and _address(tensor) == _address(second):
            return f"y shares the memory of {name}"
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
    first = _y(implementation, case, inputs).clone()
    other = replace(case, seed=case.seed + 1, eps=0.25)
    others = make_inputs(other)
    expected = _y(implementation, other, others).clone()
    for call in range(2, CALLS + 1):
        again = _y(implementation, case, inputs)
        if call in (2, CALLS) and not _close(again, first):
            return f"call {call} gives another answer than the first, for the same arguments"
    if not _close(_y(implementation, other, others), expected):
        return "an answer changes when other calls have come between"
    if _close(first, expected):
        return "gives the same answer for other arguments of the same shape"
    return None


def sees_new_data(implementation: Implementation, case: Case) -> str | None:
    """New numbers at the old address, and a new weight or shape, are not taken for the old ones."""
    case = replace(case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(case)
    held = replace(inputs, x=inputs.x.clone(), weight=_copy(inputs.weight), bias=_copy(inputs.bias))
    _y(implementation, case, held)
    later = make_inputs(replace(case, seed=case.seed + 1))
    for name in ("x", "weight", "bias"):
        tensor, new = getattr(held, name), getattr(later, name)
        tensor.copy_(new)
        fresh = replace(held, **{name: new.clone()})
        if not _close(_y(implementation, case, held), _y(implementation, case, fresh)):
            return f"takes new numbers in {name} at an old address for the old ones"
    longer = replace(case, shape=(4, 48))
    _y(implementation, longer, make_inputs(longer))  # another shape must not stop it
    return None


def gives_each_gradient(implementation: Implementation, case: Case) -> str | None:
    """Each input that asks for a gradient gets one, and the same one every time."""
    if implementation.forward_only:
        return None
    for affine in Affine:
        asked = replace(case, shape=(5, 16), affine=affine, direction=Direction.BACKWARD)
        inputs = make_inputs(asked)
        with torch.enable_grad():
            first, again = (run_once(implementation.function, asked, inputs) for _ in range(2))
        for name in ("dx", "dweight", "dbias"):
            one, two = getattr(first, name), getattr(again, name)
            if one is not None and not _close(one, two):
                return f"{name} of a second backward differs from that of the first"
    return None


CHECKS: tuple[Check, ...] = (
    shares_no_memory,
    refuses_wrong_parameters,
    refuses_a_wrong_shape,
    answers_alike_every_time,
    sees_new_data,
    gives_each_gradient,
)


def _y(implementation: Implementation, case: Case, inputs: Inputs) -> Tensor:
    forward = replace(case, shape=tuple(inputs.x.shape), direction=Direction.FORWARD)
    with torch.no_grad():
        return run_once(implementation.function, forward, replace(inputs, dy=None)).y


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to what another order of summation may change."""
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=1e-2, atol=1e-2))


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
