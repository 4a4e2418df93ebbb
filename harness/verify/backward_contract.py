"""Promises of a backward that the usual call of it does not show."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import Inputs, make_inputs
from harness.records import Affine, Case, Direction
from harness.verify.answers import copies_of, differing_outputs, has_bits_of, outputs_of
from harness.verify.errors import Outputs
from harness.verify.graph import INPUTS, Graph
from harness.verify.guest import GuestError
from implementations.contract import Implementation

__all__ = [
    "gives_each_gradient",
    "gives_the_gradients_asked_for",
    "gives_them_again",
    "leaves_given_gradients_alone",
    "notices_what_has_changed",
]

_SOME = (("x",), ("weight",), ("bias",), ("weight", "bias"), ("x", "bias"), ("x", "weight"))
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
            return f"{found} is another where only {' and '.join(wanted)} asks for a gradient"
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
