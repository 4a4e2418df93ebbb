"""What every LayerNorm here promises, and how it says so.

This package never imports ``harness``: an implementation can be read, copied and used alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "Algorithm",
    "Implementation",
    "LayerNormFunction",
    "Reduction",
    "UnsupportedError",
    "implementation",
    "scale_and_shift",
    "trailing_axes",
    "wide_dtype",
]


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
        UnsupportedError: these arguments are declined. They are never handed to another
            implementation instead: a benchmark must time what it names.
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
    """The implementation cannot run these arguments; the message says why, in user's terms."""


class Algorithm(StrEnum):
    """How mean and variance are formed; the rounding error each class may make differs."""

    ONE_PASS = "one_pass"
    """E[x^2] - E[x]^2: error grows with the square of the condition number."""
    TWO_PASS = "two_pass"
    """Mean first, then the mean of squared deviations from it."""
    WELFORD = "welford"
    """Running mean and sum of squared deviations (Welford), or such pairs combined (Chan)."""
    RECENTRED = "recentred"
    """Two-pass, the deviations centred until no mean is left: error free of the condition."""
    SHIFTED = "shifted"
    """One-pass over x - pivot."""


class Reduction(StrEnum):
    """The shape of the sums: it sets how many roundings an addend can meet."""

    TREE = "tree"
    """Pairwise, cascade or warp tree: about log2(N) roundings."""
    BLOCKS = "blocks"
    """``lanes`` strided running sums, then a tree over the lanes: N/lanes + log2(lanes)."""
    SEQUENTIAL = "sequential"
    """One running sum: N roundings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One LayerNorm, what it claims of itself, and where it comes from. Callable like it."""

    name: str
    """Stable identifier: a key in every stored record. Never reused."""
    function: LayerNormFunction
    source: str
    """Paper, documentation page or repository the algorithm is taken from."""
    algorithm: Algorithm = Algorithm.TWO_PASS
    reduction: Reduction = Reduction.TREE
    """Shape of the sums over a row in the forward."""
    backward_reduction: Reduction | None = None
    """Shape of the sums over a row in the backward; None if the same."""
    column_reduction: Reduction = Reduction.TREE
    """Shape of the sums over all rows, which make dweight and dbias."""
    lanes: int = 1
    """Parallel running sums of a BLOCKS reduction."""
    statistics_in_input_dtype: bool = False
    """Whether mean and variance are formed in x's dtype; otherwise float32 or wider."""
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    """Device kinds it runs on."""
    dtypes: frozenset[str] = frozenset({"float16", "bfloat16", "float32", "float64"})
    """Names of the dtypes of x that it takes."""
    forward_only: bool = False
    """Whether it has no gradient."""
    requires: tuple[str, ...] = ()
    """Optional packages, imported only when it runs."""
    outside_torch: bool = False
    """Whether it computes outside torch, which can then neither count its memory nor compile it."""
    declared: bool = True
    """Whether algorithm and sums are what its author says; if not, they are what ``native`` has."""

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
        """Normalise ``x`` as :class:`LayerNorm` says."""
        return self.function(x, normalized_shape, weight, bias, eps)


def implementation(
    *,
    source: str,
    algorithm: Algorithm,
    reduction: Reduction = Reduction.TREE,
    backward_reduction: Reduction | None = None,
    column_reduction: Reduction = Reduction.TREE,
    lanes: int = 1,
    statistics_in_input_dtype: bool = False,
    devices: frozenset[str] = frozenset({"cpu", "cuda"}),
    requires: tuple[str, ...] = (),
) -> Callable[[LayerNormFunction], Implementation]:
    """Wrap a function as an :class:`Implementation` named after it."""

    def wrap(function: LayerNormFunction) -> Implementation:
        return Implementation(
            name=getattr(function, "__name__"),  # noqa: B009 - a Protocol carries no __name__
            function=function,
            source=source,
            algorithm=algorithm,
            reduction=reduction,
            backward_reduction=backward_reduction,
            column_reduction=column_reduction,
            lanes=lanes,
            statistics_in_input_dtype=statistics_in_input_dtype,
            devices=devices,
            requires=requires,
        )

    return wrap


def trailing_axes(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> tuple[int, ...]:
    """Axes to normalise over, as negative numbers, after checking that the shapes agree.

    Raises:
        ValueError: ``normalized_shape`` is empty, or is not how x, weight and bias end.
    """
    wanted = tuple(normalized_shape)
    if not wanted:
        raise ValueError("normalized_shape is empty: name at least one trailing axis")
    if tuple(x.shape[-len(wanted) :]) != wanted:
        raise ValueError(
            f"normalized_shape is {list(wanted)}, but x has shape {list(x.shape)}: "
            f"its last {len(wanted)} axes must be the same"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != wanted:
            raise ValueError(
                f"{name} has shape {list(parameter.shape)}, expected {list(wanted)} "
                "(the normalized_shape)"
            )
    return tuple(range(-len(wanted), 0))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or ``dtype`` itself if that is wider: where statistics keep their digits."""
    return torch.promote_types(dtype, torch.float32)


def scale_and_shift(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return ``y * weight + bias``, leaving out what is None, in the wider of the dtypes."""
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y
