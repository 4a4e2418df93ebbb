"""On what terms somebody else's LayerNorm runs; what goes beyond them is declined, not patched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from implementations.contract import (
    Implementation,
    LayerNormFunction,
    UnsupportedError,
    implementation,
    trailing_axes,
)
from implementations.peers.package import Package

__all__ = ["CUDA", "Support", "peer"]

CUDA = frozenset({"cuda"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What a package takes."""

    package: Package
    dtypes: frozenset[torch.dtype]
    """Of x."""
    devices: frozenset[str] = frozenset({"cpu"})
    """Device kinds."""
    needs: tuple[str, ...] = ()
    """Parameters it cannot do without, of weight and bias."""
    param_dtype: torch.dtype | None = None
    """The one dtype that weight and bias may have; None is any."""
    params_like_x: bool = False
    """Whether weight and bias must have x's dtype."""
    forward_only: bool = False
    """Whether it has no gradient."""
    outside_torch: bool = False
    """Whether torch sees neither the memory that it takes nor what it computes."""

    def check(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> int:
        """Return over how many trailing axes to normalise, if the package takes all this.

        Raises:
            ValueError: the shapes do not agree.
            UnsupportedError: the package does not take it, or has no gradient where one is asked.
        """
        axes = trailing_axes(x, normalized_shape, weight, bias)
        if x.device.type not in self.devices:
            self._decline(f"runs on {', '.join(sorted(self.devices))}, x is on {x.device.type}")
        if x.dtype not in self.dtypes:
            self._decline(f"does not take {_name(x.dtype)}")
        wanted = x.dtype if self.params_like_x else self.param_dtype
        for name, parameter in (("weight", weight), ("bias", bias)):
            if parameter is None:
                if name in self.needs:
                    self._decline(f"needs a {name}")
            elif wanted is not None and parameter.dtype != wanted:
                self._decline(f"takes a {name} of {_name(wanted)}, not {_name(parameter.dtype)}")
        if self.forward_only and _asks_for_gradient(x, weight, bias):
            self._decline("has no gradient; call it under torch.no_grad()")
        return len(axes)

    def _decline(self, why: str) -> None:
        raise UnsupportedError(f"{self.package.distributions[0]} {why}")


def peer(terms: Support, **declared: Any) -> Callable[[LayerNormFunction], Implementation]:
    """Wrap a function as an :class:`Implementation` on these terms.

    Args:
        terms: what the package takes; the function checks it.
        declared: as :func:`implementations.contract.implementation` takes it.
    """

    def wrap(function: LayerNormFunction) -> Implementation:
        return replace(
            implementation(**declared)(function),
            devices=terms.devices,
            dtypes=frozenset(map(_name, terms.dtypes)),
            forward_only=terms.forward_only,
            outside_torch=terms.outside_torch,
            requires=(terms.package.module,),
        )

    return wrap


def _asks_for_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in tensors
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
