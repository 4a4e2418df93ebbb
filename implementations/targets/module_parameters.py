"""What a module holds: its weight and bias, its normalized shape and its eps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from implementations.contract import UnsupportedError
from implementations.targets.construct import is_eps

__all__ = ["ParameterNames", "own_eps", "parameter_names", "run_module", "shape_of"]

# what documents and libraries call the scale and the shift
_WEIGHTS = ("weight", "gain", "gamma", "scale", "g", "w", "a_2", "a", "alpha", "ln_weight")
_BIASES = ("bias", "beta", "shift", "b", "b_2", "offset", "ln_bias")


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """Names of the parameters that scale and shift; None where the module has none."""

    weight: str | None
    bias: str | None
    others: tuple[str, ...] = ()
    """Parameters whose role is not known."""


def parameter_names(module: nn.Module, shape: tuple[int, ...] | None) -> ParameterNames:
    """Tell weight and bias of a module by their names, in a module inside it too.

    A single parameter of another name that fits is the weight; of two, the one that starts at 1
    is the weight and the one that starts at 0 the bias.

    Args:
        module: of any normalisation class.
        shape: its normalized shape, if it is known.

    Raises:
        UnsupportedError: its parameters are made when it is first called.
    """
    own = dict(module.named_parameters())
    if any(isinstance(each, UninitializedParameter) for each in own.values()):
        raise UnsupportedError("its parameters have no shape before it is called")
    fitting = {
        name: each for name, each in own.items() if shape is None or each.numel() == prod(shape)
    }
    weight, bias = (_by_name(fitting, names) for names in (_WEIGHTS, _BIASES))
    rest = [name for name in fitting if name not in {weight, bias}]
    if weight is None and len(rest) == 1 and not _is(own[rest[0]], 0.0):
        weight, rest = rest[0], []
    elif weight is None or bias is None:
        ones = [name for name in rest if _is(own[name], 1.0)]
        zeros = [name for name in rest if _is(own[name], 0.0)]
        weight = ones[0] if weight is None and len(ones) == 1 else weight
        bias = zeros[0] if bias is None and len(zeros) == 1 else bias
    others = tuple(name for name in own if name not in {weight, bias})
    return ParameterNames(weight, bias, others)


def run_module(
    module: nn.Module,
    affine: ParameterNames,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Run ``module`` on ``x`` with ``weight`` and ``bias`` in the place of its own.

    Raises:
        UnsupportedError: it has a weight or bias that is not given, or has none that is.
        ValueError: the one given does not have as many elements as its own.
    """
    own, given = dict(module.named_parameters()), {}
    for what, name, parameter in (("weight", affine.weight, weight), ("bias", affine.bias, bias)):
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
    y: Tensor = functional_call(module, given, (x,))
    return y


def own_eps(module: nn.Module) -> list[float]:
    """Return what a module, and those inside it, keep under the name of an eps."""
    return [
        float(value)
        for each in module.modules()
        for name, value in vars(each).items()
        if is_eps(name) and isinstance(value, int | float)
    ]


def shape_of(module: nn.Module) -> tuple[int, ...] | None:
    """Return the normalized shape of an instance; None if it takes any."""
    for name in ("normalized_shape", "dim", "hidden_size"):
        found = getattr(module, name, None)
        if isinstance(found, int) and not isinstance(found, bool) and found > 0:
            return (found,) if _fits(module, found) else None
        if isinstance(found, tuple | list) and found and all(isinstance(e, int) for e in found):
            return tuple(found)
    affine = parameter_names(module, None)
    own = dict(module.named_parameters())
    for parameter in (affine.weight, affine.bias):
        if parameter is not None:
            sizes = [each for each in own[parameter].shape if each != 1]
            return tuple(sizes) if len(sizes) == 1 else tuple(own[parameter].shape)
    inner = [each for each in module.children() if isinstance(each, nn.LayerNorm)]
    return tuple(inner[0].normalized_shape) if len(inner) == 1 else None


def _fits(module: nn.Module, size: int) -> bool:
    """Whether the parameters of a module have that many elements: ``dim`` may be an axis."""
    return any(each.numel() == size for each in module.parameters())


def _by_name(own: Mapping[str, Tensor], names: tuple[str, ...]) -> str | None:
    for name in names:
        found = [each for each in own if each.rpartition(".")[2].lower() == name]
        if len(found) == 1:
            return found[0]
    return None


def _is(parameter: Tensor, value: float) -> bool:
    with torch.no_grad():
        return bool((parameter == value).all())
