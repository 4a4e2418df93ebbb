"""A ``torch.nn.Module`` class behind the signature of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from implementations.contract import LayerNorm, UnsupportedError

__all__ = ["function_of_module"]

# what documents and libraries call the scale and the shift
_WEIGHTS, _BIASES = ("weight", "gain", "gamma", "scale"), ("bias", "beta", "shift")


def function_of_module(build: Callable[..., nn.Module]) -> LayerNorm:
    """Wrap a module class whose constructor takes ``normalized_shape`` (or a size) and ``eps``."""

    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        module = _build(build, tuple(normalized_shape), eps)
        own = dict(module.named_parameters())
        given = {}
        for parameter, names in ((weight, _WEIGHTS), (bias, _BIASES)):
            name = next((each for each in names if each in own), None)
            if parameter is not None and name is None:
                raise UnsupportedError(f"the module has no parameter named any of {names}")
            if parameter is None and name is not None:
                raise UnsupportedError(f"the module always has its {name}")
            if parameter is not None and name is not None:
                if own[name].shape != parameter.shape:
                    raise ValueError(
                        f"{name} has shape {list(parameter.shape)}, the module's has "
                        f"{list(own[name].shape)}"
                    )
                given[name] = parameter
        y: Tensor = functional_call(module, given, (x,))
        return y

    layer_norm.__doc__ = build.__doc__
    return layer_norm


def _build(build: Callable[..., nn.Module], shape: tuple[int, ...], eps: float) -> nn.Module:
    """Make a module for one normalized shape; an int stands for one axis where it must."""
    sizes: list[Any] = [shape, shape[0]] if len(shape) == 1 else [shape]
    failed: Exception | None = None
    for size in sizes:
        for arguments in ({"eps": eps}, {"epsilon": eps}):
            try:
                return build(size, **arguments)
            except TypeError as error:
                failed = error
    raise UnsupportedError(f"cannot be made from a normalized_shape and eps: {failed}")
