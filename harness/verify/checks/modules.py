"""Contract checks of modules: however one is obtained, it is the LayerNorm of its own parameters.

The cases call a module with weight and bias in place of its own. Here its own are read, written,
loaded, copied and trained, as a model does it.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import update_wrapper
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.cases.inputs import copy_in_layout, make_inputs
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.records import Affine, Direction, Status
from harness.records.finding import RemarkKind
from harness.run.call import ContractViolationError, ImplementationError, checked, guarded
from harness.verify.checks.calls import Call, has_bits_of
from harness.verify.checks.contract_checks import (
    LONG_ROWS,
    ONE_ROW,
    SMALL,
    ContractCheck,
    check,
)
from harness.verify.checks.surroundings import changed_beside_another_caller
from harness.verify.scope import adapter_of, scope_of
from implementations.contract import UnsupportedError
from implementations.targets.attempt import Raised
from implementations.targets.from_module import ModuleFunction
from implementations.targets.module_parameters import (
    assign,
    call_once,
    own_eps,
    parameter_names,
    unregistered,
)

__all__ = ["Made"]

_SMALL = 1 / 16  # scale of x: an eps of 1e-5 changes y in float32, and no square underflows
_EPS = 3e-3  # no module's default; about the variance of x
_CALLED = "it was called before"
_MANY_CALLS = 1_100
_MOST_S = 0.3  # for them


class _Mode(NamedTuple):
    """A mode of a module, and what autograd records of its call."""

    words: str
    training: bool = False
    is_recorded: bool = False
    is_inference: bool = False


_TRAINING = _Mode("in training mode", training=True, is_recorded=True)
_EVALUATION = (
    _Mode("in evaluation mode", is_recorded=True),
    _Mode("in evaluation mode under torch.no_grad()"),
    _Mode("in evaluation mode under torch.inference_mode()", is_inference=True),
)
_MODES = (*_EVALUATION, _TRAINING)
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
    def of(cls, call: Call) -> Made:
        """Return a new module with the weight and bias of a call."""
        module = _new(call)
        made = cls(module, _names_of(module, call), call)
        guarded(module.to, call.inputs.x)()
        made.write(call)
        made.freeze(is_frozen=False)
        return made

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

    def write(self, call: Call) -> None:
        """Write the weight and bias of a call into the module's own."""
        with torch.no_grad():
            for role, parameter in self.parameters.items():
                guarded(parameter.copy_, call.parameters[role].reshape(parameter.shape))()

    def freeze(self, *, is_frozen: bool = True) -> Made:
        """Let its parameters require no gradient, or require one again."""
        for parameter in self.parameters.values():  # a ScriptModule has no requires_grad_
            parameter.requires_grad_(not is_frozen)
        return replace(self, frozen=tuple(self.names) if is_frozen else ())

    def another(self) -> Made:
        """Return another new module, which has another weight and bias."""
        return Made.of(self.call.on(**_seeded(self.call).parameters))

    def after_calls(self) -> Made:
        """Return this module after a call in every mode, on another x."""
        other = _seeded(self.call).inputs
        calling = replace(self, call=self.call.on(x=other.x, dy=other.dy))
        for mode in (_TRAINING, *_EVALUATION):
            with suppress(ImplementationError, ContractViolationError):
                calling.outputs(mode)
        return self

    def outputs(self, mode: _Mode) -> Outputs:
        """Return y and, if autograd records, the gradients that y.backward() leaves.

        Raises:
            ImplementationError: the module raised.
            ContractViolationError: y has another shape or dtype than x, a gradient is missing, or
                a frozen parameter has one.
        """
        is_recorded = mode.is_recorded and not self.call.target.forward_only
        if self.module.training is not mode.training:
            guarded(self.module.train if mode.training else self.module.eval)()
        x = copy_in_layout(self.call.inputs.x).requires_grad_(
            is_recorded and "x" not in self.frozen
        )
        leaves = {"x": x, **self.parameters}
        for leaf in leaves.values():
            leaf.grad = None
        with torch.inference_mode(mode.is_inference), torch.set_grad_enabled(is_recorded):
            y = checked("y", _y_of(self.module, x, self.call), x)
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

    def fault(self, *modes: _Mode) -> tuple[str, _Mode] | None:
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


# --- ways of obtaining a module ------------------------------------------------------------------


def _way(
    where: str, *modes: _Mode, is_called: bool = True
) -> Callable[[Callable[[Made], Made]], ContractCheck]:
    """Declare a way of obtaining a module from a new one, which is judged in the modes.

    Args:
        where: what the module is; follows "where ".
        modes: all if none is given.
        is_called: whether the new module is called first, in every mode.
    """

    def declare(obtain: Callable[[Made], Made]) -> ContractCheck:
        def find(call: Call) -> str | None:
            usual = _usual(call)
            if usual is None:
                return None
            made = Made.of(usual)
            obtained = guarded(obtain, made.after_calls() if is_called else made)()
            assert isinstance(obtained, Made)  # the type that obtain returns
            if (fault := obtained.fault(*(modes or _MODES))) is None:
                return None
            text, mode = fault
            in_both = obtained.fault(_TRAINING) and obtained.fault(_EVALUATION[0])
            text = f"{text} {'in every mode' if in_both else mode.words}"
            # the plainest way that shows it
            if Made.of(usual).fault(mode):
                return text
            is_of_later_calls = Made.of(usual).after_calls().fault(mode) is not None
            return f"{text} where {_CALLED if is_of_later_calls else where}"

        return check(None, SMALL, ONE_ROW, raises_where=where)(update_wrapper(find, obtain))

    return declare


def _usual(call: Call) -> Call | None:
    """Return a call with the parameters of a new module and an eps that changes y.

    None if the target is no module, or has parameters of unknown role. The eps is not the default
    if it can be chosen; one that is unknown cannot change y visibly.
    """
    module = _module_if_any(call)
    if module is None:
        return None
    made = _new(call)
    roles = {*_names_of(made, call)}
    if len(roles) < len([*made.parameters()]):
        return None
    eps = _EPS if module.meaning().takes_eps else scope_of(call.target).default_eps
    case = replace(call.case, affine=_affine(roles), eps=call.case.eps if eps is None else eps)
    call = replace(call, case=case, inputs=make_inputs(case))
    return call if eps is None else call.on(x=call.inputs.x * _SMALL)


def _seeded(call: Call) -> Call:
    """Return the call with other values of the same size."""
    case = replace(call.case, seed=call.case.seed + 1)
    inputs = make_inputs(case)
    return replace(call, case=case, inputs=inputs).on(x=inputs.x * _SMALL)


def _affine(roles: Collection[str]) -> Affine:
    """Return the combination of these of "weight" and "bias"."""
    return {0: Affine.NONE, 2: Affine.BOTH}.get(len(roles)) or Affine(*roles)


def _changed(made: Made) -> Made:
    """Return the module with other values, written in place as an optimizer does."""
    other = made.another()
    made.write(other.call)
    return replace(made, call=other.call)


@_way("it is a deep copy")
def is_right_as_a_deep_copy(made: Made) -> Made:
    """copy.deepcopy copies all that matters: the original may change."""
    if isinstance(made.module, torch.jit.ScriptModule):  # torch copies the graph of its parameters
        return made
    copied = copy.deepcopy(made.module)
    made.write(made.another().call)
    return replace(made, module=copied)


@_way("it is called as a module", _TRAINING, is_called=False)
def is_right_as_a_module(made: Made) -> Made:
    """A module computes the LayerNorm of its own weight, bias and eps."""
    return made


@_way("the module is in evaluation mode", *_EVALUATION, is_called=False)
def is_right_in_evaluation_mode(made: Made) -> Made:
    """module.eval() changes no result: a LayerNorm has no mode."""
    return made


@_way(_CALLED)
def is_right_when_called_again(made: Made) -> Made:
    """A later call uses the same parameters, and has gradients."""
    return made


@_way("an optimizer has changed its parameters")
def is_right_after_a_training_step(made: Made) -> Made:
    """The parameters are used as they are now."""
    return _changed(made)


@_way("its parameters were changed through .data")
def is_right_after_changes_of_data(made: Made) -> Made:
    """The same, of a change that autograd does not count."""
    other = made.another()
    for role, parameter in made.parameters.items():
        parameter.data.copy_(other.parameters[role])
    return replace(made, call=other.call)


@_way("a model that holds it is loaded from a state_dict")
def is_right_with_a_loaded_state(made: Made) -> Made:
    """load_state_dict replaces all that matters, and two modules of a model have keys each."""
    other = made.another()
    model = nn.ModuleList([other.module, Made.of(made.call).module])
    own = nn.ModuleList([made.module, Made.of(made.call).module])
    for keep_vars in (True, False):
        own.load_state_dict(model.state_dict(keep_vars=keep_vars))
    return replace(made, call=other.call)


@_way("it is made without memory (on the meta device) and loaded", is_called=False)
def is_right_when_loaded_from_the_meta_device(made: Made) -> Made:
    """Beside its parameters, what it keeps is in its state_dict, or made by reset_parameters."""
    if "device" not in _module_of(made.call).arguments:
        return made
    try:
        module = _new(made.call, device=torch.device("meta"))
    except ImplementationError:  # it may write values, which the meta device has not
        return made
    module.to_empty(device=made.call.inputs.x.device)
    for kept in module.buffers():  # what memory holds by chance may be right
        if kept.is_floating_point():
            kept.fill_(float("nan"))
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()
    module.to(made.call.inputs.x)
    module.load_state_dict(made.module.state_dict())
    return replace(made, module=module)


@_way("it was called a thousand times before", _TRAINING)
def is_right_after_many_calls(made: Made) -> Made:
    """A module counts no calls."""
    began = perf_counter()
    made.module.train()
    for _ in range(_MANY_CALLS):
        if perf_counter() - began > _MOST_S:
            break
        _y_of(made.module, made.call.inputs.x, made.call)
    return made


@_way("it shares the parameters of another module")
def is_right_with_shared_parameters(made: Made) -> Made:
    """The parameters are those that its attributes hold now."""
    other = made.another()
    roles = {id(parameter): role for role, parameter in made.parameters.items()}
    for name, old in [*made.module.named_parameters(remove_duplicate=False)]:
        assign(made.module, name, other.parameters[roles[id(old)]])
    return replace(made, call=other.call)


@_way("another module of its class was changed")
def is_independent_of_other_modules(made: Made) -> Made:
    """Two modules have parameters of their own."""
    made.another()
    return made


@_way("it is pickled")
def is_right_when_pickled(made: Made) -> Made:
    """The same of pickle, which torch.save uses; of a class that can be imported."""
    if isinstance(made.module, torch.jit.ScriptModule):  # torch refuses it
        return made
    try:
        pickle.dumps(type(made.module))
    except (pickle.PicklingError, AttributeError):
        return made
    return replace(made, module=pickle.loads(pickle.dumps(made.module)))


@_way("it had another dtype before")
def is_right_after_another_dtype(made: Made) -> Made:
    """.to(dtype) leaves nothing behind in the first dtype."""
    dtype = made.call.inputs.x.dtype
    other = torch.float32 if dtype is torch.float64 else torch.float64
    made.module.to(other)
    for role, parameter in made.parameters.items():
        if parameter.dtype != other:
            raise ContractViolationError(f"keeps a {role} of {parameter.dtype} after .to({other})")
    wide = [tensor.to(other) for tensor in made.call.inputs.tensors]
    replace(made, call=made.call.at(wide)).after_calls()
    made.module.to(dtype)
    return _changed(made)


@_way("its parameters are frozen")
def is_right_with_frozen_parameters(made: Made) -> Made:
    """x has its gradient, and the parameters stay frozen."""
    return made.freeze()


@_way("its parameters were frozen before", is_called=False)
def is_right_with_unfrozen_parameters(made: Made) -> Made:
    """The parameters have gradients again."""
    return made.freeze().after_calls().freeze(is_frozen=False)


@_way("x needs no gradient")
def is_right_with_a_frozen_x(made: Made) -> Made:
    """The parameters have their gradients in the first layer of a model too."""
    return replace(made, frozen=("x",))


@check(Direction.FORWARD, LONG_ROWS)
def is_safe_for_concurrent_callers_of_a_module(call: Call) -> str | None:
    """Two Python threads that share a module each get their own y."""
    usual = _usual(call)
    if usual is None or call.case.device != "cpu" or "cpu" not in call.target.devices:
        return None
    module = Made.of(usual).module.eval()

    def outputs_of(own: Call) -> Outputs:
        with torch.no_grad():
            return Outputs(y=checked("y", _y_of(module, own.inputs.x, own), own.inputs.x))

    callers = (usual, _seeded(usual).on(**usual.parameters))
    if changed_beside_another_caller(callers, outputs_of):
        return "gives another y while a second Python thread calls the same module"
    return None


# --- options of the constructor, and what it makes -----------------------------------------------


@check(None, raises_where="it is made without a bias")
def is_right_without_bias(call: Call) -> str | None:
    """With bias=False, or a flag of such a name, it has a weight alone."""
    return _without(call, "bias")


@check(None, raises_where="it is made without a weight")
def is_right_without_weight(call: Call) -> str | None:
    """The same of a flag for the weight."""
    return _without(call, "weight")


@check(None, raises_where="it is made without weight and bias")
def is_right_without_parameters(call: Call) -> str | None:
    """The same of elementwise_affine=False, without which there are neither."""
    return _without(call, "affine")


def _without(call: Call, what: str) -> str | None:
    """Build a module with each flag for ``what`` off, and judge it.

    A parameter that is frozen from the beginning counts as off.
    """
    usual = _usual(call)
    if usual is None:
        return None
    off = {"weight", "bias"} if what == "affine" else {what}
    left = {*usual.parameters} - off
    for flag, switched in _module_of(call).switches.items():
        if switched != what:
            continue
        built = _new(usual, **{flag: False})
        own, names = dict(built.named_parameters()), _names_of(built, usual)
        for role in ("weight", "bias"):
            if role in off & {*names} and own[names[role]].requires_grad:
                return f"has a {role} with {flag}=False"
            if role in left - {*names}:
                return f"has no {role} with {flag}=False"
        case = replace(usual.case, affine=_affine(left))
        given = replace(usual, case=case).on(**dict.fromkeys({"weight", "bias"} - left))
        made = Made(built, {role: names[role] for role in left}, given)
        guarded(built.to, usual.inputs.x)()
        made.write(given)
        made.freeze(is_frozen=False)
        fault = made.fault(*_MODES)
        with suppress(ImplementationError):  # it cannot be copied, which the check of copies says
            copied = guarded(copy.deepcopy, built)()
            assert isinstance(copied, nn.Module)
            fault = fault or replace(made, module=copied).fault(_TRAINING)
        if fault and not Made.of(usual).fault(fault[1]):
            return f"{fault[0]} {fault[1].words} with {flag}=False"
    return None


@check(Direction.FORWARD, raises_where="its constructor is given a dtype")
def uses_the_dtype_of_its_constructor(call: Call) -> str | None:
    """The parameters have the dtype that the constructor is given."""
    return _ignored(call, "dtype", torch.float64)


@check(Direction.FORWARD, raises_where="its constructor is given a device")
def uses_the_device_of_its_constructor(call: Call) -> str | None:
    """The parameters are on the device that the constructor is given."""
    with suppress(ImplementationError):  # it may write values, which the meta device has not
        return _ignored(call, "device", torch.device("meta"))
    return _ignored(call, "device", torch.device("cpu"))


def _ignored(call: Call, argument: str, value: object) -> str | None:
    """Build a module with an argument whose default is None, as torch has it."""
    module = _module_if_any(call)
    taken = {} if module is None else module.arguments
    if argument not in taken or taken[argument].default is not None:
        return None
    for name, parameter in _new(call, **{argument: value}).named_parameters():
        if (actual := getattr(parameter, argument)) != value:
            text = f"ignores the {argument} given to its constructor"
            return f"{text}: its {name} has {argument} {actual}"
    return None


@check(Direction.FORWARD)
def registers_its_parameters(call: Call) -> str | None:
    """An optimizer and .to() see its weight and bias, and those of a new module are trained."""
    module = _module_if_any(call)
    if module is None:
        return None
    made, shape = _new(call), call.case.normalized_shape
    if not [*made.parameters()]:  # its first call may make them
        call_once(made, shape)
    if outside := unregistered(made, shape):
        return f"{outside[0]}: no optimizer trains it"
    frozen = [name for name, own in made.named_parameters() if not own.requires_grad]
    if frozen and not module.is_instance:
        return f"makes its {frozen[0]} with requires_grad=False"
    return None


@check(Direction.FORWARD)
def initial_parameters_match_torch(call: Call) -> str | None:
    """A new module has weights of 1 and biases of 0, unless its constructor is told others.

    So has one after ``reset_parameters()``, which models call to start again.
    """
    module = _module_if_any(call)
    if module is None or module.is_instance or any("init" in name for name in module.arguments):
        return None
    made = _new(call)
    own, names = dict(made.named_parameters()), _names_of(made, call)

    def other() -> str | None:
        for role, name in names.items():
            start = 1 if role == "weight" else 0
            if not bool((own[name] == start).all()):
                return f"its {role} ({name}) to something other than {start}"
        return None

    if found := other():
        return f"initialises {found}"
    if callable(reset := getattr(made, "reset_parameters", None)):
        for parameter in own.values():
            parameter.detach().fill_(0.5)
        guarded(reset)()
        if found := other():
            return f"resets {found}"
    return None


@check(Direction.FORWARD, remark=RemarkKind.SHOWN_EPS)
def uses_its_eps_attribute(call: Call) -> str | None:
    """The eps that is added is that of the attribute named eps."""
    module, measured = _module_if_any(call), scope_of(call.target).default_eps
    if module is None or measured is None:
        return None
    attributes = set(own_eps(module.new(call.case.normalized_shape)))
    if len(attributes) != 1 or measured in attributes:
        return None
    return f"has an attribute eps of {attributes.pop():g}, and adds {measured:g}"


# --- modules of a target -------------------------------------------------------------------------


def _module_if_any(call: Call) -> ModuleFunction | None:
    """Return the adapter of a module; None if the target is no module."""
    adapter = adapter_of(call.target)
    return adapter if isinstance(adapter, ModuleFunction) else None


def _module_of(call: Call) -> ModuleFunction:
    """Return the adapter of a target that is a module."""
    adapter = _module_if_any(call)
    assert adapter is not None
    return adapter


def _new(call: Call, **arguments: object) -> nn.Module:
    """Return a new module of the shape and eps of a call, built with further arguments.

    Raises:
        ImplementationError: its constructor raised, or an instance cannot be copied.
    """
    module = _module_of(call)
    if isinstance(module.source, nn.Module):
        guarded(copy.deepcopy, module.source)()  # the user's own must stay as it is
    eps = call.case.eps if module.meaning().takes_eps else None
    try:
        return module.with_arguments(**arguments).new(call.case.normalized_shape, eps)
    except UnsupportedError as error:
        if not isinstance(error.__cause__, Exception):
            raise ImplementationError(Status.UNSUPPORTED, str(error)) from error
        raise ImplementationError(Status.ERROR, Raised(error.__cause__).reason) from error


def _names_of(made: nn.Module, call: Call) -> dict[str, str]:
    """Return the names of the weight and bias that a module has."""
    names = parameter_names(made, call.case.normalized_shape)
    both = {"weight": names.weight, "bias": names.bias}
    return {role: name for role, name in both.items() if name is not None}


def _y_of(module: nn.Module, x: Tensor, call: Call) -> object:
    """Call a module on rows, behind as many axes as it accepts."""
    meaning = _module_of(call).meaning()
    x = x.reshape(*[1] * (len(meaning.leading) - 1), *x.shape)
    if meaning.channels_first:
        y = guarded(module, x[None].movedim(-1, 1).contiguous())()
        y = y.movedim(1, -1) if isinstance(y, Tensor) else y
    else:
        y = guarded(module, x)()
    is_whole = isinstance(y, Tensor) and y.numel() == x.numel()
    return y.reshape(call.inputs.x.shape) if is_whole and isinstance(y, Tensor) else y
