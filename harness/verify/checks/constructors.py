"""Contract checks of what a module's constructor makes, and of what PyTorch expects of a module."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from harness.cases.inputs import make_inputs
from harness.numerics.outputs import Outputs
from harness.records import Direction
from harness.records.finding import RemarkKind
from harness.records.text import listed
from harness.run.call import ContractViolationError, ImplementationError, checked, guarded
from harness.verify.checks.calls import Call, gradients_of
from harness.verify.checks.contract_checks import (
    LONG_ROWS,
    NO_BIAS,
    SMALL,
    check,
)
from harness.verify.checks.made import (
    EVALUATION,
    MODES,
    TRAINING,
    Made,
    affine_of,
    module_of,
    names_of,
    new_module,
    seeded,
    usual_of,
    y_of,
)
from harness.verify.checks.surroundings import changed_beside_another_caller
from harness.verify.in_scope import scope_of
from implementations.targets.module_parameters import call_once, own_eps, unregistered
from implementations.targets.signatures import is_eps

_OTHER_EPS = 0.5
_KEPT = 9  # calls: more than a ring of buffers is likely to have
_ARGUMENTS = ("normalized_shape", "eps", "elementwise_affine", "bias", "device", "dtype")


@check(None, raises_where="it is made without a bias")
def is_right_without_bias(call: Call) -> Iterator[str]:
    """With bias=False, or a flag of such a name, it has a weight alone."""
    return _without(call, "bias")


@check(None, raises_where="it is made without a weight")
def is_right_without_weight(call: Call) -> Iterator[str]:
    """The same of a flag for the weight."""
    return _without(call, "weight")


@check(None, raises_where="it is made without weight and bias")
def is_right_without_parameters(call: Call) -> Iterator[str]:
    """The same of elementwise_affine=False, without which there are neither."""
    return _without(call, "affine")


def _without(call: Call, what: str) -> Iterator[str]:
    """Build a module with each flag for ``what`` off, and judge it.

    A parameter that is frozen from the beginning counts as off.
    """
    usual = usual_of(call)
    off = {"weight", "bias"} if what == "affine" else {what}
    left = {*usual.parameters} - off
    switches = module_of(call).switches
    for flag in [own for own, switched in switches.items() if switched == what]:
        built = new_module(usual, **{flag: False})
        guarded(getattr(built, "reset_parameters", lambda: None))()
        guarded(repr, built)()
        own, names = dict(built.named_parameters()), names_of(built, usual)
        for role in ("weight", "bias"):
            if role in off & {*names} and own[names[role]].requires_grad:
                yield f"has a {role} with {flag}=False"
            if role in left - {*names}:
                yield f"has no {role} with {flag}=False"
        given = usual.of_case(affine=affine_of(left))
        given = given.on(**dict.fromkeys({"weight", "bias"} - left))
        made = Made(built, {role: names[role] for role in left}, given).filled()
        fault = made.fault(*reversed(EVALUATION), TRAINING)  # the first call may keep its tensors
        with suppress(ImplementationError):  # it cannot be copied, which the check of copies says
            copied: Any = guarded(copy.deepcopy, built)()
            fault = fault or replace(made, module=copied).fault(TRAINING)
        if fault and not Made.of(usual).fault(fault[1]):
            yield f"{fault[0]} {fault[1].words} with {flag}=False"


@check(None)
def is_right_with_other_options(call: Call) -> Iterator[str]:
    """A flag that leaves y as it is, such as one for less memory, leaves every gradient right."""
    usual, module = usual_of(call), module_of(call)
    for flag, argument in module.arguments.items():
        if flag in module.switches or not isinstance(argument.default, bool):
            continue
        given = {flag: not argument.default}
        try:
            if Made.of(usual, **given).fault(*EVALUATION):
                continue
        except (ImplementationError, ContractViolationError):
            continue
        mixed = usual.of_case(parameters="mixed_weight")  # with elements of 0
        inputs = make_inputs(mixed.case)
        for own in (usual, mixed.on(weight=inputs.weight, bias=inputs.bias)):
            if fault := Made.of(own, **given).fault(TRAINING):
                yield f"{fault[0]} {fault[1].words} with {flag}={not argument.default}"


@check(Direction.FORWARD, SMALL, NO_BIAS, raises_where="its constructor is given a dtype")
def uses_the_dtype_of_its_constructor(call: Call) -> Iterator[str]:
    """The parameters have the dtype that the constructor is given."""
    return _ignored(call, "dtype", torch.float64)


@check(Direction.FORWARD, SMALL, NO_BIAS, raises_where="its constructor is given a device")
def uses_the_device_of_its_constructor(call: Call) -> Iterator[str]:
    """The parameters are on the device that the constructor is given."""
    try:
        yield from _ignored(call, "device", torch.device("meta"))
    except ImplementationError:  # it may write values, which the meta device has not
        yield from _ignored(call, "device", torch.device("cpu"))


@check(Direction.FORWARD, remark=RemarkKind.DEFAULT_DTYPE)
def uses_the_default_dtype(call: Call) -> Iterator[str]:
    """Without a dtype, the parameters have the default one."""
    module = module_of(call)
    dtype = module.arguments.get("dtype")
    if module.is_instance or (dtype is not None and dtype.default is not None):
        return
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        made = new_module(call)
    finally:
        torch.set_default_dtype(before)
    for name, parameter in made.named_parameters():
        if parameter.dtype != torch.float64:
            yield f"makes its {name} in {parameter.dtype} where the default dtype is float64"


def _ignored(call: Call, argument: str, value: object) -> Iterator[str]:
    """Build a module with an argument whose default is None, as torch has it."""
    taken = module_of(call).arguments
    if argument not in taken or taken[argument].default is not None:
        return
    for name, parameter in new_module(call, **{argument: value}).named_parameters():
        if (actual := getattr(parameter, argument)) != value:
            text = f"ignores the {argument} given to its constructor"
            yield f"{text}: its {name} has {argument} {actual}"


@check(Direction.FORWARD)
def registers_its_parameters(call: Call) -> Iterator[str]:
    """An optimizer and .to() see its weight and bias, and those of a new module are trained."""
    made, shape = new_module(call), call.case.normalized_shape
    if not [*made.parameters()]:  # its first call may make them
        call_once(made, shape)
    for mistake in unregistered(made, shape):
        yield f"{mistake}: no optimizer trains it"
    for name, own in made.named_parameters():
        if not own.requires_grad and not module_of(call).is_instance:
            yield f"makes its {name} with requires_grad=False"


@check(Direction.FORWARD, SMALL, NO_BIAS)
def initial_parameters_match_torch(call: Call) -> Iterator[str]:
    """A new module has weights of 1 and biases of 0, unless its constructor is told others.

    So has one after ``reset_parameters()``, which models call to start again.
    """
    module = module_of(call)
    if module.is_instance or any("init" in name for name in module.arguments):
        return
    made = new_module(call)
    own, names = dict(made.named_parameters()), names_of(made, call)

    def others(does: str) -> Iterator[str]:
        for role, name in names.items():
            start = 1 if role == "weight" else 0
            if not bool((own[name] == start).all()):
                yield f"{does} its {role} ({name}) to something other than {start}"

    yield from others("initialises")
    if callable(reset := getattr(made, "reset_parameters", None)):
        for parameter in own.values():
            parameter.detach().fill_(0.5)
        guarded(reset)()
        yield from others("resets")


@check(None, remark=RemarkKind.SHOWN_EPS)
def uses_its_eps_attribute(call: Call) -> Iterator[str]:
    """The eps that is added is that of the attribute named eps."""
    module, measured = module_of(call), scope_of(call.target).default_eps
    if measured is None:
        return
    attributes = set(own_eps(module.new(call.case.normalized_shape)))
    if len(attributes) != 1:
        return
    if measured not in attributes:
        yield f"has an attribute eps of {attributes.pop():g}, and adds {measured:g}"
    usual = usual_of(call)
    other = usual.of_case(eps=_OTHER_EPS)
    made = Made.of(usual).after_calls()
    for holder in made.module.modules():
        for name, value in vars(holder).items():
            if is_eps(name) and isinstance(value, float):
                vars(holder)[name] = _OTHER_EPS
    if replace(made, call=other).fault(*MODES):
        yield "ignores its attribute eps once it is made"
    if module.meaning().takes_eps:
        made = Made.of(usual)
        made.module.load_state_dict(Made.of(other).module.state_dict())
        if made.fault(EVALUATION[1]):
            yield "takes its eps from a state_dict that it loads"


@check(None, SMALL, NO_BIAS)
def is_right_when_converted(call: Call) -> Iterator[str]:
    """A class method such as from_torch() keeps what the torch.nn.LayerNorm has."""
    usual, module = usual_of(call), module_of(call)
    if not isinstance(module.source, type):
        return
    for frozen, name in product((False, True), dir(module.source)):
        if not name.startswith("from_"):
            continue
        given = Made.of_torch(usual).freeze(is_frozen=frozen)
        with suppress(ImplementationError):  # it may convert something else
            converted = guarded(getattr(module.source, name), given.module)()
            if isinstance(converted, nn.Module) and isinstance(converted, module.source):
                made = replace(given, module=converted, names=names_of(converted, usual))
                if fault := made.fault(*MODES):
                    what = "a frozen torch.nn.LayerNorm" if frozen else "it"
                    yield f"{fault[0]} {fault[1].words} where {name}() made {what}"


@check(None, LONG_ROWS)
def is_safe_for_concurrent_callers_of_a_module(call: Call) -> Iterator[str]:
    """Python threads that share a module each get their own y and dx; a third has fewer rows."""
    usual = usual_of(call)
    if call.case.device != "cpu" or "cpu" not in call.target.devices:
        return
    module = Made.of(usual).module

    def outputs_of(own: Call) -> Outputs:
        is_recorded = module.training and own.inputs.dy is not None
        x = own.inputs.x.detach().requires_grad_(is_recorded)
        with torch.set_grad_enabled(is_recorded):
            y = checked("y", y_of(module, x, own), x)
        dx = gradients_of(y, (x,), own.dy)[0] if is_recorded else None
        return Outputs(y=y.detach(), dx=dx)

    fewer = usual.of_case(shape=(usual.case.rows // 2, *usual.case.shape[1:]))
    few, dy = slice(fewer.case.rows), usual.inputs.dy
    fewer = fewer.on(x=usual.inputs.x[few], dy=None if dy is None else dy[few])
    callers = (usual, seeded(usual).on(**usual.parameters), fewer)
    for is_training in (False, True):
        module.train(is_training)
        if name := changed_beside_another_caller(callers, outputs_of):
            yield f"gives another {name} while a second Python thread calls the same module"


@check(Direction.FORWARD)
def keeps_its_results(call: Call) -> Iterator[str]:
    """A module writes to no x, and to no y of an earlier call, in any mode."""
    usual = usual_of(call)
    module = Made.of(usual).module
    for mode in MODES:
        module.train(mode.training)
        kept = []
        with torch.inference_mode(mode.is_inference), torch.set_grad_enabled(mode.is_recorded):
            for number in range(_KEPT):
                x = usual.inputs.x + number
                before, y = x.clone(), checked("y", y_of(module, x, usual), x)
                kept.append((y, y.clone()))
                if not torch.equal(x, before):
                    yield f"changes x {mode.words}"
        if not all(torch.equal(y, copied) for y, copied in kept):
            yield f"overwrites a y that it has returned, in a later call {mode.words}"


@check(Direction.FORWARD, remark=RemarkKind.NEVER_TRIED)
def has_no_unknown_option(call: Call) -> Iterator[str]:
    """What its constructor takes, beside torch's arguments and flags, is not varied."""
    module = module_of(call)
    unknown = [
        f"{name}={argument.default!r}"
        for name, argument in module.arguments.items()
        if isinstance(argument.default, str)
    ]
    if unknown and not module.is_instance:
        yield f"was tried with {listed(unknown)} alone"


@check(Direction.FORWARD, remark=RemarkKind.NEVER_TRIED)
def takes_its_arguments_in_torchs_order(call: Call) -> Iterator[str]:
    """The arguments that torch.nn.LayerNorm has too come in its order, if they have no names."""
    own = [
        name
        for name, argument in module_of(call).arguments.items()
        if argument.kind is argument.POSITIONAL_OR_KEYWORD and name in _ARGUMENTS
    ]
    if own != sorted(own, key=_ARGUMENTS.index):
        yield f"takes the arguments {listed(own)} in another order than torch.nn.LayerNorm"


@check(Direction.FORWARD)
def stores_its_own_parameters(call: Call) -> Iterator[str]:
    """A state_dict holds the values of its parameters, under their names."""
    usual = usual_of(call)
    made = Made.of(usual)
    state: Any = guarded(made.module.state_dict)()
    for role, name in made.names.items():
        if name in state and not torch.equal(state[name], made.parameters[role]):
            yield f"stores another {role} ({name}) in its state_dict than it has"
    initial: Any = guarded(new_module(usual).state_dict)()
    kept: Any = guarded(partial(made.module.state_dict, keep_vars=True))()
    for role, name in made.names.items():
        if name in kept and kept[name] is not made.parameters[role]:
            yield f"holds a copy of its {role} ({name}) in state_dict(keep_vars=True)"
        if name in state and name not in initial:
            yield f"leaves its {role} ({name}) out of its state_dict while it is the initial one"
