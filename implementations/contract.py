"""The contract of a LayerNorm, and how an implementation declares its properties.

This package never imports ``harness``: an implementation can be read, copied and used alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

Param = Tensor | None
"""A weight or a bias; None if there is none."""


class LayerNormFunction(Protocol):
    """The signature and meaning of :func:`torch.nn.functional.layer_norm`.

    Args:
        x: any shape that ends in ``normalized_shape``, any floating dtype; never modified.
        normalized_shape: the trailing axes whose elements share one mean and one variance.
        weight: shape ``normalized_shape``, or None for no scale.
        bias: shape ``normalized_shape``, or None for no shift.
        eps: added to the biased variance, inside the square root; >= 0.

    Returns:
        Tensor with the shape, dtype and device of ``x``.

    Raises:
        UnsupportedError: the implementation does not support these arguments. It never passes
            them to another implementation, because a benchmark must time what it names.
        ValueError: the trailing axes of ``x``, ``weight`` or ``bias`` are not ``normalized_shape``.
    """

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor: ...


class UnsupportedError(Exception):
    """The implementation does not support these arguments; the message says why."""


def install_extra(name: str) -> str:
    """Return how to install an extra of this project, which no package index has."""
    return f"pip install -e '.[{name}]' in a checkout of layernorm-bench"


class Algorithm(StrEnum):
    """How mean and variance are computed; the bound on the rounding error depends on it."""

    ONE_PASS = "one_pass"
    """E[x^2] - E[x]^2: the error grows with the square of the condition number."""
    TWO_PASS = "two_pass"
    """Mean first, then the mean of squared deviations from it."""
    WELFORD = "welford"
    """Running mean and sum of squared deviations (Welford), or such pairs combined (Chan)."""
    RECENTRED = "recentred"
    """Two-pass with re-centred deviations: the error does not depend on the condition number."""
    SHIFTED = "shifted"
    """One-pass over x - pivot."""


class Reduction(StrEnum):
    """The order of the additions: it determines how many roundings an addend undergoes."""

    TREE = "tree"
    """Pairwise, cascade or warp tree: about log2(N) roundings."""
    BLOCKS = "blocks"
    """``lanes`` strided running sums, then a tree over the lanes: N/lanes + log2(lanes)."""
    SEQUENTIAL = "sequential"
    """One running sum: N roundings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A LayerNorm with its declared properties and its source; callable like its function."""

    name: str
    """Stable identifier, stored in every record; never reused for another implementation."""
    function: LayerNormFunction
    source: str
    """Paper, documentation page or repository the algorithm is taken from."""
    algorithm: Algorithm = Algorithm.TWO_PASS
    reduction: Reduction = Reduction.TREE
    """Order of the sums over a row in the forward."""
    backward_reduction: Reduction | None = None
    """Order of the sums over a row in the backward; None if it is the same."""
    column_reduction: Reduction = Reduction.TREE
    """Order of the sums over all rows, for dweight and dbias."""
    centred_backward: bool = True
    """Whether the backward sums dy * weight * (x - mean), which loses less than dy * weight * x."""
    lanes: int = 1
    """Parallel running sums of a BLOCKS reduction."""
    statistics_in_input_dtype: bool = False
    """Whether mean and variance are computed in x's dtype; otherwise in float32 or wider."""
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    """Device kinds it runs on."""
    dtypes: frozenset[str] = frozenset({"float16", "bfloat16", "float32", "float64"})
    """Names of the supported dtypes of x."""
    forward_only: bool = False
    """Whether it has no gradient."""
    requires: tuple[str, ...] = ()
    """Optional packages, imported by the first call."""
    outside_torch: bool = False
    """Whether it computes outside torch, so that its memory cannot be counted by torch and
    torch.compile cannot compile it."""
    declared: bool = True
    """Whether its author declared the algorithm and the sums; otherwise they are ``native``'s."""

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Call :attr:`function`."""
        return self.function(x, normalized_shape, weight, bias, eps)


def implementation(
    *, source: str, algorithm: Algorithm, **declared: Any
) -> Callable[[LayerNormFunction], Implementation]:
    """Wrap a function as an :class:`Implementation` named after it.

    Args:
        source: paper, documentation page or repository of the algorithm.
        algorithm: how mean and variance are computed.
        declared: other fields of :class:`Implementation`, by name.
    """

    def wrap(function: LayerNormFunction) -> Implementation:
        name = getattr(function, "__name__")  # noqa: B009 - a Protocol carries no __name__
        return Implementation(
            name=name, function=function, source=source, algorithm=algorithm, **declared
        )

    return wrap


def trailing_axes(
    x: Tensor, normalized_shape: Sequence[int], weight: Param, bias: Param
) -> tuple[int, ...]:
    """Check the shapes, and return the axes to normalise over, as negative numbers.

    Raises:
        ValueError: ``normalized_shape`` is empty, differs from the trailing axes of ``x``, or from
            the shape of ``weight`` or ``bias``.
    """
    shapes = (None if one is None else tuple(one.shape) for one in (weight, bias))
    check_shapes(tuple(x.shape), tuple(normalized_shape), *shapes)
    return tuple(range(-len(normalized_shape), 0))


def check_shapes(
    shape: tuple[int, ...],
    normalized_shape: tuple[int, ...],
    weight: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
) -> None:
    """Check the shapes of x, weight and bias, as :func:`trailing_axes` does.

    Raises:
        ValueError: they do not agree.
    """
    if not normalized_shape:
        raise ValueError("normalized_shape is empty: name at least one trailing axis")
    if tuple(shape[-len(normalized_shape) :]) != normalized_shape:
        raise ValueError(
            f"normalized_shape is {list(normalized_shape)}, but x has shape {list(shape)}: "
            f"its last {len(normalized_shape)} axes must be the same"
        )
    for name, found in (("weight", weight), ("bias", bias)):
        if found is not None and found != normalized_shape:
            raise ValueError(
                f"{name} has shape {list(found)}, expected {list(normalized_shape)} "
                "(the normalized_shape)"
            )


def requires_gradient(*tensors: Param) -> bool:
    """Whether a call with these tensors is recorded for a backward."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # several times as fast as any()
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or ``dtype`` if that is wider: the dtype in which statistics are computed."""
    return torch.promote_types(dtype, torch.float32)


def scale_and_shift(y: Tensor, weight: Param, bias: Param) -> Tensor:
    """Return ``y * weight + bias`` in the widest of the dtypes; None is left out."""
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y
