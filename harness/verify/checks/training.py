"""Contract checks of training: several layers in one graph, and several steps."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.completeness import copies_of
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.records import Case
from harness.verify.checks.graph import Graph, leaves_of, training_case
from harness.verify.checks.outputs import compute_y, first_differing_output
from harness.verify.checks.settings import EVERY_SETTING, PATHS, SMALL, at
from implementations.contract import Implementation

__all__ = [
    "follows_parameter_updates",
    "graphs_are_independent",
    "returned_gradients_stay_unchanged",
]

_STEPS = 20  # more than a ring of reused buffers is likely to have
_STEPS_AT_OTHER_SIZES = 5  # the number matters at one size


@at(*EVERY_SETTING)
def graphs_are_independent(implementation: Implementation, case: Case) -> str | None:
    """If two layers run forward before either runs backward, each gets its own gradients."""
    case, first = training_case(implementation, case)
    both = (first, make_inputs(replace(case, seed=case.seed + 1)))
    alone = [copies_of(Graph.of(implementation, case, own).gradients()) for own in both]
    for order in ((0, 1), (1, 0)):
        graphs = [Graph.of(implementation, case, own) for own in both]
        for place in order:
            inputs, expected, outputs = both[place], alone[place], graphs[place].gradients()
            if name := first_differing_output(implementation, case, inputs, expected, outputs):
                return f"{name} changes if a second forward runs before the backward"
    return None


@at(*EVERY_SETTING)
def returned_gradients_stay_unchanged(implementation: Implementation, case: Case) -> str | None:
    """No later training step overwrites what an earlier one returned."""
    case, _ = training_case(implementation, case)
    kept = []
    steps = _STEPS if case.shape == SMALL.shape else _STEPS_AT_OTHER_SIZES
    for step in range(steps):
        inputs = make_inputs(replace(case, seed=case.seed + step))
        returned = Graph.of(implementation, case, inputs).gradients()
        kept.append((copies_of(returned), returned))
    for copies, returned in kept:
        for name in OUTPUTS:
            before, now = getattr(copies, name), getattr(returned, name)
            if before is not None and not torch.equal(before, now):
                return f"later training steps overwrite a {name} that was returned"
    return None


@at(*PATHS)
def follows_parameter_updates(implementation: Implementation, case: Case) -> str | None:
    """A weight or bias that training changes, in place or through .data, is used as it is now."""
    case, inputs = training_case(implementation, case)
    assert inputs.dy is not None  # a case with gradients has one
    later = make_inputs(replace(case, seed=case.seed + 1))
    trained = replace(inputs, weight=later.weight, bias=later.bias)
    expected = Graph.of(implementation, case, trained).gradients()
    for way in ("in place", "through .data"):
        leaves = leaves_of(inputs)
        Graph.on(leaves, inputs.dy, implementation, case).gradients()
        compute_y(implementation, case, inputs.at([*leaves.values(), inputs.dy]))
        for name in {"weight", "bias"} & leaves.keys():
            with torch.no_grad():
                held = leaves[name] if way == "in place" else leaves[name].data
                held.copy_(getattr(later, name))
        recorded = Graph.on(leaves, inputs.dy, implementation, case).gradients()
        at_leaves = inputs.at([*leaves.values(), inputs.dy])
        unrecorded = Outputs(y=compute_y(implementation, case, at_leaves))
        for outputs in (recorded, unrecorded):
            if output := first_differing_output(implementation, case, trained, expected, outputs):
                return f"{output} is that of the old parameters after they were changed {way}"
    return None
