"""A ``torch.nn.Module`` class behind the signature of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from implementations.contract import UnsupportedError

__all__ = ["ModuleFunction"]

# what documents and libraries call the scale and the shift
_WEIGHTS = ("weight", "gain", "gamma", "scale", "g", "a_2")
_BIASES = ("bias", "beta", "shift", "b", "b_2")

_KEPT = 8  # ours: modules that live on; some are as large as their inputs


class ModuleFunction:
    """A module class whose constructor takes ``normalized_shape`` (or a size), as a function.

    As in a model, a module lives on: there is one for each ``normalized_shape`` and ``eps`` of the
    latest calls. The weight and bias of a call take the place of its own.
    """

    def __init__(self, build: Callable[..., nn.Module], *, training: bool = True) -> None:
        self._build, self._training = build, training
        self._made: dict[tuple[object, ...], nn.Module] = {}
        self._alone = RLock()
        self.__doc__ = build.__doc__
        self.__name__ = getattr(build, "__name__", "module")

    def in_evaluation(self) -> ModuleFunction:
        """Return the same with modules in evaluation mode."""
        return ModuleFunction(self._build, training=False)

    def new(self, normalized_shape: Sequence[int], eps: float | None = None) -> nn.Module:
        """Return a new module, with its own weight and bias, and its own eps if none is given.

        Raises:
            UnsupportedError: it cannot be made from these.
        """
        return _made(self._build, tuple(normalized_shape), eps).train(self._training)

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        with self._alone:  # the parameters are put into the module, and taken out again
            module = self._module(tuple(normalized_shape), eps, x.device)
            given = _given(module, tuple(normalized_shape), weight, bias)
            y: Tensor = functional_call(module, given, (x,))
        return y

    def _module(self, shape: tuple[int, ...], eps: float, device: torch.device) -> nn.Module:
        key = shape, eps, device
        if key not in self._made:
            self._made[key] = self.new(shape, eps).to(device)
            if len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return self._made[key]


def _given(
    module: nn.Module, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None
) -> dict[str, Tensor]:
    """Return what is to take the place of the module's own parameters, by their names."""
    own, given = dict(module.named_parameters()), {}
    for parameter, names, start in ((weight, _WEIGHTS, 1.0), (bias, _BIASES, 0.0)):
        name = _name_among(own, names, shape, start)
        if parameter is None and name is not None:
            raise UnsupportedError(f"the module always has its {name}")
        if parameter is None:
            continue
        if name is None:
            raise UnsupportedError(f"the module has no parameter named any of {names}")
        if own[name].shape != parameter.shape:
            raise ValueError(
                f"{name} has shape {list(parameter.shape)}, the module's has "
                f"{list(own[name].shape)}"
            )
        given[name] = parameter
    return given


def _name_among(
    own: dict[str, Tensor], names: Sequence[str], shape: tuple[int, ...], start: float
) -> str | None:
    """Return which parameter is meant: by its name, in a module inside too, or by what it holds."""
    for name in names:
        ending = [each for each in own if each == name or each.endswith(f".{name}")]
        if len(ending) == 1:
            return ending[0]
    with torch.no_grad():
        fitting = {name: each for name, each in own.items() if each.shape == shape}
        starting = [name for name, each in fitting.items() if bool((each == start).all())]
    return starting[0] if len(starting) == 1 else None


def _made(build: Callable[..., nn.Module], shape: tuple[int, ...], eps: float | None) -> nn.Module:
    """Make a module for one normalized shape; an int stands for one axis where it must.

    Raises:
        UnsupportedError: it cannot be made from these; says what its constructor takes.
    """
    taken = signature(build).parameters
    given: dict[str, Any] = {}
    if eps is not None:
        name = next((each for each in taken if "eps" in each.lower()), None)
        if name is None and any(each.kind is Parameter.VAR_KEYWORD for each in taken.values()):
            name = "eps"
        if name is None:
            raise UnsupportedError(f"takes no eps: {build.__name__}{signature(build)}")
        given[name] = eps
    if "bias" in taken and taken["bias"].default is Parameter.empty:
        given["bias"] = True
    sizes: list[Any] = [shape, shape[0]] if len(shape) == 1 else [shape]
    for size in sizes:
        try:
            return build(size, **given)
        except TypeError as error:
            failed = error
    raise UnsupportedError(
        f"{build.__name__}{signature(build)} cannot be made from a normalized_shape and eps: "
        f"{failed}"
    )
