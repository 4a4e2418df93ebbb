"""The part of the contract that a target takes, as plain values; cases are fitted to it.

A target without an eps argument, without weight, or for three-dimensional x only is verified on
the rest of the contract. :mod:`harness.verify.find_scope` finds the scope by calling the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.cases.axes import AXES
from harness.records import Affine, Case, Direction

__all__ = ["AFFINE_WORDS", "EMPTY_ROWS", "NO_ROWS", "Scope"]

AFFINE_WORDS = {  # the most parameters first
    Affine.BOTH: "weight and bias",
    Affine.WEIGHT: "weight alone",
    Affine.NONE: "neither weight nor bias",
    Affine.BIAS: "bias alone",
}
_VALUES: dict[str, tuple[Any, ...]] = {
    "affine": tuple(AFFINE_WORDS),
    "ndim": (1, 2, 3, 4, 5),
    "normalized_axes": (1, 2, 3, 4, 5),
}
_MORE = range(6, 65)  # axes of x, as many as torch takes
NO_ROWS, EMPTY_ROWS = "an x without rows", "an x whose rows are empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a target takes; the defaults are the whole contract."""

    declined: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values for which it raises, by axis. Beside the axes of a case: "ndim", the number of
    axes of x, and "emptiness": :data:`NO_ROWS` or :data:`EMPTY_ROWS`, if x has no elements."""
    declined_backward: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values that it takes in a forward alone."""
    eps: float | None = None
    """The fixed eps that it adds; None if the caller chooses, or if it is unknown."""
    default_eps: float | None = None
    """The eps that it adds if none is given; None if unknown."""
    normalized_shape: tuple[int, ...] | None = None
    """The only normalized_shape that it takes; None for any."""
    channels_first: bool = False
    """Whether the features are axis 1 of x."""
    has_gradient: bool = True
    promotes: bool = False
    """Whether y has the parameters' dtype if that is wider than x's."""
    reasons: tuple[str, ...] = ()
    """What is outside the scope, in words that follow "declines "; with what the target raised."""

    def accepts(self, axis: str, value: Any, *, backward: bool = False) -> bool:
        """Whether the target takes a value on an axis, in some forward or some backward."""
        declined = self.declined.get(axis, ())
        if axis == "eps" and declined:
            return self.eps is not None or bool(value > max(declined))
        more = self.declined_backward.get(axis, ()) if backward else ()
        return value not in declined and value not in more

    def taken(self, axis: str, *, backward: bool = False) -> tuple[Any, ...]:
        """Return the values that it takes of "affine", "ndim" or "normalized_axes"."""
        values = _VALUES[axis]
        return tuple(value for value in values if self.accepts(axis, value, backward=backward))

    def ndims(self, *, backward: bool) -> tuple[int, ...]:
        """Return the numbers of axes of x that it takes: any larger one if it takes five."""
        taken = self.taken("ndim", backward=backward)
        return (*taken, *_MORE) if max(_VALUES["ndim"]) in taken else taken

    @property
    def axes(self) -> str:
        """Which axes it normalises, in words."""
        if self.channels_first:
            return "the channel axis (axis 1) of x"
        dims = self.taken("normalized_axes")
        if len(dims) > 1:
            return "any number of trailing axes"
        return "the last axis" if dims == (1,) else f"the last {dims[0]} axes"

    def fit(self, case: Case) -> Case | None:
        """Return the nearest case that the target takes; None if it lies outside the scope."""
        if self.normalized_shape is not None:
            shape = (*case.leading_shape, *self.normalized_shape)
            case = replace(case, shape=shape, normalized_dims=len(self.normalized_shape))
        dims = self.taken("normalized_axes")
        if case.normalized_dims == 1 and len(dims) == 1:
            case = _with_several_axes(case, dims[0])
        backward = case.direction is not Direction.FORWARD
        affines = self.taken("affine", backward=backward)
        case = AXES["affine"].set(case, case.affine if case.affine in affines else affines[0])
        if self.eps is not None:
            case = replace(case, eps=self.eps)
        axes = ({*self.declined} | {*self.declined_backward}) & {*AXES}
        values = {axis: AXES[axis].get(case) for axis in axes} | {"emptiness": _emptiness(case)}
        takes = (self.accepts(axis, value, backward=backward) for axis, value in values.items())
        return case if all(takes) else None


def _emptiness(case: Case) -> str:
    if 0 in case.normalized_shape:
        return EMPTY_ROWS
    return NO_ROWS if 0 in case.shape else ""


def _with_several_axes(case: Case, dims: int) -> Case:
    """Return the case with its last axis split into ``dims`` axes of the same total size."""
    hidden = case.shape[-1]
    split: list[int] = []
    for factor in (2, 3, 5, 7):
        if len(split) < dims - 1 and hidden % factor == 0 and hidden > factor:
            split.append(factor)
            hidden //= factor
    axes = (*split, hidden)
    axes = (1,) * (dims - len(axes)) + axes
    return replace(case, shape=(*case.shape[:-1], *axes), normalized_dims=dims)
