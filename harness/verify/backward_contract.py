"""Promises of a backward that the usual call of it does not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.records import Affine, Case, Direction
from harness.verify.answers import (
    copies_of,
    differing_outputs,
    has_bits_of,
    outputs_beyond,
    outputs_of,
)
from harness.verify.errors import Outputs
from harness.verify.graph import INPUTS, Graph
from harness.verify.guest import GuestError, guarded
from implementations.contract import Implementation

__all__ = [
    "differentiates_again_or_refuses",
    "gives_each_gradient",
    "gives_the_gradients_asked_for",
    "gives_them_again",
    "leaves_given_gradients_alone",
    "notices_what_has_changed",
]

_SOME = (("x",), ("weight",), ("bias",), ("weight", "bias"), ("x", "bias"), ("x", "weight"))
_DIRECTIONS = 4  # ours: no term is at right angles to all of them
_STEP = 1 / 128  # ours: of the spread of x; less is rounding in float32, more is curvature
_OF_A_TERM = 0.05  # ours: right ones came within 1e-4 here, one without a term 0.27 off
_NOTHING = 1e-6  # ours: of a change that float32 may make of none
_GRADIENTS = tuple(f"d{name}" for name in INPUTS)


def gives_each_gradient(implementation: Implementation, case: Case) -> str | None:
    """Each input that asks for a gradient gets one, and the same one every time."""
    for affine in Affine:
        asked = replace(_backward(case), shape=(5, 16), affine=affine)
        inputs = make_inputs(asked)
        first, again = (copies_of(outputs_of(implementation, asked, inputs)) for _ in range(2))
        for name in differing_outputs(implementation, asked, inputs, first, again):
            return f"{name} of a second backward differs from that of the first"
    return None


def gives_the_gradients_asked_for(implementation: Implementation, case: Case) -> str | None:
    """A gradient is the same whether others are asked for or not: parameters may be frozen."""
    asked, inputs = _asked(case)
    every = Graph.of(implementation, asked, inputs).gradients()
    for wanted in _SOME:
        some = Graph.of(implementation, asked, inputs, wanted).gradients()
        if found := _first_difference(implementation, asked, inputs, every, some):
            asked_for = " and ".join(f"d{name}" for name in wanted)
            return f"{found} is another where no more than {asked_for} is asked for"
    return None


def gives_them_again(implementation: Implementation, case: Case) -> str | None:
    """A graph that is kept gives the same gradients a second time."""
    asked, inputs = _asked(case)
    graph = Graph.of(implementation, asked, inputs)
    first = copies_of(graph.gradients(keep=True))
    again = graph.gradients()
    if found := _first_difference(implementation, asked, inputs, first, again):
        return f"{found} is another when it is taken of the same graph a second time"
    return None


def leaves_given_gradients_alone(implementation: Implementation, case: Case) -> str | None:
    """What a backward has returned is the caller's: a later one does not write there."""
    asked, inputs = _asked(case)
    given = Graph.of(implementation, asked, inputs).gradients()
    before = copies_of(given)
    later = replace(asked, seed=asked.seed + 1)
    Graph.of(implementation, later, make_inputs(later)).gradients()
    for name in _GRADIENTS:
        old, new = getattr(before, name), getattr(given, name)
        if old is not None and not torch.equal(old, new):
            return f"{name} changes after it was returned, when a later one is taken"
    return None


def notices_what_has_changed(implementation: Implementation, case: Case) -> str | None:
    """What is written over between the passes is an error, or the gradients are of what was there.

    Autograd raises for what was given to save_for_backward, if it is needed.
    """
    asked, inputs = _asked(case)
    expected = Graph.of(implementation, asked, inputs).gradients()
    for changed in ("x", "weight", "bias", "y"):
        graph = Graph.of(implementation, asked, inputs)
        y = graph.y.detach().clone()
        with torch.no_grad():
            (graph.y if changed == "y" else graph.leaves[changed]).mul_(-3).add_(1)
        try:
            found = replace(graph.gradients(), y=y)
        except GuestError:
            continue
        if name := _first_difference(implementation, asked, inputs, expected, found):
            return f"{name} is wrong, without an error, where {changed} is written over before it"
    return None


def differentiates_again_or_refuses(implementation: Implementation, case: Case) -> str | None:
    """The derivative of the gradients is what they change by, or an error: no term is left out.

    One is where a backward, itself recorded, computes from statistics that were saved as constants.
    Asked in float32 and float64, whose rounding hides no term, where the gradients are right:
    coarser ones change by more or less than their derivative.
    """
    if case.dtype not in {"float32", "float64"}:
        return None
    asked, inputs = _asked(case)
    if outputs_beyond(implementation, asked, inputs, outputs_of(implementation, asked, inputs)):
        return None
    function = partial(implementation.function, eps=asked.eps)
    along, *directions = (
        make_inputs(replace(asked, seed=asked.seed + 1 + place)).tensors
        for place in range(1 + _DIRECTIONS)
    )
    try:
        second = guarded(_second, function, inputs.tensors, along)()
    except GuestError:
        return None
    assert isinstance(second, tuple)  # what that returns
    for place, name in enumerate((*INPUTS, "dy")):
        derived, changes = [], []
        for direction in directions:
            step = _STEP * direction[place]
            ahead, behind = (
                guarded(_total, function, _moved(inputs.tensors, place, by), along)()
                for by in (step, -step)
            )
            assert isinstance(ahead, Tensor)  # what that returns, and so below
            assert isinstance(behind, Tensor)
            changes.append(ahead - behind)
            derived.append(2 * (second[place] * step).sum())
        told, seen = torch.stack(derived).detach(), torch.stack(changes).detach()
        if not (told - seen).norm() <= _OF_A_TERM * seen.norm() + _NOTHING * along[0].numel():
            return f"the derivative of its gradients by {name} is wrong, without an error"
    return None


def _total(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], along: Sequence[Tensor]
) -> Tensor:
    """The gradients, each times what lies in its direction, as one number that can be derived."""
    x, weight, bias, dy = tensors
    leaves = tuple(
        each if each.requires_grad else each.clone().requires_grad_() for each in (x, weight, bias)
    )
    with torch.enable_grad():
        y = function(leaves[0], x.shape[-1:], *leaves[1:])
        gradients = torch.autograd.grad(y, leaves, dy, create_graph=True)
        parts = zip(gradients, along[:3], strict=True)
        return torch.stack([(gradient * each).sum() for gradient, each in parts]).sum()


def _second(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], along: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The derivative of that number by x, weight, bias and dy."""
    leaves = tuple(each.clone().requires_grad_() for each in tensors)
    # not autograd.grad, which passes the error of once_differentiable by: no leaf lies behind it
    _total(function, leaves, along).backward()
    return tuple(torch.zeros_like(each) if each.grad is None else each.grad for each in leaves)


def _moved(tensors: Sequence[Tensor], place: int, by: Tensor) -> list[Tensor]:
    return [each + by if here == place else each for here, each in enumerate(tensors)]


def _backward(case: Case) -> Case:
    return replace(case, direction=Direction.BACKWARD, affine=Affine.BOTH)


def _asked(case: Case) -> tuple[Case, Inputs]:
    asked = replace(_backward(case), shape=(6, 32))
    return asked, make_inputs(asked)


def _first_difference(
    implementation: Implementation, case: Case, inputs: Inputs, one: Outputs, other: Outputs
) -> str | None:
    """Return the first output that both have and that is not the same; None where there is none."""
    if has_bits_of(one, other):
        return None
    return next(iter(differing_outputs(implementation, case, inputs, one, other)), None)
