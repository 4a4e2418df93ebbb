"""Contract checks of a backward in other than the usual calls."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.computed import ImplementationError, guarded
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction
from harness.verify.checks.answers import copies_of, differing_outputs, first_difference, outputs_of
from harness.verify.checks.graph import Graph, leaves_of, training_case, with_each_affine
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = [
    "adds_to_what_there_is",
    "gives_each_gradient",
    "gives_the_gradients_asked_for",
    "gives_the_same_recorded",
    "gives_them_again",
    "notices_what_has_changed",
]

_SOME = (("x",), ("weight",), ("bias",), ("weight", "bias"), ("x", "bias"), ("x", "weight"))


def gives_each_gradient(implementation: Implementation, case: Case) -> str | None:
    """Each input that asks for a gradient gets one, and the same one every time."""
    for affine in scope_of(implementation).affines:
        asked = fitted(
            implementation, case, shape=(5, 16), direction=Direction.BACKWARD, affine=affine
        )
        inputs = make_inputs(asked)
        first, again = (copies_of(outputs_of(implementation, asked, inputs)) for _ in range(2))
        for name in differing_outputs(implementation, asked, inputs, first, again):
            return f"{name} of a second backward differs from that of the first"
    return None


def gives_the_gradients_asked_for(implementation: Implementation, case: Case) -> str | None:
    """A gradient is the same whether others are asked for or not: parameters may be frozen."""
    for asked, inputs in with_each_affine(implementation, case):
        every = Graph.of(implementation, asked, inputs).gradients()
        for wanted in _SOME:
            if any(getattr(inputs, name) is None for name in wanted):
                continue
            some = Graph.of(implementation, asked, inputs, wanted).gradients()
            if found := first_difference(implementation, asked, inputs, every, some):
                asked_for = " and ".join(f"d{name}" for name in wanted)
                return f"{found} is another where no more than {asked_for} is asked for"
    return None


def gives_them_again(implementation: Implementation, case: Case) -> str | None:
    """A graph that is kept gives the same gradients a second time."""
    asked, inputs = training_case(implementation, case)
    graph = Graph.of(implementation, asked, inputs)
    first = copies_of(graph.gradients(keep=True))
    again = graph.gradients()
    if found := first_difference(implementation, asked, inputs, first, again):
        return f"{found} is another when it is taken of the same graph a second time"
    return None


def adds_to_what_there_is(implementation: Implementation, case: Case) -> str | None:
    """A second y.backward() doubles the gradients: what is in .grad is autograd's to add to."""
    asked, inputs = training_case(implementation, case)
    expected = Graph.of(implementation, asked, inputs).gradients()
    leaves = leaves_of(inputs)
    for _ in range(2):
        assert inputs.dy is not None  # a case with gradients has one
        graph = Graph.on(leaves, inputs.dy, implementation, asked)
        guarded(graph.y.backward, inputs.dy)()
    halves = {f"d{name}": each.grad / 2 for name, each in leaves.items() if each.grad is not None}
    found = Outputs(y=graph.y.detach(), **halves)
    if name := first_difference(implementation, asked, inputs, expected, found):
        return f"{name} of two y.backward() is not twice that of one"
    return None


def gives_the_same_recorded(implementation: Implementation, case: Case) -> str | None:
    """Gradients are the same where they are recorded for a second derivative."""
    for asked, inputs in with_each_affine(implementation, case):
        expected = Graph.of(implementation, asked, inputs).gradients()
        found = Graph.of(implementation, asked, inputs).gradients(recorded=True)
        if name := first_difference(implementation, asked, inputs, expected, found):
            return f"{name} is another where it is taken with create_graph=True"
    return None


def notices_what_has_changed(implementation: Implementation, case: Case) -> str | None:
    """What is written over between the passes is an error, or the gradients are of what was there.

    Autograd raises for what was given to save_for_backward, if it is needed.
    """
    asked, inputs = training_case(implementation, case)
    expected = copies_of(Graph.of(implementation, asked, inputs).gradients())
    for changed in ("x", "weight", "bias", "y"):
        graph = Graph.of(implementation, asked, inputs)
        if changed not in {*graph.leaves, "y"}:
            continue
        y = graph.y.detach().clone()
        with torch.no_grad():
            (graph.y if changed == "y" else graph.leaves[changed]).mul_(-3).add_(1)
        try:
            found = replace(graph.gradients(), y=y)
        except ImplementationError:
            continue
        if name := first_difference(implementation, asked, inputs, expected, found):
            return (
                f"gives a wrong {name}, without an error, where {changed} is changed in place "
                "between forward and backward"
            )
    return None
