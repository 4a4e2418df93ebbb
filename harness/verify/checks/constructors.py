"""Contract checks of what a module's constructor makes, and of what PyTorch expects of a module."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from harness.cases.inputs import make_inputs
from harness.numerics.outputs import Outputs
from harness.records import Direction
from harness.records.finding import RemarkKind
from harness.run.call import ContractViolationError, ImplementationError, checked, guarded
from harness.verify.checks.calls import Call
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
    module_if_any,
    module_of,
    names_of,
    new_module,
    seeded,
    usual_of,
    y_of,
)
from harness.verify.checks.surroundings import changed_beside_another_caller
from harness.verify.scope import scope_of
from implementations.targets.module_parameters import call_once, own_eps, unregistered
from implementations.targets.signatures import is_eps

_OTHER_EPS = 0.5


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
    usual = usual_of(call)
    if usual is None:
        return None
    off = {"weight", "bias"} if what == "affine" else {what}
    left = {*usual.parameters} - off
    for flag, switched in module_of(call).switches.items():
        if switched != what:
            continue
        built = new_module(usual, **{flag: False})
        guarded(getattr(built, "reset_parameters", lambda: None))()
        guarded(repr, built)()
        own, names = dict(built.named_parameters()), names_of(built, usual)
        for role in ("weight", "bias"):
            if role in off & {*names} and own[names[role]].requires_grad:
                return f"has a {role} with {flag}=False"
            if role in left - {*names}:
                return f"has no {role} with {flag}=False"
        case = replace(usual.case, affine=affine_of(left))
        given = replace(usual, case=case).on(**dict.fromkeys({"weight", "bias"} - left))
        made = Made(built, {role: names[role] for role in left}, given)
        guarded(built.to, usual.inputs.x)()
        made.write(given)
        made.freeze(is_frozen=False)
        fault = made.fault(*reversed(EVALUATION), TRAINING)  # the first call may keep its tensors
        with suppress(ImplementationError):  # it cannot be copied, which the check of copies says
            copied = guarded(copy.deepcopy, built)()
            assert isinstance(copied, nn.Module)
            fault = fault or replace(made, module=copied).fault(TRAINING)
        if fault and not Made.of(usual).fault(fault[1]):
            return f"{fault[0]} {fault[1].words} with {flag}=False"
    return None


@check(None)
def is_right_with_other_options(call: Call) -> str | None:
    """A flag that leaves y as it is, such as one for less memory, leaves every gradient right."""
    usual = usual_of(call)
    module = module_if_any(call)
    if usual is None or module is None:
        return None
    for flag, argument in module.arguments.items():
        if flag in module.switches or not isinstance(argument.default, bool):
            continue
        given = {flag: not argument.default}
        try:
            is_another = Made.of(usual, **given).fault(*EVALUATION)
        except (ImplementationError, ContractViolationError):
            continue
        if is_another:
            continue
        case = replace(usual.case, parameters="mixed_weight")  # with elements of 0
        inputs = make_inputs(case)
        mixed = replace(usual, case=case).on(weight=inputs.weight, bias=inputs.bias)
        for own in (usual, mixed):
            if fault := Made.of(own, **given).fault(TRAINING):
                return f"{fault[0]} {fault[1].words} with {flag}={not argument.default}"
    return None


@check(Direction.FORWARD, SMALL, NO_BIAS, raises_where="its constructor is given a dtype")
def uses_the_dtype_of_its_constructor(call: Call) -> str | None:
    """The parameters have the dtype that the constructor is given."""
    return _ignored(call, "dtype", torch.float64)


@check(Direction.FORWARD, SMALL, NO_BIAS, raises_where="its constructor is given a device")
def uses_the_device_of_its_constructor(call: Call) -> str | None:
    """The parameters are on the device that the constructor is given."""
    with suppress(ImplementationError):  # it may write values, which the meta device has not
        return _ignored(call, "device", torch.device("meta"))
    return _ignored(call, "device", torch.device("cpu"))


@check(Direction.FORWARD, remark=RemarkKind.DEFAULT_DTYPE)
def uses_the_default_dtype(call: Call) -> str | None:
    """Without a dtype, the parameters have the default one."""
    module = module_if_any(call)
    if module is None or module.is_instance:
        return None
    dtype = module.arguments.get("dtype")
    if dtype is not None and dtype.default is not None:
        return None
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        made = new_module(call)
    finally:
        torch.set_default_dtype(before)
    for name, parameter in made.named_parameters():
        if parameter.dtype != torch.float64:
            return f"makes its {name} in {parameter.dtype} where the default dtype is float64"
    return None


def _ignored(call: Call, argument: str, value: object) -> str | None:
    """Build a module with an argument whose default is None, as torch has it."""
    module = module_if_any(call)
    taken = {} if module is None else module.arguments
    if argument not in taken or taken[argument].default is not None:
        return None
    for name, parameter in new_module(call, **{argument: value}).named_parameters():
        if (actual := getattr(parameter, argument)) != value:
            text = f"ignores the {argument} given to its constructor"
            return f"{text}: its {name} has {argument} {actual}"
    return None


@check(Direction.FORWARD)
def registers_its_parameters(call: Call) -> str | None:
    """An optimizer and .to() see its weight and bias, and those of a new module are trained."""
    module = module_if_any(call)
    if module is None:
        return None
    made, shape = new_module(call), call.case.normalized_shape
    if not [*made.parameters()]:  # its first call may make them
        call_once(made, shape)
    if outside := unregistered(made, shape):
        return f"{outside[0]}: no optimizer trains it"
    frozen = [name for name, own in made.named_parameters() if not own.requires_grad]
    if frozen and not module.is_instance:
        return f"makes its {frozen[0]} with requires_grad=False"
    return None


@check(Direction.FORWARD, SMALL, NO_BIAS)
def initial_parameters_match_torch(call: Call) -> str | None:
    """A new module has weights of 1 and biases of 0, unless its constructor is told others.

    So has one after ``reset_parameters()``, which models call to start again.
    """
    module = module_if_any(call)
    if module is None or module.is_instance or any("init" in name for name in module.arguments):
        return None
    made = new_module(call)
    own, names = dict(made.named_parameters()), names_of(made, call)

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


@check(None, remark=RemarkKind.SHOWN_EPS)
def uses_its_eps_attribute(call: Call) -> str | None:
    """The eps that is added is that of the attribute named eps."""
    module, measured = module_if_any(call), scope_of(call.target).default_eps
    if module is None or measured is None:
        return None
    attributes = set(own_eps(module.new(call.case.normalized_shape)))
    if len(attributes) != 1:
        return None
    if measured in attributes:
        return _uses_another_eps(call) or _loads_an_eps(call)
    return f"has an attribute eps of {attributes.pop():g}, and adds {measured:g}"


def _uses_another_eps(call: Call) -> str | None:
    usual = usual_of(call)
    if usual is None:
        return None
    made = Made.of(usual).after_calls()
    for holder in made.module.modules():
        for name, value in vars(holder).items():
            if is_eps(name) and isinstance(value, float):
                vars(holder)[name] = _OTHER_EPS
    other = replace(made, call=_with_eps(usual, _OTHER_EPS))
    return "ignores its attribute eps once it is made" if other.fault(*MODES) else None


def _loads_an_eps(call: Call) -> str | None:
    usual = usual_of(call)
    if usual is None or not module_of(call).meaning().takes_eps:
        return None
    made = Made.of(usual)
    made.module.load_state_dict(Made.of(_with_eps(usual, _OTHER_EPS)).module.state_dict())
    return "takes its eps from a state_dict that it loads" if made.fault(EVALUATION[1]) else None


def _with_eps(call: Call, eps: float) -> Call:
    return replace(call, case=replace(call.case, eps=eps))


@check(None, SMALL, NO_BIAS)
def is_right_when_converted(call: Call) -> str | None:
    """A class method such as from_torch() keeps what the torch.nn.LayerNorm has."""
    usual, module = usual_of(call), module_if_any(call)
    if usual is None or module is None or not isinstance(module.source, type):
        return None
    given = usual.parameters
    torchs = nn.LayerNorm(
        usual.case.normalized_shape, usual.case.eps, bool(given), "bias" in given
    ).to(usual.inputs.x)
    with torch.no_grad():
        for role, own in torchs.named_parameters():
            own.copy_(given.get(role, own))
    for name in dir(module.source):
        if not name.startswith("from_"):
            continue
        with suppress(ImplementationError):  # it may convert something else
            converted = guarded(getattr(module.source, name), torchs)()
            if isinstance(converted, nn.Module) and isinstance(converted, module.source):
                made = Made(converted, names_of(converted, usual), usual)
                if fault := made.fault(*MODES):
                    return f"{fault[0]} {fault[1].words} where {name}() made it"
    return None


@check(Direction.FORWARD, LONG_ROWS)
def is_safe_for_concurrent_callers_of_a_module(call: Call) -> str | None:
    """Python threads that share a module each get their own y; a third one has fewer rows."""
    usual = usual_of(call)
    if usual is None or call.case.device != "cpu" or "cpu" not in call.target.devices:
        return None
    module = Made.of(usual).module

    def outputs_of(own: Call) -> Outputs:
        with torch.no_grad():
            return Outputs(y=checked("y", y_of(module, own.inputs.x, own), own.inputs.x))

    fewer = replace(usual.case, shape=(usual.case.rows // 2, *usual.case.shape[1:]))
    callers = (
        usual,
        seeded(usual).on(**usual.parameters),
        replace(usual, case=fewer).on(x=usual.inputs.x[: fewer.rows]),
    )
    for is_training in (False, True):
        module.train(is_training)
        if changed_beside_another_caller(callers, outputs_of):
            return "gives another y while a second Python thread calls the same module"
    return None


@check(None)
def runs_hooks(call: Call) -> str | None:
    """A hook runs in each call, also of a copy: tools that read activations depend on it.

    What a forward hook returns takes the place of y, and what a forward pre-hook returns that of x.
    """
    usual = usual_of(call)
    if usual is None:
        return None
    kinds = ["forward", "forward_pre"]
    kinds += [] if call.target.forward_only else ["full_backward", "full_backward_pre"]
    for scope, kind in product(("", "module_"), kinds):
        made, runs = Made.of(usual), list[object]()
        register = getattr(
            nn.modules.module if scope else made.module, f"register_{scope}{kind}_hook"
        )
        try:
            handle = register(lambda *arguments, runs=runs: runs.append(None))
        except RuntimeError:  # a ScriptModule takes none
            return None
        words = f"{'global ' if scope else ''}{kind.replace('_', ' ')} hooks"
        with handle:
            copies = [made.module]
            with suppress(Exception):  # another check names it
                copies.append(copy.deepcopy(made.module))
            modes = (TRAINING,) if "backward" in kind else MODES
            for module, mode in product(copies, modes):
                runs.clear()
                replace(made, module=module).outputs(mode)
                if not runs:
                    of_copy = "" if module is made.module else " of a deep copy"
                    return f"runs no {words}{of_copy} {mode.words}"
    made = Made.of(usual)
    handle = made.module.register_forward_hook(lambda *given: torch.zeros_like(given[-1]))
    with handle:
        if made.outputs(EVALUATION[1]).y.any():
            return "ignores what a forward hook returns"
    made.module.register_forward_pre_hook(lambda _, given: (torch.zeros_like(given[0]),))
    zero = usual.on(x=torch.zeros_like(usual.inputs.x)).forward()
    if zero.beyond(made.outputs(EVALUATION[1])):
        return "ignores what a forward pre-hook returns"
    return None


@check(Direction.FORWARD)
def returns_itself_from_train(call: Call) -> str | None:
    """train() and eval() return the module: models are written as ``model.eval()(x)``."""
    if module_if_any(call) is None:
        return None
    made = new_module(call)
    for change in (made.train, made.eval):
        if guarded(change)() is not made:
            return f"does not return itself from {change.__name__}()"
    return None


@check(Direction.FORWARD)
def loads_into_its_parameters(call: Call) -> str | None:
    """load_state_dict writes values: the parameters are those that an optimizer already has."""
    usual = usual_of(call)
    if usual is None:
        return None
    made = Made.of(usual)
    before = made.parameters
    half = {
        name: own.bfloat16() if own.is_floating_point() else own
        for name, own in made.module.state_dict().items()
        if isinstance(own, Tensor)
    }
    made.module.load_state_dict(half, strict=False)
    for role, own in made.parameters.items():
        if own is not before[role]:
            return f"makes another {role} in load_state_dict: an optimizer has the old one"
        if own.dtype != usual.inputs.x.dtype:
            return f"takes the dtype of its {role} from the state_dict that it loads"
    return None


@check(Direction.FORWARD)
def stores_its_own_parameters(call: Call) -> str | None:
    """A state_dict holds the values of its parameters, under their names."""
    usual = usual_of(call)
    if usual is None:
        return None
    made = Made.of(usual)
    state = guarded(made.module.state_dict)()
    assert isinstance(state, dict)  # the type that state_dict returns
    for role, name in made.names.items():
        if name in state and not torch.equal(state[name], made.parameters[role]):
            return f"stores another {role} ({name}) in its state_dict than it has"
    initial = guarded(new_module(usual).state_dict)()
    assert isinstance(initial, dict)
    for role, name in made.names.items():
        if name in state and name not in initial:
            return f"leaves its {role} ({name}) out of its state_dict while it is the initial one"
    return None
