"""Contract checks of modules: however one is obtained, it is the LayerNorm of its own parameters.

The cases call a module with weight and bias in place of its own. Here its own are read, written,
loaded, copied and trained, as a model does it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from harness.cases.inputs import make_inputs
from harness.run.call import ContractViolationError, ImplementationError, guarded
from harness.verify.checks.calls import Call, repeat
from harness.verify.checks.contract_checks import (
    HEADS,
    NO_BIAS,
    ONE_ROW,
    PATHS,
    SMALL,
    TRANSPOSED,
    TWO_NORMALIZED,
    ContractCheck,
    check,
)
from harness.verify.checks.made import (
    EVALUATION,
    MODES,
    TRAINING,
    Made,
    Mode,
    affine_of,
    module_of,
    new_module,
    pickled,
    usual_of,
    y_of,
)
from harness.verify.code import code_of
from harness.verify.in_scope import scope_of, within_scope
from implementations.targets.module_parameters import (
    assign,
)

_PRUNED = 20  # elements: fewer have no middle between their ends
_CALLED = "it was called before"
_MANY_CALLS = 1_100
_MOST_S = 0.3  # for them


# --- ways of obtaining a module ------------------------------------------------------------------


def _way(
    where: str, *modes: Mode, is_called: bool = True
) -> Callable[[Callable[[Made], Made]], ContractCheck]:
    """Declare a way of obtaining a module from a new one, which is judged in the modes.

    Args:
        where: what the module is; follows "where ".
        modes: all if none is given.
        is_called: whether the new module is called first, in every mode.
    """

    def declare(obtain: Callable[[Made], Made]) -> ContractCheck:
        def find(call: Call) -> Iterator[str]:
            usual = usual_of(call)
            made = Made.of(usual)
            obtained: Any = guarded(obtain, made.after_calls() if is_called else made)()
            if (fault := obtained.fault(*(modes or MODES))) is None:
                return
            text, mode = fault
            in_both = obtained.fault(TRAINING) and obtained.fault(EVALUATION[0])
            text = f"{text} {'in every mode' if in_both else mode.words}"
            # the plainest way that shows it
            if Made.of(usual).fault(mode):
                yield text
            is_of_later_calls = Made.of(usual).after_calls().fault(mode) is not None
            yield f"{text} where {_CALLED if is_of_later_calls else where}"

        settings = SMALL, ONE_ROW, NO_BIAS, TWO_NORMALIZED
        return check(None, *settings, raises_where=where)(update_wrapper(find, obtain))

    return declare


def _changed(made: Made) -> Made:
    """Return the module with other values, written in place as an optimizer does."""
    other = made.another()
    made.write(other.call)
    return replace(made, call=other.call)


@_way("it is a deep copy")
def is_right_as_a_deep_copy(made: Made) -> Made:
    """copy.deepcopy copies all that matters: the original may change."""
    return _copied_as_subclass(made, copy.deepcopy)


def _copied_as_subclass(made: Made, make_copy: Callable[[nn.Module], nn.Module]) -> Made:
    if made.is_script:  # torch copies the graph of its parameters
        return made
    made.module.__class__ = kind = type("Subclass", (type(made.module),), {})
    copied = make_copy(made.module)
    if type(copied) is not kind:
        raise ContractViolationError("copies a module of a subclass as one of its own class")
    made.write(made.another().call)
    return replace(made, module=copied)


@_way("it was copied and pickled")
def is_right_after_it_was_copied(made: Made) -> Made:
    """A copy takes nothing from its original."""
    for make_copy in (copy.deepcopy, pickled):
        with suppress(Exception):  # the checks of copies say what raises
            make_copy(made.module)
    return made


@_way("it is a shallow copy")
def is_right_as_a_shallow_copy(made: Made) -> Made:
    """copy.copy, which shares the parameters."""
    return _copied(made, copy.copy)


@_way("a model in which it shares its parameters is a deep copy")
def shares_parameters_as_a_deep_copy(made: Made) -> Made:
    """Layers that share a parameter share it in a copy of their model, too."""
    if made.is_script or _has_aliases(made):
        return made
    tied = Made.of(made.call)
    for role, parameter in made.parameters.items():
        assign(tied.module, tied.names[role], parameter)
    copied = copy.deepcopy(nn.ModuleList([made.module, tied.module]))
    one, other = (replace(made, module=own) for own in copied)
    for role, parameter in one.parameters.items():
        if other.parameters[role] is not parameter:
            raise ContractViolationError(f"no longer shares its {role}")
    return one


@_way("its forward is called, and the module before on an x of more axes")
def is_right_where_forward_is_called(made: Made) -> Made:
    """A call of forward itself depends on no call of the module."""
    model = nn.ModuleDict({"own": made.module})
    model.forward = made.module.forward
    with suppress(ImplementationError):  # it may take no more axes
        guarded(made.module, made.call.inputs.x[None])()
    return replace(made, module=model, names={r: f"own.{n}" for r, n in made.names.items()})


@_way("it is compiled by torch.jit.script", is_called=False)
def is_right_where_it_is_scripted(made: Made) -> Made:
    """A branch for TorchScript is right; it raises for most Python code."""
    if "is_scripting" in code_of(made.call.target).names:
        with suppress(Exception), catch_warnings(action="ignore"):  # torch.jit is deprecated
            return replace(made, module=torch.jit.script(made.module))
    return made


@_way("it is called as a module", TRAINING, is_called=False)
def is_right_as_a_module(made: Made) -> Made:
    """A module computes the LayerNorm of its own weight, bias and eps."""
    return made


@_way("the module is in evaluation mode", *EVALUATION, is_called=False)
def is_right_in_evaluation_mode(made: Made) -> Made:
    """module.eval() changes no result: a LayerNorm has no mode."""
    return made


@check(None, *PATHS, TRANSPOSED, HEADS, raises_where="gradients are recorded in evaluation mode")
def is_as_accurate_in_evaluation_mode(call: Call) -> Iterator[str]:
    """y and the gradients are those of training mode, for x of every layout, also far from 0."""
    function = module_of(call).in_evaluation
    target = within_scope(replace(call.target, function=function), scope_of(call.target))
    for distribution, where in (("normal", ""), ("offset_1e3", " where rows are far from 0")):
        own = call.of_case(distribution=distribution)
        own = own.on(x=make_inputs(own.case).x)
        for output in own.differing(own.outputs(), replace(own, target=target).outputs()):
            yield f"gives a wrong {output} in evaluation mode{where}"


@_way("its weight was set to None")
def is_right_with_its_weight_removed(made: Made) -> Made:
    """The bias stays; of a module that may be made without a weight."""
    return _without(made, "weight")


@_way("its bias was set to None")
def is_right_with_its_bias_removed(made: Made) -> Made:
    """The same of the weight."""
    return _without(made, "bias")


def _without(made: Made, role: str) -> Made:
    is_offered = role in module_of(made.call).switches.values()
    if role not in made.names or not is_offered or not _has_plain_names(made):
        return made
    names = {own: name for own, name in made.names.items() if own != role}
    setattr(made.module, made.names[role], None)
    left = made.call.on(**{role: None}).of_case(affine=affine_of(names))
    try:
        y_of(made.module, left.inputs.x, left)
    except ImplementationError:  # it may need what it was made with
        return Made.of(made.call)
    return replace(made, names=names, call=left)


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
    return _changed_through_data(made)


@_way("values were written to its attributes weight and bias")
def is_right_after_changes_of_attributes(made: Made) -> Made:
    """The same through module.weight, which a module may also have under another name."""
    other, own = made.another(), made.parameters
    attributes = {role: getattr(made.module, role, own[role]) for role in own}
    if any(getattr(attributes[role], "shape", None) != own[role].shape for role in own):
        return made  # it means something else by the name
    with torch.no_grad():
        for role, attribute in attributes.items():
            guarded(attribute.copy_, other.parameters[role])()
    return replace(made, call=other.call)


@_way("its parameters were changed through the tensors of its state_dict()")
def is_right_after_changes_of_the_state(made: Made) -> Made:
    """The same through state_dict(), as averages of a model are written."""
    other, state = made.another(), made.module.state_dict()
    if any(name not in state for name in made.names.values()):
        return made
    for role, name in made.names.items():
        state[name].copy_(other.parameters[role].detach())
    return replace(made, call=other.call)


def _changed_through_data(made: Made) -> Made:
    other = made.another()
    for role, parameter in made.parameters.items():
        parameter.data.copy_(other.parameters[role])
    return replace(made, call=other.call)


@_way("its parameters were given other memory through .data")
def is_right_after_replacements_of_data(made: Made) -> Made:
    """The same of a parameter whose memory is another's, as of a flattened or offloaded model."""
    other = made.another()
    for role, parameter in made.parameters.items():
        parameter.data = other.parameters[role].detach().clone()
    return replace(made, call=other.call)


@_way("some elements of its weight were set to 0 in place")
def is_right_when_pruned(made: Made) -> Made:
    """The same of a change in the middle of the weight, where both ends stay."""
    return _changed_in_the_middle(made, torch.zeros_like)


@_way("elements in the middle of its weight were exchanged in place")
def is_right_when_permuted(made: Made) -> Made:
    """The same where its sums and norms stay, too."""
    return _changed_in_the_middle(made, partial(torch.flip, dims=[0]))


def _changed_in_the_middle(made: Made, change: Callable[[Tensor], Tensor]) -> Made:
    weight = made.parameters.get("weight")
    if weight is None or weight.numel() < _PRUNED:
        return made
    other = made.call.parameters["weight"].clone()
    middle = slice(other.numel() // 2, other.numel() // 2 + 2)
    other.view(-1)[middle] = change(other.view(-1)[middle])
    with torch.no_grad():
        guarded(weight.view(-1)[middle].copy_, other.view(-1)[middle])()
    return replace(made, call=made.call.on(weight=other))


def _has_aliases(made: Made) -> bool:
    """Whether a parameter has several names: torch then replaces it under one of them."""
    return len([*made.module.named_parameters(remove_duplicate=False)]) > len(made.names)


def _has_plain_names(made: Made) -> bool:
    """Whether torch can compute its weight and bias before a call, and store others."""
    is_nested = any("." in name for name in made.names.values())
    return not (made.is_script or is_nested or _has_aliases(made))


@_way("its parameters are parametrised", is_called=False)
def is_right_when_parametrised(made: Made) -> Made:
    """Its weight and bias may be computed by torch.nn.utils.parametrize."""
    if not _has_plain_names(made):
        return made
    for name in made.names.values():
        parametrize.register_parametrization(made.module, name, nn.Identity())
    originals = {role: f"parametrizations.{name}.original" for role, name in made.names.items()}
    return replace(made, names=originals)


@_way("its parameters are pruned by torch.nn.utils.prune", EVALUATION[0], is_called=False)
def is_right_when_pruned_by_torch(made: Made) -> Made:
    """Its weight and bias may be plain tensors that a hook computes before a call."""
    if not _has_plain_names(made):
        return made
    left, made = {}, made.freeze()
    for role, parameter in made.parameters.items():
        mask = torch.arange(parameter.numel()).view_as(parameter) % 2
        prune.custom_from_mask(made.module, made.names[role], mask)
        kept = made.call.parameters[role]  # of another shape where channels come first
        left[role] = kept * mask.view_as(kept)
    names = {role: f"{name}_orig" for role, name in made.names.items()}
    return replace(made, names=names, call=made.call.on(**left))


@_way("its first call was under torch.autocast", is_called=False)
def is_right_after_autocast(made: Made) -> Made:
    """A call under autocast leaves nothing in half precision behind."""
    x = made.call.inputs.x
    half = torch.float16 if x.dtype is torch.float16 else torch.bfloat16
    for training in (True, False):
        made.module.train(training)
        with torch.no_grad(), torch.autocast(x.device.type, dtype=half):
            y_of(made.module, x, made.call)
    return made


@_way("its first call was in torch.inference_mode", is_called=False)
def is_right_after_inference_mode(made: Made) -> Made:
    """A first call keeps no tensor that autograd cannot use."""
    with suppress(ContractViolationError):
        made.outputs(EVALUATION[-1])
    return made


@_way("a model that holds it is loaded from a state_dict")
def is_right_with_a_loaded_state(made: Made) -> Made:
    """load_state_dict replaces all that matters, and two modules of a model have keys each."""
    other = made.another()
    model = nn.ModuleList([other.module, Made.of(made.call).module])
    own = nn.ModuleList([made.module, Made.of(made.call).module])
    for keep_vars in (True, False):
        own.load_state_dict(model.state_dict(keep_vars=keep_vars))
    state = {name: kept.bfloat16() for name, kept in model.state_dict().items()}
    own.load_state_dict({**state})
    if any(kept.dtype != torch.bfloat16 for kept in state.values()):
        raise ContractViolationError("changes the tensors of a state_dict that it loads")
    own.load_state_dict({**model.state_dict()})  # without metadata, as safetensors stores it
    other.write(made.call)  # what was loaded is a copy
    return replace(made, call=other.call)


@_way("it is loaded from the state_dict of a torch.nn.LayerNorm")
def is_right_with_the_state_of_torch(made: Made) -> Made:
    """A module whose parameters have torch's names takes the checkpoints of torch's LayerNorm."""
    other = made.another()
    state = Made.of_torch(other.call).module.state_dict()
    is_renamed = any(role != name for role, name in made.names.items())
    if is_renamed or {*state} != {*made.module.state_dict()}:
        return made
    made.module.load_state_dict(state)
    return replace(made, call=other.call)


@_way("one parameter alone is loaded, with strict=False")
def is_right_with_a_partial_state(made: Made) -> Made:
    """What is not loaded stays as it was."""
    other = made.another()
    loaded = {}
    for role, name in made.names.items():
        kept = {own: held.detach().clone() for own, held in made.parameters.items() if own != role}
        if name in other.module.state_dict():
            state = {name: other.module.state_dict()[name]}
            made.module.load_state_dict(state, strict=False)
            made.module.load_state_dict({}, strict=False)
            loaded[role] = other.call.parameters[role]
        for own, held in kept.items():
            if not torch.equal(made.parameters[own], held):
                raise ContractViolationError(f"changes its {own} where its {role} is loaded")
    return replace(made, call=made.call.on(**loaded))


@_way("it is loaded with assign=True")
def is_right_with_assigned_parameters(made: Made) -> Made:
    """A state_dict may replace its parameters, and no copy of them is made."""
    if _has_aliases(made):
        return made
    other = made.another()
    made.module.load_state_dict(other.module.state_dict(), assign=True)
    for role, parameter in made.parameters.items():
        if parameter.data_ptr() != other.parameters[role].data_ptr():
            raise ContractViolationError(f"copies a {role} that is loaded with assign=True")
    return replace(made, call=other.call).freeze(is_frozen=False)


@_way("it is made on the meta device and loaded with assign=True", is_called=False)
def is_right_when_assigned(made: Made) -> Made:
    """The same where a state_dict replaces the parameters, as fast loaders do it."""
    if module_of(made.call).is_instance or _has_aliases(made):
        return made
    try:
        with torch.device("meta"):
            module = new_module(made.call)
    except ImplementationError:  # it may write values, which the meta device has not
        return made
    module.load_state_dict(made.module.state_dict(), assign=True)
    return replace(made, module=module).freeze(is_frozen=False)


@_way("it is made without memory (on the meta device) and loaded", is_called=False)
def is_right_when_loaded_from_the_meta_device(made: Made) -> Made:
    """Beside its parameters, what it keeps is in its state_dict, or made by reset_parameters."""
    if "device" not in module_of(made.call).arguments:
        return made
    try:
        module = new_module(made.call, device=torch.device("meta"))
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


@_way("it was called a thousand times before", TRAINING)
def is_right_after_many_calls(made: Made) -> Made:
    """A module counts no calls."""
    made.module.train()
    repeat(partial(y_of, made.module, made.call.inputs.x, made.call), _MANY_CALLS, _MOST_S)
    return made


@_way("it shares the parameters of another module")
def is_right_with_shared_parameters(made: Made) -> Made:
    """The parameters are those that its attributes hold now."""
    other = made.another()
    roles = {id(parameter): role for role, parameter in made.parameters.items()}
    for name, old in [*made.module.named_parameters(remove_duplicate=False)]:
        assign(made.module, name, other.parameters[roles[id(old)]])
    return replace(made, call=other.call)


@_way("the list that it was given as normalized_shape has changed", is_called=False)
def is_independent_of_its_arguments(made: Made) -> Made:
    """What the constructor was given may change: a model reads its sizes from lists."""
    if "normalized_shape" not in module_of(made.call).arguments:
        return made
    shape = [*made.call.case.normalized_shape]
    try:
        given = Made.of(made.call, normalized_shape=shape)
    except ImplementationError:  # it may take no list
        return made
    shape[-1] += 1
    return given


@_way("another module of its class was changed")
def is_independent_of_other_modules(made: Made) -> Made:
    """Two modules have parameters of their own, and a model with both has two."""
    if made.another().module == made.module:
        raise ContractViolationError(
            "equals another module, so that modules() of a model skips one"
        )
    return made


@_way("it is pickled")
def is_right_when_pickled(made: Made) -> Made:
    """The same of pickle, which torch.save uses."""
    return _copied_as_subclass(made, pickled)


@_way("it had another dtype before")
def is_right_after_another_dtype(made: Made) -> Made:
    """.to(dtype) leaves nothing behind in the first dtype."""
    dtype = made.call.inputs.x.dtype
    other = torch.float32 if dtype is torch.float64 else torch.float64
    made.module.to(other)
    wide = [tensor.to(other) for tensor in made.call.inputs.tensors]
    replace(made, call=made.call.at(wide)).after_calls()
    made.module.to(dtype)
    return _changed(made)


@_way("it was in half precision before")
def is_right_after_half_precision(made: Made) -> Made:
    """.bfloat16() rounds parameters, which are written anew here, and nothing else for good."""
    made.module.to(torch.bfloat16)
    made.module.to(made.call.inputs.x.dtype)
    return _changed(made)


def _copied(made: Made, make_copy: Callable[[nn.Module], nn.Module] = copy.deepcopy) -> Made:
    """Return a copy of the module, or the module itself if TorchScript has compiled it."""
    return made if made.is_script else replace(made, module=make_copy(made.module))


@_way("its parameters are frozen")
def is_right_with_frozen_parameters(made: Made) -> Made:
    """x has its gradient, and the parameters stay frozen."""
    if made.is_script:
        return made.freeze()
    guarded(made.module.requires_grad_, False)()
    return replace(made, frozen=tuple(made.names))


@_way("its weight is frozen")
def is_right_with_a_frozen_weight(made: Made) -> Made:
    """The bias has its gradient."""
    return made.freeze("weight")


@_way("its parameters are frozen and were changed through .data")
def is_right_after_changes_of_frozen_parameters(made: Made) -> Made:
    """The same after a change, as of a teacher that follows its student."""
    return _changed_through_data(made.freeze().after_calls())


@_way("its parameters were frozen before", is_called=False)
def is_right_with_unfrozen_parameters(made: Made) -> Made:
    """The parameters have gradients again."""
    return made.freeze().after_calls().freeze(is_frozen=False)


@_way("x needs no gradient")
def is_right_with_a_frozen_x(made: Made) -> Made:
    """The parameters have their gradients in the first layer of a model too."""
    return replace(made, frozen=("x",))
