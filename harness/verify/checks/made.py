"""A module that a check has made from a call: its own parameters, and its outputs in each mode."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.cases.inputs import copy_in_layout, make_inputs
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.records import Affine, Status
from harness.run.call import ContractViolationError, ImplementationError, checked, guarded
from harness.verify.checks.calls import Call, has_bits_of
from harness.verify.checks.contract_checks import NotConcernedError
from harness.verify.in_scope import adapter_of, scope_of
from implementations.contract import UnsupportedError
from implementations.targets.attempt import Raised
from implementations.targets.from_module import ModuleFunction
from implementations.targets.module_parameters import (
    parameter_names,
)

__all__ = [
    "EVALUATION",
    "MODES",
    "TRAINING",
    "Made",
    "Mode",
    "affine_of",
    "module_of",
    "names_of",
    "new_module",
    "pickled",
    "seeded",
    "usual_of",
    "y_of",
]

_SMALL = 1 / 16  # scale of x: an eps of 1e-5 changes y in float32, and no square underflows
_EPS = 3.00000123e-3  # no module's default; about the variance of x; many digits, which may be cut


class Mode(NamedTuple):
    """A mode of a module, and what autograd records of its call."""

    words: str
    training: bool = False
    is_recorded: bool = False
    is_inference: bool = False


TRAINING = Mode("in training mode", training=True, is_recorded=True)
EVALUATION = (
    Mode("in evaluation mode", is_recorded=True),
    Mode("in evaluation mode under torch.no_grad()"),
    Mode("in evaluation mode under torch.inference_mode()", is_inference=True),
)
MODES = (*EVALUATION, TRAINING)
"""Calls before end in evaluation mode, and a module may keep what it folded when it got there."""


@dataclass(frozen=True, slots=True)
class Made:
    """A module, and the call whose weight and bias its parameters must have."""

    module: nn.Module
    names: Mapping[str, str]
    """The names of its parameters that are "weight" and "bias", as far as it has them."""
    call: Call
    frozen: tuple[str, ...] = ()
    """Which of "x", "weight" and "bias" require no gradient."""

    @classmethod
    def of(cls, call: Call, **arguments: object) -> Made:
        """Return a new module with the weight and bias of a call, built with further arguments."""
        module = new_module(call, **arguments)
        return cls(module, names_of(module, call), call).filled()

    @classmethod
    def of_torch(cls, call: Call) -> Made:
        """Return a torch.nn.LayerNorm with the weight, bias and eps of a call."""
        module = nn.LayerNorm(call.case.normalized_shape, call.case.eps, bool(call.parameters))
        for role in {"weight", "bias"} - {*call.parameters}:
            setattr(module, role, None)
        return cls(module, {role: role for role in call.parameters}, call).filled()

    @property
    def is_script(self) -> bool:
        """Whether torch.jit.script has compiled it, which takes away much of what a module can."""
        return isinstance(self.module, torch.jit.ScriptModule)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Its own weight and bias.

        Raises:
            ContractViolationError: one is missing.
        """
        own = dict(self.module.named_parameters())
        if lost := [role for role, name in self.names.items() if name not in own]:
            raise ContractViolationError(f"has no {lost[0]}")
        return {role: own[name] for role, name in self.names.items()}

    def filled(self) -> Made:
        """Give the module the dtype, device, weight and bias of its call; all require gradients."""
        guarded(self.module.to, self.call.inputs.x)()
        self.write(self.call)
        return self.freeze(is_frozen=False)

    def write(self, call: Call) -> None:
        """Write the weight and bias of a call into the module's own."""
        with torch.no_grad():
            for role, parameter in self.parameters.items():
                guarded(parameter.copy_, call.parameters[role].reshape(parameter.shape))()

    def freeze(self, *roles: str, is_frozen: bool = True) -> Made:
        """Let some parameters, or all, require no gradient, or require one again."""
        chosen = {role: own for role, own in self.parameters.items() if role in roles or not roles}
        for parameter in chosen.values():  # a ScriptModule has no requires_grad_
            parameter.requires_grad_(not is_frozen)
        return replace(self, frozen=tuple(chosen) if is_frozen else ())

    def another(self) -> Made:
        """Return another new module, which has another weight and bias."""
        return Made.of(self.call.on(**seeded(self.call).parameters))

    def after_calls(self) -> Made:
        """Return this module after a call in every mode, on another x."""
        other = seeded(self.call).inputs
        calling = replace(self, call=self.call.on(x=other.x, dy=other.dy))
        for mode in (TRAINING, *EVALUATION):
            with suppress(ImplementationError, ContractViolationError):
                calling.outputs(mode)
        return self

    def outputs(self, mode: Mode) -> Outputs:
        """Return y and, if autograd records, the gradients that y.backward() leaves.

        Raises:
            ImplementationError: the module raised.
            ContractViolationError: y has another shape or dtype than x, a gradient is missing, or
                a frozen parameter has one.
        """
        is_recorded = mode.is_recorded and not self.call.target.forward_only
        if self.module.training is not mode.training:
            guarded(self.module.train if mode.training else self.module.eval)()
        x = copy_in_layout(self.call.inputs.x)
        x.requires_grad_(is_recorded and "x" not in self.frozen)
        leaves = {"x": x, **self.parameters}
        for leaf in leaves.values():
            leaf.grad = None
        with torch.inference_mode(mode.is_inference), torch.set_grad_enabled(is_recorded):
            y = checked("y", y_of(self.module, x, self.call), x)
        trained = [name for name in leaves if name not in self.frozen]
        if not is_recorded or not trained:
            return Outputs(y=y)
        if y.requires_grad:
            guarded(y.backward, self.call.dy)()
        for name, leaf in leaves.items():
            if leaf.requires_grad is not (name in trained):
                raise ContractViolationError(f"{'' if name in trained else 'un'}freezes {name}")
        gradients = {}
        for name in trained:
            if (gradient := leaves[name].grad) is None:
                raise ContractViolationError(f"gives no d{name}")
            gradients[f"d{name}"] = gradient.reshape(self.call.given[name].shape)
        return Outputs(y=y.detach(), **gradients)

    def fault(self, *modes: Mode) -> tuple[str, Mode] | None:
        """Return what is wrong in the first of the modes in which something is, and that mode."""
        right: Outputs | None = None
        for mode in modes:
            try:
                outputs = self.outputs(mode)
            except ContractViolationError as violation:
                return str(violation), mode
            if right is not None and has_bits_of(outputs, right):
                continue  # to judge takes longer than to compare
            if beyond := self.call.beyond(outputs):
                return f"gives a wrong {min(beyond, key=OUTPUTS.index)}", mode
            right = right or outputs
        return None


def usual_of(call: Call) -> Call:
    """Return a call with the parameters of a new module and an eps that changes y.

    The eps is not the default if it can be chosen; one that is unknown cannot change y visibly.

    Raises:
        NotConcernedError: the target is no module, or has parameters of unknown role.
    """
    made = new_module(call)
    roles = {*names_of(made, call)}
    if len(roles) < len([*made.parameters()]):
        raise NotConcernedError
    eps = _EPS if module_of(call).meaning().takes_eps else scope_of(call.target).default_eps
    case = replace(call.case, affine=affine_of(roles), eps=call.case.eps if eps is None else eps)
    call = replace(call, case=case, inputs=make_inputs(case))
    return call if eps is None else call.on(x=call.inputs.x * _SMALL)


def seeded(call: Call) -> Call:
    """Return the call with other values of the same size."""
    case = replace(call.case, seed=call.case.seed + 1)
    inputs = make_inputs(case)
    return replace(call, case=case, inputs=inputs).on(x=inputs.x * _SMALL)


def affine_of(roles: Collection[str]) -> Affine:
    """Return the combination of these of "weight" and "bias"."""
    return {0: Affine.NONE, 2: Affine.BOTH}.get(len(roles)) or Affine(*roles)


def module_of(call: Call) -> ModuleFunction:
    """Return the adapter of a module.

    Raises:
        NotConcernedError: the target is no module.
    """
    adapter = adapter_of(call.target)
    if not isinstance(adapter, ModuleFunction):
        raise NotConcernedError
    return adapter


def new_module(call: Call, **arguments: object) -> nn.Module:
    """Return a new module of the shape and eps of a call, built with further arguments.

    Raises:
        ImplementationError: its constructor raised, or an instance cannot be copied.
        NotConcernedError: the target is no module.
    """
    module = module_of(call)
    if isinstance(module.source, nn.Module):
        guarded(copy.deepcopy, module.source)()  # the user's own must stay as it is
    eps = call.case.eps if module.meaning().takes_eps else None
    new = partial(module.with_arguments(**arguments).new, call.case.normalized_shape, eps)
    off = {Affine.WEIGHT: "bias", Affine.BIAS: "weight"}.get(call.case.affine)
    try:
        made = new()
        return new(**{off: False}) if off and len(names_of(made, call)) > 1 else made
    except UnsupportedError as error:
        if not isinstance(error.__cause__, Exception):
            raise ImplementationError(Status.UNSUPPORTED, str(error)) from error
        raise ImplementationError(Status.ERROR, Raised(error.__cause__).reason) from error


def names_of(made: nn.Module, call: Call) -> dict[str, str]:
    """Return the names of the weight and bias that a module has."""
    names = parameter_names(made, call.case.normalized_shape)
    both = {"weight": names.weight, "bias": names.bias}
    return {role: name for role, name in both.items() if name is not None}


def y_of(module: nn.Module, x: Tensor, call: Call) -> object:
    """Call a module on rows, behind as many axes as it accepts."""
    meaning = module_of(call).meaning()
    x = x.reshape(*[1] * (len(meaning.leading) - 1), -1, *call.case.normalized_shape)
    if meaning.channels_first:
        x = x[None].movedim(-1, 1).contiguous()
    y: Any = guarded(module, x)()
    if meaning.channels_first and isinstance(y, Tensor):
        y = y.movedim(1, -1)
    is_whole = isinstance(y, Tensor) and y.numel() == x.numel()
    return y.reshape(call.inputs.x.shape) if is_whole else y


def pickled(module: nn.Module) -> nn.Module:
    """Return a module that was pickled; its class may be one that pickle does not find."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, found: object) -> object:
            return found is type(module) or None

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, _: object) -> object:
            return type(module)

    stored = BytesIO()
    Pickler(stored).dump(module)
    made = Unpickler(BytesIO(stored.getvalue())).load()
    assert isinstance(made, nn.Module)
    return made
