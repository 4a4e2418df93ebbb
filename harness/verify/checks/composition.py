"""Contract checks of a LayerNorm among other operations: x computed by one, hooks, two modes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs, copy_in_layout
from harness.numerics.completeness import copies_of
from harness.numerics.computed import ImplementationError, guarded
from harness.numerics.outputs import Outputs
from harness.records import Case
from harness.verify.checks.graph import Graph, leaves_of, training_case
from harness.verify.checks.outputs import (
    compute_y,
    first_differing_output,
    forward_case,
)
from harness.verify.checks.settings import EVERY_SETTING, PATHS, at
from implementations.contract import Implementation

__all__ = [
    "gradients_reach_the_source_of_x",
    "hooks_run_once",
    "trains_after_inference_mode",
]

_RELATIVE_LIMIT = 0.05  # of the norm: more than rounding of any dtype, less than a missing term


@at(*EVERY_SETTING)
def gradients_reach_the_source_of_x(implementation: Implementation, case: Case) -> str | None:
    """An x that another operation computed passes its gradient on, also where x is used twice."""
    case, inputs = training_case(implementation, case)
    expected = copies_of(Graph.of(implementation, case, inputs).gradients())
    assert inputs.dy is not None  # a case with gradients has one
    assert expected.dx is not None
    source = copy_in_layout(inputs.x).requires_grad_()
    with torch.enable_grad():
        x = 2 * (source / 2)  # exact
    y = _recorded(implementation, case, inputs, x)
    dx = _gradient_of(source, y, inputs.dy)
    outputs = Outputs(y=y.detach(), dx=dx)
    if name := first_differing_output(implementation, case, inputs, expected, outputs):
        return f"{name} changes if x is computed by another operation"
    with torch.enable_grad():
        x = 2 * (source / 2)
        total = x + _recorded(implementation, case, inputs, x)
    found, wanted = _gradient_of(source, total, inputs.dy), expected.dx + inputs.dy
    if not (found - wanted).norm() <= _RELATIVE_LIMIT * wanted.norm():
        return "the gradient of x + layer_norm(x) is wrong"
    return None


@at(*PATHS)
def hooks_run_once(implementation: Implementation, case: Case) -> str | None:
    """A hook on x, weight or bias runs once per backward, and what it returns counts."""
    case, inputs = training_case(implementation, case)
    expected = copies_of(Graph.of(implementation, case, inputs).gradients())
    leaves, seen = leaves_of(inputs), dict[str, list[Tensor]]()
    assert inputs.dy is not None  # a case with gradients has one
    graph = Graph.on(leaves, inputs.dy, implementation, case)
    for name, leaf in leaves.items():
        leaf.register_hook(partial(_doubled, seen.setdefault(name, [])))
    guarded(graph.y.backward, inputs.dy)()
    for name, gradients in seen.items():
        if len(gradients) != 1:
            return f"a hook on {name} runs {len(gradients)} times in one backward"
    passed = Outputs(y=graph.y.detach(), **{f"d{name}": own[0] for name, own in seen.items()})
    if output := first_differing_output(implementation, case, inputs, expected, passed):
        return f"a hook sees another {output} than torch.autograd.grad returns"
    halves = {f"d{name}": leaf.grad / 2 for name, leaf in leaves.items() if leaf.grad is not None}
    stored = Outputs(y=graph.y.detach(), **halves)
    if output := first_differing_output(implementation, case, inputs, expected, stored):
        return f"ignores what a hook returns in place of {output}"
    return None


@at(*PATHS)
def trains_after_inference_mode(implementation: Implementation, case: Case) -> str | None:
    """A call in torch.inference_mode leaves nothing behind that a later backward cannot use."""
    trained, inputs = training_case(implementation, case)
    expected = copies_of(Graph.of(implementation, trained, inputs).gradients())
    leaves = leaves_of(inputs)
    assert inputs.dy is not None  # a case with gradients has one
    forward, _ = forward_case(implementation, case)
    with torch.inference_mode():
        held = inputs.at([copy_in_layout(inputs.x), *list(leaves.values())[1:], inputs.dy])
        compute_y(implementation, forward, held)
    try:
        outputs = Graph.on(leaves, inputs.dy, implementation, trained).gradients()
    except ImplementationError as raised:
        return f"raises in training after a call in torch.inference_mode: {raised}"
    if name := first_differing_output(implementation, trained, inputs, expected, outputs):
        return f"{name} changes after a call in torch.inference_mode"
    return None


def _recorded(implementation: Implementation, case: Case, inputs: Inputs, x: Tensor) -> Tensor:
    """Return y of a recorded call on ``x``."""
    leaves = {"x": x} | {name: leaf for name, leaf in leaves_of(inputs).items() if name != "x"}
    assert inputs.dy is not None  # a case with gradients has one
    return Graph.on(leaves, inputs.dy, implementation, case).y


def _gradient_of(source: Tensor, result: Tensor, dy: Tensor) -> Tensor:
    gradient = guarded(torch.autograd.grad, result, source, dy)()
    assert isinstance(gradient, tuple)  # the type that autograd.grad returns
    (only,) = gradient
    assert isinstance(only, Tensor)
    return only


def _doubled(seen: list[Tensor], gradient: Tensor) -> Tensor:
    seen.append(gradient.clone())
    return 2 * gradient
