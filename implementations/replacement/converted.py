"""Classes that let a module of another class run an implementation in place.

Such a class derives from :class:`implementations.LayerNorm` and from the module's own class, so
that ``isinstance``, the keys of the ``state_dict`` and the loading of one stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static
from types import new_class
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from implementations.module import LayerNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Where a module has its parameters, and how it is called."""

    weight: str | None
    """Name of the parameter or buffer that scales, which may be a child's ("norm.weight")."""
    bias: str | None
    """Name of the parameter or buffer that shifts."""
    keeps_dtype: bool
    """Whether y has the dtype of x even if the parameters have another one."""
    argument: str
    """The name of x in the signature of its forward, for calls by keyword."""


class ConvertedLayerNorm(LayerNorm):
    """A LayerNorm whose weight and bias are where another class put them."""

    original: ClassVar[type[nn.Module]]
    """The class that the module had before."""
    conversion: ClassVar[Conversion]
    # set on each module; without these defaults, properties of the original class would be found
    normalized_shape: tuple[int, ...] = ()
    eps: float = 0.0
    elementwise_affine: bool = False

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Normalise the one argument, which may be named as in the original class."""
        if self.conversion.argument in named:
            given = (*given, named.pop(self.conversion.argument))
        if not self.conversion.keeps_dtype or len(given) != 1 or not _is_floating(given[0]):
            return super().forward(*given, **named)
        (x,) = given
        parameter: Tensor | None = self.weight if self.conversion.weight is not None else self.bias
        # compute in the wider dtype, as the class did: implementations may refuse mixed dtypes
        wide = x.dtype if parameter is None else torch.promote_types(x.dtype, parameter.dtype)
        return super().forward(x.to(wide), **named).to(x.dtype)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Store the original class instead of this one, which cannot be imported."""
        return _blank, (self.original, self.conversion), self.__getstate__()


def converted_class(original: type[nn.Module], conversion: Conversion) -> type[ConvertedLayerNorm]:
    """Return the class, of the same name, for modules of class ``original``.

    Args:
        original: a class that was shown to compute a LayerNorm.
        conversion: of the modules.
    """
    key: Any = original  # mypy: a class whose instances define __hash__ is not hashable
    made: type[ConvertedLayerNorm] = _made(key, conversion)
    return made


@cache  # modules of the same class must stay so
def _made(original: Any, conversion: Conversion) -> Any:
    def fill(namespace: dict[str, Any]) -> None:
        namespace["__doc__"] = f"{original.__name__}, run by the implementation of your choice."
        namespace["__module__"] = __name__
        namespace |= {"original": original, "conversion": conversion}
        if hasattr(original, "reset_parameters"):
            namespace["reset_parameters"] = getattr_static(original, "reset_parameters")
        for role, name in (("weight", conversion.weight), ("bias", conversion.bias)):
            if name != role:
                namespace[role] = property(_reader(name))

    # new_class, because the original class may have a metaclass
    return new_class(original.__name__, (ConvertedLayerNorm, original), exec_body=fill)


def _reader(name: str | None) -> Callable[[ConvertedLayerNorm], Tensor | None]:
    """Return a getter of the parameter of this name, reshaped to the normalized shape."""
    path = [] if name is None else name.split(".")

    def read(module: ConvertedLayerNorm) -> Tensor | None:
        if not path:
            return None
        owner: Any = module
        for name in path:
            owner = getattr(owner, name)
        parameter: Tensor = owner
        shape = tuple(module.normalized_shape)
        return parameter if tuple(parameter.shape) == shape else parameter.reshape(shape)

    return read


def _blank(original: type[nn.Module], conversion: Conversion) -> ConvertedLayerNorm:
    """Return a module without state, for pickle and copy to fill."""
    kind = converted_class(original, conversion)
    return kind.__new__(kind)


def _is_floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
