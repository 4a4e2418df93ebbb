"""The calls that the LayerNorm of another package supports; other calls are refused."""

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
    """The calls that a package supports."""

    package: Package
    dtypes: frozenset[torch.dtype]
    """Supported dtypes of x."""
    devices: frozenset[str] = frozenset({"cpu"})
    """Supported device kinds."""
    needs: tuple[str, ...] = ()
    """The required parameters among weight and bias."""
    param_dtype: torch.dtype | None = None
    """The only supported dtype of weight and bias; None means any."""
    params_like_x: bool = False
    """Whether weight and bias must have x's dtype."""
    forward_only: bool = False
    """Whether it has no gradient."""
    outside_torch: bool = False
    """Whether it computes outside torch; see :class:`Implementation`."""

    def check(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> int:
        """Check a call, and return the number of trailing axes to normalise.

        Raises:
            ValueError: the shapes do not agree.
            UnsupportedError: the package does not support the call, or a required gradient.
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
        if self.forward_only and _needs_gradient(x, weight, bias):
            self._decline("has no gradient; call it under torch.no_grad()")
        return len(axes)

    def _decline(self, why: str) -> None:
        raise UnsupportedError(f"{self.package.distributions[0]} {why}")


def peer(support: Support, **declared: Any) -> Callable[[LayerNormFunction], Implementation]:
    """Wrap a function as an :class:`Implementation` with this support.

    Args:
        support: what the package supports; the function itself calls :meth:`Support.check`.
        declared: arguments of :func:`implementations.contract.implementation`.
    """

    def wrap(function: LayerNormFunction) -> Implementation:
        return replace(
            implementation(**declared)(function),
            devices=support.devices,
            dtypes=frozenset(map(_name, support.dtypes)),
            forward_only=support.forward_only,
            outside_torch=support.outside_torch,
            requires=(support.package.module,),
        )

    return wrap


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in tensors
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
