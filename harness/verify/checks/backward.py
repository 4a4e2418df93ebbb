"""Contract checks of one backward, called in other ways than the error check calls it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.completeness import copies_of
from harness.numerics.computed import ImplementationError, guarded
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.verify.checks.graph import Graph, leaves_of, training_case, with_each_affine
from harness.verify.checks.outputs import (
    compute,
    first_differing_output,
)
from harness.verify.checks.settings import EVERY_SETTING, PATHS, at
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = [
    "backward_accumulates_gradients",
    "create_graph_gives_same_gradients",
    "detects_in_place_changes",
    "gradients_do_not_depend_on_requires_grad",
    "retained_graph_gives_same_gradients",
    "returns_every_gradient",
]

_SUBSETS = (("x",), ("weight",), ("bias",), ("weight", "bias"), ("x", "bias"), ("x", "weight"))


@at(*PATHS)
def returns_every_gradient(implementation: Implementation, case: Case) -> str | None:
    """Each input that requires a gradient gets one, and a second call gives the same one."""
    for affine in scope_of(implementation).affines_with_gradient:
        sized = fitted(implementation, case, direction=Direction.BACKWARD, affine=affine)
        inputs = make_inputs(sized)
        first, again = (copies_of(compute(implementation, sized, inputs)) for _ in range(2))
        if name := first_differing_output(implementation, sized, inputs, first, again):
            return f"{name} of a second backward differs from that of the first"
    return None


@at(*EVERY_SETTING)
def gradients_do_not_depend_on_requires_grad(
    implementation: Implementation, case: Case
) -> str | None:
    """A gradient is the same if other inputs are frozen."""
    for sized, inputs in with_each_affine(implementation, case):
        every = Graph.of(implementation, sized, inputs).gradients()
        for names in _SUBSETS:
            if any(getattr(inputs, name) is None for name in names):
                continue
            some = Graph.of(implementation, sized, inputs, names).gradients()
            if output := first_differing_output(implementation, sized, inputs, every, some):
                return f"{output} changes if {' and '.join(names)} alone require a gradient"
    return None


@at(*EVERY_SETTING)
def retained_graph_gives_same_gradients(implementation: Implementation, case: Case) -> str | None:
    """With retain_graph=True, a second backward gives the same gradients."""
    case, inputs = training_case(implementation, case)
    graph = Graph.of(implementation, case, inputs)
    returned = graph.gradients(keep=True)
    first = copies_of(returned)
    for gradient in (returned.dx, returned.dweight, returned.dbias):
        if gradient is not None:
            with suppress(RuntimeError):  # its elements overlap, which is another check's
                gradient.zero_()  # it is the caller's, and no longer what the graph needs
    again = graph.gradients()
    if output := first_differing_output(implementation, case, inputs, first, again):
        return f"{output} changes in a second backward over a retained graph"
    return None


@at(*EVERY_SETTING)
def backward_accumulates_gradients(implementation: Implementation, case: Case) -> str | None:
    """Two calls of y.backward() double the gradients: autograd adds to .grad."""
    case, inputs = training_case(implementation, case)
    expected = Graph.of(implementation, case, inputs).gradients()
    leaves = leaves_of(inputs)
    assert inputs.dy is not None  # a case with gradients has one
    for _ in range(2):
        graph = Graph.on(leaves, inputs.dy, implementation, case)
        guarded(graph.y.backward, inputs.dy)()
    halves = {f"d{name}": leaf.grad / 2 for name, leaf in leaves.items() if leaf.grad is not None}
    outputs = Outputs(y=graph.y.detach(), **halves)
    if output := first_differing_output(implementation, case, inputs, expected, outputs):
        return f"{output} of two y.backward() is not twice that of one"
    return None


@at(*EVERY_SETTING)
def create_graph_gives_same_gradients(implementation: Implementation, case: Case) -> str | None:
    """With create_graph=True, the gradients are the same."""
    for sized, inputs in with_each_affine(implementation, case):
        expected = Graph.of(implementation, sized, inputs).gradients()
        outputs = Graph.of(implementation, sized, inputs).gradients(create_graph=True)
        if output := first_differing_output(implementation, sized, inputs, expected, outputs):
            return f"{output} changes with create_graph=True"
    return None


@at(*PATHS)
def detects_in_place_changes(implementation: Implementation, case: Case) -> str | None:
    """A tensor changed in place before the backward raises, or does not change the gradients.

    Autograd raises for tensors that were given to save_for_backward.
    """
    case, inputs = training_case(implementation, case)
    expected = copies_of(Graph.of(implementation, case, inputs).gradients())
    for changed in ("x", "weight", "bias", "y"):
        graph = Graph.of(implementation, case, inputs)
        if changed not in {*graph.leaves, "y"}:
            continue
        y = graph.y.detach().clone()
        with torch.no_grad():
            (graph.y if changed == "y" else graph.leaves[changed]).mul_(-3).add_(1)
        try:
            outputs = replace(graph.gradients(), y=y)
        except ImplementationError:
            continue
        if output := first_differing_output(implementation, case, inputs, expected, outputs):
            return (
                f"returns a wrong {output}, without an error, if {changed} is changed in place "
                "between forward and backward"
            )
    return None
