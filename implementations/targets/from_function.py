"""Call a function of another signature, or an autograd.Function class, as the contract says.

The roles of its parameters are read from their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from itertools import product
from typing import Any

import torch
from torch import Tensor

from implementations.contract import UnsupportedError
from implementations.targets.channels import on_channels
from implementations.targets.meaning import (
    CallOptions,
    Meaning,
    Probe,
    check_axes,
    find_meaning,
)
from implementations.targets.signatures import VARIADIC, is_eps, missing_text

__all__ = ["NamedFunction", "needs_adapter"]

# names in published functions, in lower case
_SHAPES = ("normalized_shape", "norm_shape", "shape", "size", "normalized_size", "dims")
_WEIGHTS = ("weight", "w", "gamma", "g", "gain", "scale", "weights", "ln_weight", "ln_w")
_BIASES = ("bias", "b", "beta", "shift", "offset", "ln_bias", "ln_b")
_ROLES = ("x", "normalized_shape", "weight", "bias", "eps")  # in the order of the contract
_WIDTHS = (32, 64, 768, 1024)  # hidden sizes to try; some kernels accept only one of them
_USUAL_EPS = 1e-5  # the default of torch.nn.functional.layer_norm


class NamedFunction:
    """A function whose parameters are known by their names, with the contract's signature.

    An argument that the function has no parameter for (a weight, an eps, several axes) is refused
    with ``UnsupportedError``.
    """

    def __init__(self, function: Callable[..., Any], options: CallOptions | None = None) -> None:
        """Read the parameters of a function, or of a subclass of ``torch.autograd.Function``.

        Args:
            function: its first parameter is x.
            options: what the user has declared; ``init`` holds further arguments by name.

        Raises:
            UnsupportedError: it has no parameter, or a required one whose role is not known.
        """
        self.source, self.options = function, options or CallOptions()
        taken = _parameters(function)
        self._names = list(taken)
        self._roles = _roles(taken, self.options.init)
        self._defaults: dict[str, object] = {
            name: each.default for name, each in taken.items() if each.default is not each.empty
        }
        self._by_keyword = {
            name for name, each in taken.items() if each.kind is Parameter.KEYWORD_ONLY
        }
        self._takes_int = _takes_int(taken, self._roles)
        self._width: int | None = None
        self._meaning: Meaning | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        known = {*self._defaults, *self._roles.values(), *self.options.init}
        if missing := [name for name in taken if name not in known]:
            raise UnsupportedError(missing_text(_function(function), missing))

    @property
    def takes_several_axes(self) -> bool:
        """Whether the function has a parameter for a shape of several axes."""
        return "normalized_shape" in self._roles and not self._takes_int

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The only shape that the function accepts, if it raised for the first width tried."""
        return None if self._width in {None, _WIDTHS[0]} else (int(self._width or 0),)

    def meaning(self, device: torch.device | None = None) -> Meaning:
        """Return what the function computes; the first call finds it by experiment.

        Raises:
            UnsupportedError: the function raises for every x tried.
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
        meaning.check_eps(eps)
        # a function that receives the shape must check it itself, and the verification tests that
        if not self.takes_several_axes:
            check_axes(x, shape, takes_several=False)
        eps = eps if meaning.takes_eps else None
        if meaning.channels_first:
            return on_channels(
                lambda moved: self._call(moved, shape, weight, bias, eps), x, meaning.spatial_counts
            )
        return self._call(x, shape, weight, bias, eps)

    def _call(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float | None,
    ) -> Tensor:
        values: dict[str, object] = self._defaults | dict(self.options.init)
        given = x, shape[0] if self._takes_int else shape, weight, bias, eps
        for role, value in zip(_ROLES, given, strict=True):
            name = self._roles.get(role)
            if name is not None:
                if value is not None or role in {"weight", "bias"}:
                    values[name] = value
            elif value is not None and role in {"weight", "bias"}:
                raise UnsupportedError(f"takes no {role}")
        if "eps" in self._roles:
            values.setdefault(self._roles["eps"], _USUAL_EPS)
        positional = [values[name] for name in self._names if name not in self._by_keyword]
        named = {name: values[name] for name in self._by_keyword}
        called: Callable[..., Tensor] = _called(self.source)
        return called(*positional, **named)

    def _find_meaning(self, device: torch.device) -> Meaning:
        forms = [("weight" in self._roles, "bias" in self._roles)]
        # a function that has parameters for both may still refuse one of them
        forms += [each for each in ((True, False), (False, False)) if each not in forms]
        failed: UnsupportedError | None = None
        for width, (weight, bias) in product(_WIDTHS, forms):
            probe = Probe(
                call=lambda x, w, b: self._call(x, x.shape[-1:], w, b, None),
                shape=(width,),
                has_weight=weight,
                has_bias=bias,
                takes_eps="eps" in self._roles,
                device=device,
            )
            try:
                meaning = find_meaning(probe, self.options)
            except UnsupportedError as error:
                failed = failed or error
                continue
            self._width = width
            return meaning
        assert failed is not None  # there is at least one form
        raise failed


def needs_adapter(function: Callable[..., Any]) -> bool:
    """Whether a function cannot be called as ``f(x, normalized_shape, weight, bias, eps)``.

    A function whose signature tells nothing is assumed to accept that call.
    """
    if _is_autograd(function):
        return True
    try:
        parameters = _parameters(function)
    except (TypeError, ValueError):
        return False
    if any(each.kind in VARIADIC for each in parameters.values()):
        return False
    roles = _roles(parameters, {})
    if _takes_int(parameters, roles):
        return True
    order = [roles.get(role) for role in _ROLES]
    names = [name for name, each in parameters.items() if each.kind is not Parameter.KEYWORD_ONLY]
    if len(names) >= len(order) and all(
        name is None or names[place] == name for place, name in enumerate(order)
    ):
        return False
    return names[: len(order)] != order


def _takes_int(parameters: Mapping[str, Parameter], roles: Mapping[str, str]) -> bool:
    """Whether the normalized shape is annotated as one number."""
    shape = parameters.get(roles.get("normalized_shape", ""))
    return shape is not None and shape.annotation in {int, "int"}


def _roles(taken: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, str]:
    """Return the name of the parameter for each role that has one."""
    names = [name for name in taken if name not in given]
    if not names:
        raise UnsupportedError("takes no argument that could be x")
    roles = {"x": names[0]}
    for role, known in (("normalized_shape", _SHAPES), ("weight", _WEIGHTS), ("bias", _BIASES)):
        found = [each for each in names[1:] if each.lower() in known]
        found = found or [each for each in names[1:] if role in each.lower()]
        if found:
            roles[role] = found[0]
    eps = [each for each in names[1:] if is_eps(each)]
    if eps:
        roles["eps"] = eps[0]
    return roles


def _is_autograd(function: object) -> bool:
    return isinstance(function, type) and issubclass(function, torch.autograd.Function)


def _function(function: Any) -> Callable[..., Any]:
    """Return the function that has the target's parameters."""
    forward: Callable[..., Any] = function.forward if _is_autograd(function) else function
    return forward


def _called(function: Any) -> Callable[..., Any]:
    """Return the callable: ``apply`` of an autograd.Function, else the function itself."""
    called: Callable[..., Any] = function.apply if _is_autograd(function) else function
    return called


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters by name; those of the wrapped function if a decorator takes any."""
    own = signature(_function(function), follow_wrapped=False)
    if any(each.kind in VARIADIC for each in own.parameters.values()):
        own = signature(_function(function))
    taken = dict(own.parameters)
    if _is_autograd(function) and "setup_context" not in vars(function):
        taken.pop(next(iter(taken), ""), None)  # ctx
    return taken
