"""A target that is called within its scope, and cases within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.records import Case, Status
from harness.run import ImplementationError
from harness.verify.scope import Scope
from implementations.contract import Implementation
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction

__all__ = ["InScope", "adapter_of", "first_case", "fitted", "scope_of", "within_scope"]


class InScope:
    """A target with its scope, behind the contract's signature; x gets a number of axes it takes.

    An x with too few axes has its first axis split; one with too many has its first axes joined.
    The rows stay the same.
    """

    def __init__(self, function: Callable[..., Any], scope: Scope) -> None:
        self.function, self.scope = function, scope
        self._ndims = scope.ndims(backward=False), scope.ndims(backward=True)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, x: Tensor, normalized_shape: Any, *arguments: Any, **named: Any) -> Any:
        given = (x, *arguments, *named.values())
        tensors = [argument for argument in given if isinstance(argument, Tensor)]
        backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        ndims = self._ndims[backward]
        function = self.function
        if isinstance(function, ModuleFunction) and torch.is_inference_mode_enabled():
            function = function.in_evaluation
        is_reshaped = x.dim() not in ndims
        shaped = _with_ndim(x, len(tuple(normalized_shape)), ndims) if is_reshaped else x
        y = function(shaped, normalized_shape, *arguments, **named)
        if is_reshaped and isinstance(y, Tensor) and y.numel() == x.numel():
            y = y.reshape(x.shape)
        wide = torch.float32
        if self.scope.promotes and isinstance(y, Tensor) and y.dtype == wide:
            # the promotion is a remark
            return y.to(x.dtype) if wide in {tensor.dtype for tensor in tensors[1:]} else y
        return y


def _with_ndim(x: Tensor, dims: int, ndims: tuple[int, ...]) -> Tensor:
    """Return ``x`` with a number of axes that the target takes."""
    larger = [ndim for ndim in ndims if ndim > x.dim()]
    if not larger:
        joined = x.dim() - max(ndims)
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


def first_case(target: str, dtype: str, device: str) -> Case:
    """Return the case that every verification begins with, which a faulty cache would keep."""
    return Case(implementation=target, shape=(6, 32), dtype=dtype, param_dtype=dtype, device=device)
