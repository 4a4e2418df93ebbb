"""Find the modules of a model that may be LayerNorms, and rule out others without calling them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from inspect import Parameter, getattr_static, signature

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import (
    ParametrizationList,
    is_parametrized,
    type_before_parametrizations,
)

from implementations.replacement.converted import ConvertedLayerNorm
from implementations.targets.signatures import VARIADIC, inputs_besides_x

_DIFFERENCES = {
    "RMSNorm": "it does not subtract the mean",
    "BatchNorm": "it normalises over the batch",
    "InstanceNorm": "it normalises each channel over its positions",
    "GroupNorm": "it normalises over groups of channels and their positions",
}
# these decide how a module is called and copied; the converted class would inherit overrides
_OVERRIDES = (
    "__call__",
    "_call_impl",
    "__getattribute__",
    "__deepcopy__",
    "__reduce__",
    "__reduce_ex__",
)
_CALL_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def norm_modules(model: nn.Module) -> list[tuple[nn.Module, list[str]]]:
    """Return every ``torch.nn.LayerNorm``, and every module of a class with "norm" in its name.

    Each comes once, with all its qualified names, in the order of ``named_modules``. Modules that
    compute a parameter, such as the parametrization of ``weight_norm``, are left out.
    """
    parametrizations = {
        id(inner)
        for module in model.modules()
        if isinstance(module, ParametrizationList)
        for inner in module.modules()
    }
    found: dict[int, tuple[nn.Module, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) not in parametrizations and _is_norm(module):
            found.setdefault(id(module), (module, []))[1].append(name)
    return list(found.values())


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) or "norm" in _kind(module).__name__.lower()


def _kind(module: nn.Module) -> type[nn.Module]:
    """Return the class that the module was written as."""
    kind: type[nn.Module] = type_before_parametrizations(module)
    return kind.original if issubclass(kind, ConvertedLayerNorm) else kind


def class_name(module: nn.Module) -> str | None:
    """Return the import path of the class; None for ``torch.nn.LayerNorm`` and its drop-in."""
    kind = _kind(module)
    if kind.__name__ == "LayerNorm" and kind.__module__ in {
        nn.LayerNorm.__module__,
        "implementations.module",
    }:
        return None
    if getattr(torch.nn, kind.__name__, None) is kind:
        return f"torch.nn.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def what_it_is(name: str) -> str:
    """Describe a normalisation that :mod:`implementations.targets.recognise` has named."""
    for norm, difference in _DIFFERENCES.items():
        if name == norm or (name.startswith(f"{norm} with ") and "group" in name):
            return f"is {'an' if name[0] in 'RI' else 'a'} {name}: {difference}"
    return f"is not a plain LayerNorm; nearest: {name}"


def reason_to_leave(module: nn.Module) -> str | None:
    """Return why a module of another class than ``torch.nn.LayerNorm`` cannot be changed.

    The module is not called. None means that only a call can decide.
    """
    kind = _kind(module)
    if kind.__module__.partition(".")[0] == "torch":
        return _of_torch(kind)
    if is_parametrized(module):
        return "is parametrized; remove the parametrization, replace it, and parametrize it again"
    for name in _OVERRIDES:
        if getattr_static(kind, name, None) is not getattr_static(nn.Module, name, None):
            return f"its class has its own {name}, which would still be used"
    return _reason_of_forward(module) or _reason_of_parts(module)


def _of_torch(kind: type[nn.Module]) -> str:
    for name in _DIFFERENCES:
        if name in kind.__name__:
            return what_it_is(name)
    return f"is {kind.__module__}.{kind.__qualname__}, which is not a LayerNorm in floating point"


def argument_name(module: nn.Module) -> str:
    """Return the name of x in the forward of a module."""
    return next(iter(signature(module.forward).parameters))


def _reason_of_forward(module: nn.Module) -> str | None:
    """Return why the forward is not a function of one tensor; None if it is."""
    try:
        taken = list(signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return "its forward has no signature that could be read"
    if not taken or taken[0].kind in {*VARIADIC, Parameter.KEYWORD_ONLY}:
        return f"its forward takes no x: {signature(module.forward)}"
    if reason := inputs_besides_x(taken):
        return reason
    if len(taken) > 1:
        names = ", ".join(
            str(parameter).partition(":")[0].partition("=")[0] for parameter in taken[1:]
        )
        return f"its forward also takes {names}, with which it may do more"
    return None


def _reason_of_parts(module: nn.Module) -> str | None:
    """Return why parameters, buffers or children are not a LayerNorm's; None if they may be."""
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    if any(is_lazy(tensor) for tensor in tensors.values()):
        return "its parameters have no shape yet; call the model once first"
    if len(tensors) > 2:  # decided here, since an experiment would copy all of them
        *most, last = tensors if len(tensors) < 6 else [*list(tensors)[:4], "..."]
        return f"has more than a weight and a bias: {', '.join([*most, last])}"
    if strange := [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        return f"{strange[0]} is of {tensors[strange[0]].dtype}, not of a floating dtype"
    for name, child in module.named_modules():
        if child is module:
            continue
        if any(getattr(child, hooks) for hooks in _CALL_HOOKS):
            return f"{name} inside it has hooks, which would no longer run"
        if not _is_norm(child) and not any(True for _ in child.parameters()):
            return f"{name} inside it ({type(child).__name__}) would no longer be called"
    return None


def is_hooks(name: str, value: object) -> bool:
    """Whether an attribute of a module holds its hooks, of calls or of the ``state_dict``."""
    return "hook" in name and isinstance(value, dict)


def fingerprint(module: nn.Module) -> Hashable:
    """Return a key that is equal for modules which compute the same function of x, weight, bias.

    It holds classes, names, shapes and all plain attributes. Other attributes count by identity,
    so a fingerprint is valid only while the modules exist and are not changed.
    """
    return tuple(_fingerprints(module))


def _fingerprints(module: nn.Module) -> Iterator[Hashable]:
    for name, inner in module.named_modules():
        flags = tuple(
            (key, _identity(value))
            for key, value in sorted(vars(inner).items())
            if key not in {"_parameters", "_buffers", "_modules", "training"}
            and not is_hooks(key, value)
        )
        tensors = tuple(
            (key, None if value is None else (value.shape, value.dtype, value.device))
            for key, value in [*inner._parameters.items(), *inner._buffers.items()]
        )
        yield name, type(inner), flags, tuple(inner._buffers), tensors


def _identity(value: object) -> Hashable:
    if isinstance(value, tuple | list):
        return type(value), tuple(_identity(element) for element in value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(_identity(element) for element in value)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return type(value), value
    return type(value), id(value)
