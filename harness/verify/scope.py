"""The part of the contract that a target takes; the catalogue of cases is fitted to it.

A target without an eps argument, without weight, or for three-dimensional x only is verified on
the rest of the contract. :mod:`harness.verify.find_scope` finds the scope by calling the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.cases.axes import AXES, SAME
from harness.records import Affine, Case, Direction, Status
from harness.run.call import ImplementationError
from implementations.contract import Implementation
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction

__all__ = [
    "AFFINE_WORDS",
    "InScope",
    "Scope",
    "adapter_of",
    "fitted",
    "scope_of",
    "within_scope",
]

AFFINE_WORDS = {  # the most parameters first
    Affine.BOTH: "weight and bias",
    Affine.WEIGHT: "weight alone",
    Affine.NONE: "neither weight nor bias",
    Affine.BIAS: "bias alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a target takes; the defaults are the whole contract."""

    affines: tuple[Affine, ...] = tuple(AFFINE_WORDS)
    """Combinations of weight and bias that it takes, the most parameters first."""
    eps: float | None = None
    """The fixed eps that it adds; None if the caller chooses."""
    default_eps: float | None = None
    """The eps that it adds if none is given; None if unknown."""
    least_eps: float = 0.0
    """The smallest eps that it takes, of those tried."""
    normalized_shape: tuple[int, ...] | None = None
    """The only normalized_shape that it takes; None for any."""
    normalized_dims: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Numbers of normalized axes that it takes."""
    ranks: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Numbers of axes of x that it takes."""
    channels_first: bool = False
    """Whether the features are axis 1 of x."""
    has_gradient: bool = True
    affines_without_gradient: tuple[Affine, ...] = ()
    """Combinations that it takes in a forward alone."""
    ranks_without_gradient: tuple[int, ...] = ()
    """Numbers of axes that it takes in a forward alone."""
    takes_empty: bool = True
    takes_empty_backward: bool = True
    takes_mixed_dtypes: bool = True
    promotes: bool = False
    """Whether y has the parameters' dtype if that is wider than x's."""
    declined_layouts: tuple[str, ...] = ()
    """Layouts of x in which it raises."""
    declined_grad_outputs: tuple[str, ...] = ()
    """Output gradients with a layout of their own for which it raises."""
    declined_parameters: tuple[str, ...] = ()
    """Parameters with a layout of their own for which it raises."""
    reasons: tuple[str, ...] = ()
    """What is outside the scope, each with what the target raised."""

    @property
    def affines_with_gradient(self) -> tuple[Affine, ...]:
        """Combinations of weight and bias that it takes in a backward."""
        without = self.affines_without_gradient
        return tuple(affine for affine in self.affines if affine not in without)

    @property
    def axes(self) -> str:
        """Which axes it normalises, in words."""
        if self.channels_first:
            return "the channel axis (axis 1) of x"
        if self.normalized_shape is not None and len(self.normalized_shape) > 1:
            return f"the last {len(self.normalized_shape)} axes"
        if self.normalized_dims == (1,):
            return "the last axis"
        if len(self.normalized_dims) == 1:
            return f"the last {self.normalized_dims[0]} axes"
        return "any number of trailing axes"

    def accepts(self, axis: str, value: Any) -> bool:
        """Whether the target takes a value on an axis, in some case."""
        return axis not in _ACCEPTS or bool(_ACCEPTS[axis](self, value))

    def fit(self, case: Case) -> Case | None:
        """Return the nearest case that the target takes; None if it lies outside the scope."""
        if self.normalized_shape is not None:
            shape = (*case.leading_shape, *self.normalized_shape)
            case = replace(case, shape=shape, normalized_dims=len(self.normalized_shape))
        if case.normalized_dims == 1 and len(self.normalized_dims) == 1:
            case = _with_several_axes(case, self.normalized_dims[0])
        is_forward = case.direction is Direction.FORWARD
        affines = self.affines if is_forward else self.affines_with_gradient
        case = AXES["affine"].set(case, case.affine if case.affine in affines else affines[0])
        if self.eps is not None:
            case = replace(case, eps=self.eps)
        takes_empty = self.takes_empty and (is_forward or self.takes_empty_backward)
        accepts = all(self.accepts(axis, AXES[axis].get(case)) for axis in _ACCEPTS)
        return case if accepts and (takes_empty or 0 not in case.shape) else None


_ACCEPTS: dict[str, Callable[[Scope, Any], bool]] = {
    "affine": lambda scope, value: value in scope.affines,
    "normalized_axes": lambda scope, value: value in scope.normalized_dims,
    "param_dtype": lambda scope, value: value == SAME or scope.takes_mixed_dtypes,
    "layout": lambda scope, value: value not in scope.declined_layouts,
    "grad_output": lambda scope, value: value not in scope.declined_grad_outputs,
    "parameters": lambda scope, value: value not in scope.declined_parameters,
    "eps": lambda scope, value: scope.eps is not None or value >= scope.least_eps,
}


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


class InScope:
    """A target with its scope, behind the contract's signature; x gets a number of axes it takes.

    An x with too few axes has its first axis split; one with too many has its first axes joined.
    The rows stay the same.
    """

    def __init__(self, function: Callable[..., Any], scope: Scope) -> None:
        self.function, self.scope = function, scope
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, x: Tensor, normalized_shape: Any, *arguments: Any, **named: Any) -> Any:
        given = (*arguments, *named.values())
        parameters = [argument for argument in given if isinstance(argument, Tensor)]
        ranks = self._ranks((x, *parameters))
        if x.dim() in ranks:
            y = self.function(x, normalized_shape, *arguments, **named)
            return self._in_dtype_of(x, y, parameters)
        y = self.function(
            _with_rank(x, len(tuple(normalized_shape)), ranks),
            normalized_shape,
            *arguments,
            **named,
        )
        y = y.reshape(x.shape) if isinstance(y, Tensor) and y.numel() == x.numel() else y
        return self._in_dtype_of(x, y, parameters)

    def _ranks(self, given: Sequence[Tensor]) -> tuple[int, ...]:
        """Return the numbers of axes that it takes, with a gradient if one is recorded."""
        ranks, without = self.scope.ranks, self.scope.ranks_without_gradient
        if without and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            return tuple(rank for rank in ranks if rank not in without)
        return ranks

    def _in_dtype_of(self, x: Tensor, y: Any, parameters: Sequence[Tensor]) -> Any:
        """Round a y that was promoted to the parameters' dtype; the promotion is a remark."""
        if not (self.scope.promotes and isinstance(y, Tensor) and y.dtype == torch.float32):
            return y
        return (
            y.to(x.dtype) if torch.float32 in {parameter.dtype for parameter in parameters} else y
        )


def _with_rank(x: Tensor, dims: int, ranks: tuple[int, ...]) -> Tensor:
    """Return ``x`` with a number of axes that the target takes."""
    larger = [rank for rank in ranks if rank > x.dim()]
    if not larger:
        rank = max(ranks)
        joined = x.dim() - rank
        return x.flatten(0, joined) if x.dim() - dims > joined else x
    while x.dim() < min(larger):
        rows = x.shape[0] if x.dim() > dims else 0
        part = next((n for n in (2, 3, 5, 7) if rows > n and rows % n == 0), None)
        x = x.unflatten(0, (part, -1)) if part is not None else x.unsqueeze(0)
    return x


def within_scope(implementation: Implementation, scope: Scope) -> Implementation:
    """Return the target behind :class:`InScope`."""
    function: Any = InScope(implementation.function, scope)
    return replace(implementation, function=function, forward_only=not scope.has_gradient)


def scope_of(implementation: Implementation) -> Scope:
    """Return the scope of the target; the whole contract if none was found."""
    function = implementation.function
    return function.scope if isinstance(function, InScope) else Scope()


def adapter_of(implementation: Implementation) -> ModuleFunction | NamedFunction | None:
    """Return the adapter of a module or function; None for the contract's own signature."""
    function: object = implementation.function
    function = function.function if isinstance(function, InScope) else function
    return function if isinstance(function, ModuleFunction | NamedFunction) else None


def fitted(implementation: Implementation, case: Case, **changes: Any) -> Case:
    """Return ``case`` with changes, fitted to the target's scope.

    Raises:
        ImplementationError: unsupported, if the changes lie outside the scope.
    """
    if "shape" in changes:  # one normalized axis is the default
        changes = {"normalized_dims": 1} | changes
    nearest = scope_of(implementation).fit(replace(case, **changes))
    if nearest is None:
        raise ImplementationError(Status.UNSUPPORTED, "outside the target's scope")
    return nearest
