"""Call a function or a module with the contract's signature, once its meaning is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Param, UnsupportedError
from implementations.targets.meaning import CallOptions, Meaning

_FACTORS = (2, 3, 5, 7)


class Adapter(ABC):
    """A target as a function of x, normalized_shape, weight, bias and eps.

    What the target has no argument for (an eps, several axes, a weight) is refused with
    ``UnsupportedError``.
    """

    _meaning: Meaning | None = None
    _receives_shape = False
    """Whether the target is given the whole normalized shape, and must check it itself."""

    def __init__(self, source: Any, options: CallOptions | None) -> None:
        """Take a target, and what the user has declared about it."""
        self.source, self.options = source, options or CallOptions()
        self.__doc__ = source.__doc__
        self.__name__ = getattr(source, "__name__", type(source).__name__)

    @property
    @abstractmethod
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The only shape that the target normalises; None if it takes any."""

    @property
    @abstractmethod
    def takes_several_axes(self) -> bool:
        """Whether its normalized_shape may have several axes."""

    @abstractmethod
    def _find_meaning(self, device: torch.device) -> Meaning:
        """Find by experiment what the target computes."""

    @abstractmethod
    def _call(
        self, x: Tensor, shape: tuple[int, ...], weight: Param, bias: Param, eps: float | None
    ) -> Tensor:
        """Call the target on an x whose features are where it expects them."""

    def meaning(self, device: torch.device | None = None) -> Meaning:
        """Return what the target computes; the first call finds it by experiment.

        Raises:
            UnsupportedError: it cannot be built, or raises for every x tried; the message says
                why, and what to supply.
        """
        if self._meaning is None:
            self._meaning = self._find_meaning(device or torch.device("cpu"))
        return self._meaning

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        meaning = self._meaning or self.meaning(x.device)
        shape = tuple(normalized_shape)
        if meaning.eps is not None and eps is not None and eps != meaning.eps:
            raise UnsupportedError(f"its eps is always {meaning.eps:g}, and {eps:g} was asked for")
        # a function that receives the shape must check it itself, and the verification tests that
        if not self._receives_shape:
            if tuple(x.shape[x.dim() - len(shape) :]) != shape:
                raise ValueError(f"x has shape {list(x.shape)}: it does not end in {list(shape)}")
            if len(shape) > 1 and not self.takes_several_axes:
                raise UnsupportedError(f"normalises one axis; {len(shape)} were asked for")
        eps = eps if meaning.takes_eps else None
        if meaning.channels_first:
            return on_channels(
                lambda moved: self._call(moved, shape, weight, bias, eps), x, meaning.spatial_counts
            )
        return self._call(x, shape, weight, bias, eps)


def on_channels(
    call: Callable[[Tensor], Tensor], x: Tensor, spatial_counts: Sequence[int]
) -> Tensor:
    """Call a function of (batch, channels, *spatial) on an x whose last axis is normalised.

    A contiguous x becomes a contiguous image; if the function writes into it, x changes too.

    Args:
        call: returns a tensor of the shape of its argument.
        x: (..., channels) with any number of axes; its rows become batch and spatial axes.
        spatial_counts: accepted numbers of axes behind the channels. The number that keeps x's
            axes is used if accepted, else the first.
    """
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    wanted = x.dim() - 2
    spatial = wanted if wanted in spatial_counts else spatial_counts[0]
    sizes = x.shape[:-1] if x.dim() == spatial + 2 else _split(rows, spatial + 1)
    moved = x.reshape(*sizes, x.shape[-1]).movedim(-1, 1)
    given = moved.contiguous() if x.is_contiguous() else moved
    version = _version(given)
    y = call(given)
    if given is not moved and _version(given) != version:
        with torch.no_grad():
            x.copy_(given.detach().movedim(1, -1).reshape(x.shape))
    return y.movedim(1, -1).reshape(x.shape)


def _version(tensor: Tensor) -> int | None:
    """Return the number of writes to a tensor; inference tensors do not count them."""
    return None if tensor.is_inference() else tensor._version


def _split(rows: int, count: int) -> list[int]:
    """Return ``count`` factors of ``rows``, small ones first."""
    sizes = []
    for _ in range(count - 1):
        factor = next((prime for prime in _FACTORS if rows > prime and rows % prime == 0), 1)
        sizes.append(factor)
        rows //= factor
    return [*sizes, rows]
