"""Contract checks of a module: what it is when new, in evaluation, and called as it stands."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.computed import guarded
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction
from harness.verify.checks.answers import first_difference, outputs_beyond, y_of
from harness.verify.scope import InScope, adapter_of, fitted, scope_of
from implementations.contract import Implementation
from implementations.targets.from_module import ModuleFunction
from implementations.targets.module_parameters import own_eps, parameter_names

__all__ = [
    "adds_the_eps_it_shows",
    "is_the_same_in_evaluation",
    "starts_as_torchs_does",
    "uses_its_own_parameters",
]

_SMALL = 1 / 256  # of x, so that eps is seen in y


def is_the_same_in_evaluation(implementation: Implementation, case: Case) -> str | None:
    """A LayerNorm has no mode: module.eval() changes nothing."""
    module = adapter_of(implementation)
    if not isinstance(module, ModuleFunction):
        return None
    asked = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    inputs = make_inputs(asked)
    function = InScope(module.in_other_mode(), scope_of(implementation))
    other_mode = replace(implementation, function=function)
    expected = Outputs(y=y_of(implementation, asked, inputs).clone())
    found = Outputs(y=y_of(other_mode, asked, inputs))
    if first_difference(implementation, asked, inputs, expected, found):
        return "y is another in evaluation than in training"
    return None


def adds_the_eps_it_shows(implementation: Implementation, case: Case) -> str | None:
    """An attribute named eps is what is added."""
    module = adapter_of(implementation)
    measured = scope_of(implementation).default_eps
    if not isinstance(module, ModuleFunction) or measured is None:
        return None
    asked = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    shown = set(own_eps(module.new(asked.normalized_shape)))
    if len(shown) != 1 or measured in shown:
        return None
    return f"has an attribute eps of {shown.pop():g}, and adds {measured:g}"


def starts_as_torchs_does(implementation: Implementation, case: Case) -> str | None:
    """A new module scales by 1 and shifts by 0."""
    module = adapter_of(implementation)
    if not isinstance(module, ModuleFunction) or module.is_instance:
        return None
    asked = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    made = guarded(module.new, asked.normalized_shape)()
    assert isinstance(made, torch.nn.Module)  # what that returns
    names, own = parameter_names(made, asked.normalized_shape), dict(made.named_parameters())
    for what, name, start in (("weight", names.weight, 1.0), ("bias", names.bias, 0.0)):
        if name is not None and not bool((own[name] == start).all()):
            return f"starts at a {what} ({name}) that is not {start:g}"
    return None


def uses_its_own_parameters(implementation: Implementation, case: Case) -> str | None:
    """Called as a module, with its own weight, bias and eps, it gives what these say."""
    module = adapter_of(implementation)
    if not isinstance(module, ModuleFunction):
        return None
    scope = scope_of(implementation)
    eps = scope.default_eps if scope.default_eps is not None else case.eps
    asked = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    asked = replace(asked, eps=eps)
    drawn = make_inputs(asked)
    made = guarded(module.new, asked.normalized_shape)()
    assert isinstance(made, torch.nn.Module)  # what that returns
    made = made.to(device=drawn.x.device, dtype=drawn.x.dtype)
    names, own = parameter_names(made, asked.normalized_shape), dict(made.named_parameters())
    shape = asked.normalized_shape
    weight, bias = (
        None if name is None else own[name].detach().reshape(shape)
        for name in (names.weight, names.bias)
    )
    if (weight is None) != (drawn.weight is None) or (bias is None) != (drawn.bias is None):
        return None  # it is built with other parameters than those that it is verified with
    inputs = replace(drawn, x=drawn.x * _SMALL, weight=weight, bias=bias)
    with torch.no_grad():
        y = y_of(implementation, asked, inputs).clone()
        plain = _called_as_module(module, made, inputs.x, scope.channels_first)
    if plain is None or first_difference(
        implementation, asked, inputs, Outputs(y=y), Outputs(y=plain)
    ):
        return "called as a module, y is not that of its own weight, bias and eps"
    if outputs_beyond(implementation, asked, inputs, Outputs(y=plain)):
        return "called as a module, y is wrong"
    return None


def _called_as_module(
    module: ModuleFunction, made: torch.nn.Module, x: torch.Tensor, channels_first: bool
) -> torch.Tensor | None:
    """Call a module itself; None if what it returns does not have x's shape."""
    rank = len(module.meaning().leading)
    if channels_first:
        given = x.reshape(1, *[1] * (rank - 1), *x.shape).movedim(-1, 1)
        y = guarded(made, given.contiguous())()
        return y.movedim(1, -1).reshape(x.shape) if isinstance(y, torch.Tensor) else None
    given = x.reshape(*[1] * (rank - 1), *x.shape)
    y = guarded(made, given)()
    is_right = isinstance(y, torch.Tensor) and y.numel() == x.numel() and y.dtype == x.dtype
    return y.reshape(x.shape) if is_right and isinstance(y, torch.Tensor) else None
