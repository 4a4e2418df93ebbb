"""Read the weight, bias, normalized shape and eps that a module holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, ValuesView
from dataclasses import dataclass
from functools import partial, reduce
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from implementations.contract import Param, UnsupportedError
from implementations.targets.attempt import Raised, attempt
from implementations.targets.signatures import is_eps

# names of weight and bias in papers, documentation and libraries
_WEIGHTS = ("weight", "gain", "gamma", "scale", "g", "w", "a_2", "a", "alpha", "ln_weight")
_BIASES = ("bias", "beta", "shift", "b", "b_2", "offset", "ln_bias")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """Names of the parameters that are weight and bias; None if the module has none."""

    weight: str | None
    bias: str | None
    others: tuple[str, ...] = ()
    """Parameters of unknown role."""


def parameter_names(module: nn.Module, shape: tuple[int, ...] | None) -> ParameterNames:
    """Find the weight and bias of a module by name, also in its inner modules.

    Without a known name, a single parameter that is not all zeros is the weight. Of several, the
    only one that is all ones is the weight, and the only one that is all zeros is the bias.

    Args:
        module: an instance of any normalisation class.
        shape: its normalized shape, if known; no parameter of another size is weight or bias.

    Raises:
        UnsupportedError: its parameters are created by the first call.
    """
    own = dict(module.named_parameters())
    if is_uninitialized(module):
        raise UnsupportedError("its parameters have no shape before it is called")
    fitting = [
        name for name, parameter in own.items() if shape is None or parameter.numel() == prod(shape)
    ]
    weight, bias = (_known_name(fitting, names) for names in (_WEIGHTS, _BIASES))
    rest = [name for name in fitting if name not in {weight, bias}]
    if weight is None and len(rest) == 1 and not _is_all(own[rest[0]], 0.0):
        weight = rest[0]
    elif weight is None or bias is None:
        ones = [name for name in rest if _is_all(own[name], 1.0)]
        zeros = [name for name in rest if _is_all(own[name], 0.0)]
        weight = ones[0] if weight is None and len(ones) == 1 else weight
        bias = zeros[0] if bias is None and len(zeros) == 1 else bias
    others = tuple(name for name in own if name not in {weight, bias})
    return ParameterNames(weight, bias, others)


def run_module(
    module: nn.Module,
    names: ParameterNames,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Param,
    bias: Param,
) -> Tensor:
    """Run ``module`` on ``x`` with ``weight`` and ``bias`` in place of its own.

    Raises:
        UnsupportedError: the module has a weight or bias and None was given, or the reverse.
        ValueError: the shape of weight or bias is not ``shape``, or its size is not the module's.
    """
    own, given = dict(module.named_parameters()), {}
    for what, name, parameter in (("weight", names.weight, weight), ("bias", names.bias, bias)):
        if parameter is None and name is not None:
            raise UnsupportedError(f"the module always has its {what} ({name})")
        if parameter is None:
            continue
        if name is None:
            raise UnsupportedError(f"the module has no {what}")
        if tuple(parameter.shape) != shape or parameter.numel() != own[name].numel():
            raise ValueError(
                f"{what} has shape {list(parameter.shape)}, expected {list(shape)}; the module's "
                f"{name} has shape {list(own[name].shape)}"
            )
        same = parameter.shape == own[name].shape
        given[name] = parameter if same else parameter.reshape(own[name].shape)
    if isinstance(module, torch.jit.ScriptModule):  # functional_call refuses one
        return _run_script(module, given, x)
    y: Tensor = functional_call(module, given, (x,))
    return y


def _run_script(module: nn.Module, given: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Run a ScriptModule, whose attributes accept any tensor, with other parameters."""
    own = dict(module.named_parameters())
    try:
        for name, tensor in given.items():
            assign(module, name, tensor)
        y: Tensor = module(x)
        return y
    finally:
        for name in given:
            assign(module, name, own[name])


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Let a module use another tensor as its parameter ``name``, as in "norm.weight"."""
    *path, attribute = name.split(".")
    setattr(reduce(getattr, path, module), attribute, tensor)


def is_uninitialized(module: nn.Module) -> bool:
    """Whether a module, as torch.nn.LazyLinear, has parameters without a shape."""
    return any(isinstance(own, UninitializedParameter) for own in module.parameters())


def call_once(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Call a module on zeros with as many axes as it accepts, if it accepts any."""
    with torch.no_grad():
        for size in ((2, *shape), (2, 3, *shape), (2, *shape, 3, 5)):
            if not isinstance(attempt(partial(module, torch.zeros(size))), Raised):
                return


def unregistered(module: nn.Module, shape: tuple[int, ...]) -> list[str]:
    """Say what a module does with tensors that a reader would take for parameters.

    These are parameters, and leaves that require a gradient, outside of ``parameters()``; tensors
    of the normalized shape that are named as a weight or bias; and buffers of that shape that are
    named as a weight, or are all that the module stores. Other buffers are left out: some modules
    keep zeros where a kernel needs a bias.
    """
    own, found = {id(parameter) for parameter in module.parameters()}, []
    for inner in module.modules():
        for name, value in vars(inner).items():
            for tensor in _tensors(value):
                is_named = name.lower() in {*_WEIGHTS, *_BIASES} and tensor.numel() == prod(shape)
                trains = tensor.requires_grad and tensor.is_leaf
                if (is_named or trains) and id(tensor) not in own:
                    found.append(f"does not register {name}")
        for name, buffer in inner.named_buffers(recurse=False):
            is_stored = not own and name not in inner._non_persistent_buffers_set
            if buffer.numel() == prod(shape) and (is_stored or name.lower() in _WEIGHTS):
                found.append(f"makes a buffer of {name}")
    return found


def _tensors(value: object) -> list[Tensor]:
    """Return the tensors in an attribute that Python keeps, or in a list or dict there."""
    values = value.values() if type(value) is dict else value
    values = values if isinstance(values, list | tuple | ValuesView) else [values]
    return [tensor for tensor in values if isinstance(tensor, Tensor)]


def own_eps(module: nn.Module) -> list[float]:
    """Return the values of the eps attributes of a module and its inner modules."""
    return [
        float(value)
        for inner in module.modules()
        for name, value in vars(inner).items()
        if is_eps(name) and isinstance(value, int | float)
    ]


def known_eps(module: nn.Module) -> tuple[float, ...]:
    """Return values that the module may use as eps: its eps attributes, and the machine epsilon of
    each dtype."""
    return (*own_eps(module), *(torch.finfo(dtype).eps for dtype in _DTYPES))


def shape_of(module: nn.Module) -> tuple[int, ...] | None:
    """Return the normalized shape of an instance; None if it accepts any."""
    if is_uninitialized(module):
        return None
    for name in ("normalized_shape", "dim", "hidden_size"):
        size = getattr(module, name, None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            # ``dim`` may also be the index of an axis
            fits = any(parameter.numel() == size for parameter in module.parameters())
            return (size,) if fits else None
        if isinstance(size, tuple | list) and size and all(isinstance(axis, int) for axis in size):
            return tuple(size)
    names = parameter_names(module, None)
    own = dict(module.named_parameters())
    for parameter in (names.weight, names.bias):
        if parameter is not None:
            sizes = [size for size in own[parameter].shape if size != 1]
            return tuple(sizes) if len(sizes) == 1 else tuple(own[parameter].shape)
    inner = [child for child in module.children() if isinstance(child, nn.LayerNorm)]
    return tuple(inner[0].normalized_shape) if len(inner) == 1 else None


def _known_name(own: Iterable[str], names: tuple[str, ...]) -> str | None:
    """Return the parameter whose name, without its module's path, is one of ``names``.

    Earlier names have precedence; a name that several parameters have is skipped.
    """
    for name in names:
        found = [path for path in own if path.rpartition(".")[2].lower() == name]
        if len(found) == 1:
            return found[0]
    return None


def _is_all(parameter: Tensor, value: float) -> bool:
    """Whether every element has the value; False on the meta device, which has no values."""
    with torch.no_grad():
        return not parameter.is_meta and bool((parameter == value).all())
