"""Call a function of another signature, or an autograd.Function class, as the contract says.

The roles of its parameters are read from their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from itertools import product
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Param, UnsupportedError
from implementations.targets.adapter import Adapter
from implementations.targets.attempt import first_success
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.signatures import VARIADIC, is_eps, missing_text

# names in published functions, in lower case
_SHAPES = ("normalized_shape", "norm_shape", "shape", "size", "normalized_size", "dims")
_WEIGHTS = ("weight", "w", "gamma", "g", "gain", "scale", "weights", "ln_weight", "ln_w")
_BIASES = ("bias", "b", "beta", "shift", "offset", "ln_bias", "ln_b")
_ROLES = ("x", "normalized_shape", "weight", "bias", "eps")  # in the order of the contract
_WIDTHS = (32, 64, 768, 1024)  # hidden sizes to try; some kernels accept only one of them
_USUAL_EPS = 1e-5  # the default of torch.nn.functional.layer_norm


class NamedFunction(Adapter):
    """A function whose parameters are known by their names, with the contract's signature."""

    def __init__(self, function: Callable[..., Any], options: CallOptions | None = None) -> None:
        """Read the parameters of a function, or of a subclass of ``torch.autograd.Function``.

        Args:
            function: its first parameter is x.
            options: what the user has declared; ``init`` holds further arguments by name.

        Raises:
            UnsupportedError: it has no parameter, or a required one whose role is not known.
        """
        super().__init__(function, options)
        taken = _parameters(function)
        self._names = list(taken)
        self._roles = _roles(taken, self.options.init)
        self._defaults: dict[str, object] = {
            name: parameter.default
            for name, parameter in taken.items()
            if parameter.default is not parameter.empty
        }
        self._by_keyword = {
            name for name, parameter in taken.items() if parameter.kind is Parameter.KEYWORD_ONLY
        }
        self._takes_int = _takes_int(taken, self._roles)
        self._receives_shape = "normalized_shape" in self._roles and not self._takes_int
        self._width = _WIDTHS[0]
        self._takes_arrays = False  # of NumPy; known once its meaning is
        known = {*self._defaults, *self._roles.values(), *self.options.init}
        if missing := [name for name in taken if name not in known]:
            raise UnsupportedError(missing_text(_function(function), missing))

    @property
    def takes_several_axes(self) -> bool:
        """Whether the function has a parameter for a shape of several axes."""
        return self._receives_shape

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The only shape that the function accepts, if it raised for the first width tried."""
        return None if self._width == _WIDTHS[0] else (self._width,)

    @property
    def required(self) -> set[str]:
        """Which of the contract's arguments a call cannot leave out."""
        return {role for role, name in self._roles.items() if name not in self._defaults}

    def _call(
        self, x: Tensor, shape: tuple[int, ...], weight: Param, bias: Param, eps: float | None
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
        called = self.source.apply if _is_autograd(self.source) else self.source
        if self._takes_arrays:
            called = partial(_with_arrays, called)
        y: Tensor = called(*positional, **named)
        return y

    def _find_meaning(self, device: torch.device) -> Meaning:
        try:
            return self._find_meaning_with(device)
        except UnsupportedError as refused:
            self._takes_arrays = True
            try:
                return self._find_meaning_with(device)
            except UnsupportedError:
                self._takes_arrays = False
                raise refused from None

    def _find_meaning_with(self, device: torch.device) -> Meaning:
        forms = [("weight" in self._roles, "bias" in self._roles)]
        # a function that has parameters for both may still refuse one of them
        forms += [form for form in ((True, False), (False, False)) if form not in forms]

        def of(width: int, has: tuple[bool, bool]) -> tuple[int, Meaning]:
            probe = Probe(
                call=lambda x, weight, bias: self._call(x, x.shape[-1:], weight, bias, None),
                shape=(width,),
                has_weight=has[0],
                has_bias=has[1],
                takes_eps="eps" in self._roles,
                device=device,
            )
            return width, find_meaning(probe, self.options)

        tried = (partial(of, *way) for way in product(_WIDTHS, forms))
        self._width, meaning = first_success(tried, UnsupportedError)
        return meaning


def _with_arrays(function: Callable[..., Any], *positional: object, **named: object) -> Tensor:
    """Call a function of NumPy arrays, which has no gradient."""
    given = (*positional, *named.values())
    tensors = [value for value in given if isinstance(value, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise UnsupportedError("it takes NumPy arrays, and has no gradient")
    if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
        raise UnsupportedError("it takes NumPy arrays, and NumPy has no bfloat16")

    def array(value: object) -> object:
        return value.detach().resolve_neg().cpu().numpy() if isinstance(value, Tensor) else value

    y = function(*map(array, positional), **{name: array(value) for name, value in named.items()})
    return torch.as_tensor(y).to(tensors[0].device)


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
    if any(parameter.kind in VARIADIC for parameter in parameters.values()):
        return False
    roles = _roles(parameters, {})
    if _takes_int(parameters, roles):
        return True
    order = [roles.get(role) for role in _ROLES]
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is not Parameter.KEYWORD_ONLY
    ]
    if len(names) >= len(order) and all(
        name is None or names[index] == name for index, name in enumerate(order)
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
        found = [name for name in names[1:] if name.lower() in known]
        found = found or [name for name in names[1:] if role in name.lower()]
        if found:
            roles[role] = found[0]
    eps = [name for name in names[1:] if is_eps(name)]
    if eps:
        roles["eps"] = eps[0]
    return roles


def _is_autograd(function: object) -> bool:
    return isinstance(function, type) and issubclass(function, torch.autograd.Function)


def _function(function: Any) -> Callable[..., Any]:
    """Return the function that has the target's parameters."""
    forward: Callable[..., Any] = function.forward if _is_autograd(function) else function
    return forward


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters by name; those of the wrapped function if a decorator takes any."""
    if isinstance(function, torch.jit.ScriptFunction):
        schema: Any = function.schema  # annotated as a method, and an attribute
        return {own.name: _of_script(own) for own in schema.arguments}
    own = signature(_function(function), follow_wrapped=False)
    if any(parameter.kind in VARIADIC for parameter in own.parameters.values()):
        own = signature(_function(function))
    taken = dict(own.parameters)
    if _is_autograd(function) and "setup_context" not in vars(function):
        taken.pop(next(iter(taken), ""), None)  # ctx
    return taken


def _of_script(argument: Any) -> Parameter:
    """Return an argument of a TorchScript function as Python's inspect describes one."""
    default = argument.default_value if argument.has_default_value() else Parameter.empty
    return Parameter(argument.name, Parameter.POSITIONAL_OR_KEYWORD, default=default)
