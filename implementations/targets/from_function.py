"""A function of another signature, or an autograd.Function class, behind the contract's.

Its parameters are told apart by their names, as published functions name them.
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
from implementations.targets.construct import is_eps, signature_text
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning

__all__ = ["NamedFunction", "needs_adapter"]

_SHAPES = ("normalized_shape", "norm_shape", "shape", "size", "normalized_size", "dims")
_WEIGHTS = ("weight", "w", "gamma", "g", "gain", "scale", "weights", "ln_weight", "ln_w")
_BIASES = ("bias", "b", "beta", "shift", "offset", "ln_bias", "ln_b")
_VARIABLE = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
_WIDTHS = (32, 64, 768, 1024)  # of the x that it is tried on; some kernels take one alone


class NamedFunction:
    """A function whose parameters are known by their names, with the contract's signature.

    What it has no parameter for (a weight, an eps, several axes) is refused with
    ``UnsupportedError``.
    """

    def __init__(self, function: Callable[..., Any], options: CallOptions | None = None) -> None:
        """Take a function, or a subclass of ``torch.autograd.Function``.

        Args:
            function: its first parameter is x.
            options: what the user says of it; ``init`` holds arguments by name.

        Raises:
            UnsupportedError: it needs an argument of a name that is not known.
        """
        self.source, self.options = function, options or CallOptions()
        self._is_autograd = _is_autograd(function)
        taken = _parameters(function)
        self._names = list(taken)
        self._roles = _roles(taken, self.options.init)
        self._defaults: dict[str, object] = {
            name: each.default for name, each in taken.items() if each.default is not each.empty
        }
        self._by_keyword = {
            name for name, each in taken.items() if each.kind is Parameter.KEYWORD_ONLY
        }
        shape = taken.get(self._roles.get("normalized_shape", ""))
        self._width: int | None = None
        self._takes_int = shape is not None and shape.annotation in {int, "int"}
        self._meaning: Meaning | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        missing = [
            name
            for name, each in taken.items()
            if each.default is Parameter.empty
            and name not in self._roles.values()
            and name not in self.options.init
        ]
        if missing:
            needed = " ".join(f"--init '{name}=...'" for name in missing)
            raise UnsupportedError(
                f"{signature_text(_function(function))} needs {', '.join(missing)}: give {needed}"
            )

    @property
    def takes_several_axes(self) -> bool:
        """Whether it takes a normalized_shape."""
        return "normalized_shape" in self._roles and not self._takes_int

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The one width that it takes, of a function that raises for the first that is tried."""
        return None if self._width in {None, _WIDTHS[0]} else (int(self._width or 0),)

    def meaning(self, device: torch.device | None = None) -> Meaning:
        """Return what it computes, found by calling it the first time that this is asked.

        Raises:
            UnsupportedError: it raises for every x tried.
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
        if len(shape) > 1 and not self.takes_several_axes:
            raise UnsupportedError(f"normalises one axis; {len(shape)} were asked for")
        if tuple(x.shape[x.dim() - len(shape) :]) != shape and not self.takes_several_axes:
            raise ValueError(f"x has shape {list(x.shape)}: it does not end in {list(shape)}")
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
        for role, value in (
            ("x", x),
            ("normalized_shape", shape[0] if self._takes_int else shape),
            ("weight", weight),
            ("bias", bias),
            ("eps", eps),
        ):
            name = self._roles.get(role)
            if name is not None:
                if value is not None or role in {"weight", "bias"}:
                    values[name] = value
            elif value is not None and role in {"weight", "bias"}:
                raise UnsupportedError(f"takes no {role}")
        if "eps" in self._roles and self._roles["eps"] not in values:
            values[self._roles["eps"]] = 1e-5  # what torch takes where nothing is given
        positional = [values[name] for name in self._names if name not in self._by_keyword]
        named = {name: values[name] for name in self._by_keyword}
        called: Callable[..., Tensor] = _called(self.source)
        return called(*positional, **named)

    def _find_meaning(self, device: torch.device) -> Meaning:
        forms = [("weight" in self._roles, "bias" in self._roles)]
        # a function that has both may take neither away, or refuse one
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

    What says nothing of its parameters is called so.
    """
    if _is_autograd(function):
        return True
    try:
        parameters = _parameters(function)
    except (TypeError, ValueError):
        return False
    if any(each.kind in _VARIABLE for each in parameters.values()):
        return False
    roles = _roles(parameters, {})
    shape = parameters.get(roles.get("normalized_shape", ""))
    if shape is not None and shape.annotation in {int, "int"}:
        return True
    order = [roles.get(each) for each in ("x", "normalized_shape", "weight", "bias", "eps")]
    names = [name for name, each in parameters.items() if each.kind is not Parameter.KEYWORD_ONLY]
    if len(names) >= 5 and all(
        each is None or names.index(each) == i for i, each in enumerate(order)
    ):
        return False
    return names[:5] != order


def _roles(taken: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, str]:
    """Tell which parameter is x, normalized_shape, weight, bias and eps."""
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
    """The function whose parameters are the target's."""
    forward: Callable[..., Any] = function.forward if _is_autograd(function) else function
    return forward


def _called(function: Any) -> Callable[..., Any]:
    called: Callable[..., Any] = function.apply if _is_autograd(function) else function
    return called


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return its own parameters; of a decorator that takes any, those of what it decorates."""
    own = signature(_function(function), follow_wrapped=False)
    if any(each.kind in _VARIABLE for each in own.parameters.values()):
        own = signature(_function(function))
    taken = dict(own.parameters)
    if _is_autograd(function) and "setup_context" not in vars(function):
        taken.pop(next(iter(taken)), None)  # ctx
    return taken
