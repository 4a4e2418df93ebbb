"""Contract checks of an nn.Module: when new, in evaluation mode, and called as a module."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.inputs import make_inputs
from harness.numerics.computed import guarded
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction
from harness.verify.checks.outputs import (
    compute_y,
    first_differing_output,
    forward_case,
    outputs_beyond,
)
from harness.verify.scope import InScope, adapter_of, fitted, scope_of
from implementations.contract import Implementation
from implementations.targets.from_module import ModuleFunction
from implementations.targets.module_parameters import own_eps, parameter_names

__all__ = [
    "initial_parameters_match_torch",
    "is_unchanged_in_eval_mode",
    "uses_its_eps_attribute",
    "uses_its_own_parameters",
]

_SMALL = 1 / 256  # scale of x; its variance is then close to eps, so that eps changes y


def is_unchanged_in_eval_mode(implementation: Implementation, case: Case) -> str | None:
    """module.eval() changes no result: a LayerNorm has no mode."""
    module = adapter_of(implementation)
    if not isinstance(module, ModuleFunction):
        return None
    sized, inputs = forward_case(implementation, case, (6, 32))
    function = InScope(module.in_other_mode(), scope_of(implementation))
    other_mode = replace(implementation, function=function)
    expected = Outputs(y=compute_y(implementation, sized, inputs).clone())
    outputs = Outputs(y=compute_y(other_mode, sized, inputs))
    if first_differing_output(implementation, sized, inputs, expected, outputs):
        return "y in evaluation mode differs from y in training mode"
    return None


def uses_its_eps_attribute(implementation: Implementation, case: Case) -> str | None:
    """The eps that is added is that of the attribute named eps."""
    module = adapter_of(implementation)
    measured = scope_of(implementation).default_eps
    if not isinstance(module, ModuleFunction) or measured is None:
        return None
    sized = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    attributes = set(own_eps(module.new(sized.normalized_shape)))
    if len(attributes) != 1 or measured in attributes:
        return None
    return f"has an attribute eps of {attributes.pop():g}, and adds {measured:g}"


def initial_parameters_match_torch(implementation: Implementation, case: Case) -> str | None:
    """A new module has weights of 1 and biases of 0, as torch.nn.LayerNorm has."""
    module = adapter_of(implementation)
    if not isinstance(module, ModuleFunction) or module.is_instance:
        return None
    sized = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    made = guarded(module.new, sized.normalized_shape)()
    assert isinstance(made, torch.nn.Module)  # the type that new returns
    names, own = parameter_names(made, sized.normalized_shape), dict(made.named_parameters())
    for parameter, name, start in (("weight", names.weight, 1.0), ("bias", names.bias, 0.0)):
        if name is not None and not bool((own[name] == start).all()):
            return f"initialises its {parameter} ({name}) to something other than {start:g}"
    return None


def uses_its_own_parameters(implementation: Implementation, case: Case) -> str | None:
    """Called as a module, it computes the LayerNorm of its own weight, bias and eps."""
    module = adapter_of(implementation)
    if not isinstance(module, ModuleFunction):
        return None
    scope = scope_of(implementation)
    eps = scope.default_eps if scope.default_eps is not None else case.eps
    sized = fitted(implementation, case, shape=(6, 32), direction=Direction.FORWARD)
    sized = replace(sized, eps=eps)
    drawn = make_inputs(sized)
    made = guarded(module.new, sized.normalized_shape)()
    assert isinstance(made, torch.nn.Module)  # the type that new returns
    made = made.to(device=drawn.x.device, dtype=drawn.x.dtype)
    names, own = parameter_names(made, sized.normalized_shape), dict(made.named_parameters())
    shape = sized.normalized_shape
    weight, bias = (
        None if name is None else own[name].detach().reshape(shape)
        for name in (names.weight, names.bias)
    )
    if (weight is None) != (drawn.weight is None) or (bias is None) != (drawn.bias is None):
        return None  # its constructor makes other parameters than the scope found
    inputs = replace(drawn, x=drawn.x * _SMALL, weight=weight, bias=bias)
    with torch.no_grad():
        y = compute_y(implementation, sized, inputs).clone()
        plain = _called_as_module(module, made, inputs.x, scope.channels_first)
    if plain is None or first_differing_output(
        implementation, sized, inputs, Outputs(y=y), Outputs(y=plain)
    ):
        return "called as a module, y does not follow from its own weight, bias and eps"
    if outputs_beyond(implementation, sized, inputs, Outputs(y=plain)):
        return "called as a module, y is wrong"
    return None


def _called_as_module(
    module: ModuleFunction, made: torch.nn.Module, x: torch.Tensor, channels_first: bool
) -> torch.Tensor | None:
    """Call a module itself; None if the result does not have x's shape."""
    rank = len(module.meaning().leading)
    if channels_first:
        given = x.reshape(1, *[1] * (rank - 1), *x.shape).movedim(-1, 1)
        y = guarded(made, given.contiguous())()
        return y.movedim(1, -1).reshape(x.shape) if isinstance(y, torch.Tensor) else None
    given = x.reshape(*[1] * (rank - 1), *x.shape)
    y = guarded(made, given)()
    is_right = isinstance(y, torch.Tensor) and y.numel() == x.numel() and y.dtype == x.dtype
    return y.reshape(x.shape) if is_right and isinstance(y, torch.Tensor) else None
