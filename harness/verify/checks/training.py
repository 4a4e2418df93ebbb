"""Contract checks of a backward over several layers and several steps of training."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.error_measurement import Outputs
from harness.records import Case
from harness.verify.checks.answers import copies_of, first_difference, y_of
from harness.verify.checks.graph import Graph, leaves_of, training_case
from implementations.contract import Implementation

__all__ = ["follows_its_parameters", "keeps_graphs_apart", "leaves_given_gradients_alone"]

_STEPS = 20  # ours: more than a ring of buffers has
_RETURNED = ("y", "dx", "dweight", "dbias")


def keeps_graphs_apart(implementation: Implementation, case: Case) -> str | None:
    """Two layers run forward before either runs backward, and each gets its own gradients."""
    asked, inputs = training_case(implementation, case)
    others = make_inputs(replace(asked, seed=asked.seed + 1))
    both = (inputs, others)
    alone = [copies_of(Graph.of(implementation, asked, each).gradients()) for each in both]
    for order in ((0, 1), (1, 0)):
        graphs = [Graph.of(implementation, asked, each) for each in both]
        for place in order:
            found = graphs[place].gradients()
            if name := first_difference(implementation, asked, both[place], alone[place], found):
                return f"{name} is another where a second forward has come before the backward"
    return None


def leaves_given_gradients_alone(implementation: Implementation, case: Case) -> str | None:
    """What a training step has returned is the caller's: no later one writes there."""
    asked, _ = training_case(implementation, case)
    kept = []
    for step in range(_STEPS):
        inputs = make_inputs(replace(asked, seed=asked.seed + step))
        given = Graph.of(implementation, asked, inputs).gradients()
        kept.append((copies_of(given), given))
    for before, given in kept:
        for name in _RETURNED:
            old, new = getattr(before, name), getattr(given, name)
            if old is not None and not torch.equal(old, new):
                return f"{name} changes after it was returned, when later ones are taken"
    return None


def follows_its_parameters(implementation: Implementation, case: Case) -> str | None:
    """A weight and a bias that training changes are followed, also where only .data is."""
    asked, inputs = training_case(implementation, case)
    later = make_inputs(replace(asked, seed=asked.seed + 1))
    trained = replace(inputs, weight=later.weight, bias=later.bias)
    expected = Graph.of(implementation, asked, trained).gradients()
    for way in ("in place", "through .data"):
        leaves = leaves_of(inputs)
        assert inputs.dy is not None  # a case with gradients has one
        Graph.on(leaves, inputs.dy, implementation, asked).gradients()
        y_of(implementation, asked, inputs.at([*leaves.values(), inputs.dy]))
        for name in {"weight", "bias"} & leaves.keys():
            with torch.no_grad():
                held = leaves[name] if way == "in place" else leaves[name].data
                held.copy_(getattr(later, name))
        found = Graph.on(leaves, inputs.dy, implementation, asked).gradients()
        if changed := first_difference(implementation, asked, trained, expected, found):
            return f"{changed} is that of the old parameters after they were changed {way}"
        y = Outputs(y=y_of(implementation, asked, inputs.at([*leaves.values(), inputs.dy])))
        if first_difference(implementation, asked, trained, expected, y):
            return f"y is that of the old parameters after they were changed {way}"
    return None
