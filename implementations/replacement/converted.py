"""A class for a module of another class, so that it runs an implementation where it stands.

The class made derives from :class:`implementations.LayerNorm` and from the module's own class:
``isinstance``, the names in the ``state_dict`` and what the class does while loading one remain.
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

__all__ = ["ConvertedLayerNorm", "Places", "converted_class"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a module keeps what a LayerNorm needs, and how it is called."""

    weight: str | None
    """Name of the parameter or buffer that scales, in a child too ("norm.weight")."""
    bias: str | None
    """Name of the one that shifts."""
    keeps_dtype: bool
    """Whether its result has the dtype of x where its parameters have another one."""
    argument: str
    """What its forward calls x, for calls by keyword."""


class ConvertedLayerNorm(LayerNorm):
    """A LayerNorm whose weight and bias are where another class put them."""

    adopted: ClassVar[type[nn.Module]]
    """The class that the module had before."""
    places: ClassVar[Places]
    # set on each module; these keep a property of the other class from being found instead
    normalized_shape: tuple[int, ...] = ()
    eps: float = 0.0
    elementwise_affine: bool = False

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Normalise the one argument, which may be given by the name that the class gave it."""
        if self.places.argument in named:
            given = (*given, named.pop(self.places.argument))
        if not self.places.keeps_dtype or len(given) != 1 or not _is_floating(given[0]):
            return super().forward(*given, **named)
        (x,) = given
        parameter: Tensor | None = self.weight if self.places.weight is not None else self.bias
        # computed in the wider dtype, as the class did: implementations may refuse a mixture
        wide = x.dtype if parameter is None else torch.promote_types(x.dtype, parameter.dtype)
        return super().forward(x.to(wide), **named).to(x.dtype)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Name the class adopted instead of this one, which cannot be imported."""
        return _blank, (self.adopted, self.places), self.__getstate__()


def converted_class(adopted: type[nn.Module], places: Places) -> type[ConvertedLayerNorm]:
    """Return the class for modules of class ``adopted``, of the same name.

    Args:
        adopted: a class that was shown to compute a LayerNorm.
        places: where its parameters are.
    """
    key: Any = adopted  # mypy takes a class whose instances define __hash__ for one without
    made: type[ConvertedLayerNorm] = _made(key, places)
    return made


@cache  # modules of one class stay modules of one class
def _made(adopted: Any, places: Places) -> Any:
    def fill(namespace: dict[str, Any]) -> None:
        namespace["__doc__"] = f"{adopted.__name__}, run by the implementation of your choice."
        namespace["__module__"] = __name__
        namespace |= {"adopted": adopted, "places": places}
        if hasattr(adopted, "reset_parameters"):
            namespace["reset_parameters"] = getattr_static(adopted, "reset_parameters")
        for role, name in (("weight", places.weight), ("bias", places.bias)):
            if name != role:
                namespace[role] = property(_reader(name))

    # new_class finds the metaclass
    return new_class(adopted.__name__, (ConvertedLayerNorm, adopted), exec_body=fill)


def _reader(name: str | None) -> Callable[[ConvertedLayerNorm], Tensor | None]:
    """Return what reads a parameter by its name, and gives it the normalized shape."""
    path = [] if name is None else name.split(".")

    def read(module: ConvertedLayerNorm) -> Tensor | None:
        if not path:
            return None
        found: Any = module
        for each in path:
            found = getattr(found, each)
        same = tuple(found.shape) == tuple(module.normalized_shape)
        tensor: Tensor = found if same else found.reshape(module.normalized_shape)
        return tensor

    return read


def _blank(adopted: type[nn.Module], places: Places) -> ConvertedLayerNorm:
    """Return a module without state, for pickle and copy to fill."""
    kind = converted_class(adopted, places)
    return kind.__new__(kind)


def _is_floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
