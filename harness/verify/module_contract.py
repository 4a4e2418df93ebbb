"""Promises of a module beside those of a function: what it is when new, and in evaluation."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.records import Affine, Case, Direction
from harness.verify.answers import first_difference, outputs_beyond, y_of
from harness.verify.errors import Outputs
from harness.verify.guest import checked, guarded
from implementations.contract import Implementation
from implementations.from_module import ModuleFunction

__all__ = ["is_the_same_in_evaluation", "starts_as_torchs_does"]

_SMALL = 1 / 256  # ours: of x, so that eps is seen in y


def is_the_same_in_evaluation(implementation: Implementation, case: Case) -> str | None:
    """A LayerNorm has no mode: module.eval() changes nothing."""
    function = implementation.function
    if not isinstance(function, ModuleFunction):
        return None
    asked = replace(case, shape=(6, 32), affine=Affine.BOTH, direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    evaluating = replace(implementation, function=function.in_evaluation())
    expected = Outputs(y=y_of(implementation, asked, inputs).clone())
    found = Outputs(y=y_of(evaluating, asked, inputs))
    if first_difference(implementation, asked, inputs, expected, found):
        return "y is another after module.eval()"
    return None


def starts_as_torchs_does(implementation: Implementation, case: Case) -> str | None:
    """A new module scales by 1 and shifts by 0, and its eps is 1e-5 where none is given."""
    function = implementation.function
    if not isinstance(function, ModuleFunction):
        return None
    asked = replace(case, shape=(6, 32), affine=Affine.NONE, direction=Direction.FORWARD, eps=1e-5)
    inputs = make_inputs(asked)
    inputs = replace(inputs, x=inputs.x * _SMALL)
    module = guarded(function.new, (32,))()
    assert isinstance(module, torch.nn.Module)  # what that returns
    with torch.no_grad():
        y = checked("y", guarded(module.to(inputs.x), inputs.x)(), inputs.x)
    if outputs_beyond(implementation, asked, inputs, Outputs(y=y)):
        return "a new module is no LayerNorm with a weight of 1, a bias of 0 and an eps of 1e-5"
    return None
