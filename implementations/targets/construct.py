"""Build a ``torch.nn.Module`` class for a given shape and eps.

The names and annotations of the constructor's parameters tell which one is the size, which one is
eps, and which ones switch weight and bias on and off. The rest is found by trying.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from torch import nn

from implementations.contract import UnsupportedError
from implementations.targets.attempt import Raised, attempt
from implementations.targets.signatures import (
    VARIADIC,
    is_eps,
    missing_text,
    parameters_of,
    required,
    signature_text,
)

# the names that published modules give their size, the most specific first
_SIZES = (
    "normalized_shape", "hidden_size", "hidden_dim", "d_model", "n_embd", "n_embed", "emb_dim",
    "embed_dim", "embedding_dim", "num_channels", "num_features", "channels", "input_size",
    "in_features", "embed_size", "model_dim", "features", "ndim", "nout", "size", "dim", "shape",
    "width", "units", "d", "n", "c",
)  # fmt: skip
_UNMISTAKABLE = _SIZES.index("features")  # later names may also be those of a tensor
_FLAGS = {
    "bias": ("bias", "use_bias", "with_bias", "has_bias", "add_bias", "elementwise_bias"),
    "weight": ("weight", "use_weight", "use_scale", "with_weight", "scale"),
    "affine": ("elementwise_affine", "affine", "use_affine", "learnable", "with_affine"),
}
_USUAL_EPS = 1e-5  # the default of torch.nn.LayerNorm
_SAYS_INT = re.compile(r"(typing\.)?(Union\[|Optional\[)?\s*int\b")
_SHAPE_WORDS = ("Size", "uple", "ist[", "List", "Sequence", "Iterable", "_shape_t")

Form = Callable[[tuple[int, ...]], Any]
"""Converts a normalized shape to what a constructor takes: int, torch.Size or list."""


@dataclass(frozen=True, slots=True)
class Constructor:
    """A module class, and what each parameter of its constructor is for."""

    build: Callable[..., nn.Module]
    given: Mapping[str, object]
    """Arguments that the user has supplied."""
    size: str | None
    """Name of the size; "" if it is passed on in ``*args``; None if the constructor takes none or
    the user has supplied it."""
    eps: str | None
    flags: Mapping[str, str]
    """From the name of a flag to what it switches: "weight", "bias" or "affine"."""
    forms: tuple[Form, ...]
    """Ways of writing a normalized shape, the likeliest first."""
    takes_several_axes: bool
    """Whether the size may be a shape of several axes."""
    eps_is_required: bool = False
    guesses_eps: bool = False
    """Whether eps can only be passed in ``**kwargs``, which may ignore it."""

    @classmethod
    def of(cls, build: Callable[..., nn.Module], given: Mapping[str, object]) -> Constructor:
        """Read the constructor of ``build``.

        Raises:
            UnsupportedError: ``given`` names no parameter, or a required parameter has no known
                role; the message says how to supply it.
        """
        taken = parameters_of(build)
        kinds = {parameter.kind for parameter in taken.values()}
        unknown = [name for name in given if name not in taken]
        if unknown and Parameter.VAR_KEYWORD not in kinds:
            raise UnsupportedError(
                f"{signature_text(build)} has no argument named {', '.join(unknown)}"
            )
        rest = {
            name: parameter
            for name, parameter in taken.items()
            if name not in given and parameter.kind not in VARIADIC
        }
        eps = next((name for name in rest if is_eps(name)), None)
        guesses_eps = eps is None and Parameter.VAR_KEYWORD in kinds
        flags = flags_among(rest)
        others = {
            name: parameter for name, parameter in rest.items() if name != eps and name not in flags
        }
        size = _size_among(others, is_given=any(name in given for name in _SIZES))
        if size is None and Parameter.VAR_POSITIONAL in kinds:
            size = ""  # a subclass that passes everything on
        missing = [name for name in required(others.values()) if name != size]
        if missing:
            raise UnsupportedError(
                f"{missing_text(build, missing)}, or make an instance in a file and name that"
            )
        forms, several = ((), False) if size is None else _forms(size, taken.get(size))
        return cls(
            build=build,
            given=dict(given),
            size=size,
            eps="eps" if guesses_eps else eps,
            flags=flags,
            forms=forms,
            takes_several_axes=several,
            eps_is_required=eps is not None and taken[eps].default is Parameter.empty,
            guesses_eps=guesses_eps,
        )

    def make(
        self,
        shape: tuple[int, ...],
        eps: float | None,
        *,
        weight: bool,
        bias: bool,
        form: Form | None = None,
    ) -> nn.Module:
        """Build a module.

        Args:
            shape: the normalized shape; ignored by a class that takes no size.
            eps: None for the class's own, or 1e-5 if it has none.
            weight: whether the module shall have a weight, as far as a flag decides it.
            bias: whether the module shall have a bias, as far as a flag decides it.
            form: how to write ``shape``; None for the first of :attr:`forms` that builds.

        Raises:
            UnsupportedError: the class takes no eps, or the constructor raised; the message quotes
                the first exception.
        """
        arguments: dict[str, Any] = dict(self.given)
        if eps is not None:
            if self.eps is None:
                raise UnsupportedError(f"takes no eps: {signature_text(self.build)}")
            arguments[self.eps] = eps
        elif self.eps_is_required:
            arguments[str(self.eps)] = _USUAL_EPS
        for name, what in self.flags.items():
            arguments[name] = {"bias": bias, "weight": weight, "affine": weight or bias}[what]
        failed: Raised | None = None
        for positional, named in self._sizes(shape, form):
            with torch.random.fork_rng(devices=[]):
                made = attempt(partial(self.build, *positional, **arguments, **named))
            if not isinstance(made, Raised):
                return made
            failed = failed or made
        reason = "" if failed is None else failed.reason
        raise UnsupportedError(
            f"{signature_text(self.build)} cannot be built for a normalized_shape of "
            f"{list(shape)}: {reason}"
        ) from (None if failed is None else failed.error)

    def _sizes(
        self, shape: tuple[int, ...], form: Form | None
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yield each way of passing the size: positional and named arguments."""
        if self.size is None:
            yield (), {}
            return
        for written in (form,) if form is not None else self.forms:
            if len(shape) > 1 and written is _as_int:
                continue
            value = written(shape)
            yield ((), {self.size: value}) if self.size else ((value,), {})
        if not self.size:  # a class without a constructor of its own takes nothing
            yield (), {}


def flags_among(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """Return the parameters that switch off "weight", "bias" or both ("affine"), and which."""
    return {
        name: role
        for role, names in _FLAGS.items()
        for name in parameters
        if name in names and _is_flag(parameters[name])
    }


def makes_modules(function: Callable[..., Any]) -> bool:
    """Whether the first parameter of a function is a size: such a function returns modules."""
    first = next(iter(parameters_of(function)), None)
    return first in _SIZES[:_UNMISTAKABLE]


def _is_flag(parameter: Parameter) -> bool:
    """Whether a parameter is a boolean, judged by its default or annotation."""
    if isinstance(parameter.default, bool):
        return True
    return parameter.default is Parameter.empty and parameter.annotation in {
        bool,
        "bool",
        Parameter.empty,
    }


def _size_among(others: Mapping[str, Parameter], *, is_given: bool) -> str | None:
    """Return which parameter is the size: a required one with a known name, or the first required.

    If none is required, it is an optional one with a known name, unless the user has given a size.
    """
    needed = required(others.values())
    eligible = needed or ([] if is_given else list(others))
    known = next((name for name in _SIZES if name in eligible), None)
    return known or (needed[0] if needed else None)


def _as_int(shape: tuple[int, ...]) -> int:
    (size,) = shape
    return size


def _forms(name: str, parameter: Parameter | None) -> tuple[tuple[Form, ...], bool]:
    """Return how a size may be written, the likeliest first, and whether it may have several axes.

    A constructor that accepts a tuple may still mean one axis, because ``torch.ones`` takes a
    tuple too. Several axes are tried only if the annotation, or "shape" in the name, allows them.
    """
    annotation = Parameter.empty if parameter is None else parameter.annotation
    text = annotation if isinstance(annotation, str) else str(annotation)
    shapes = (torch.Size, list)  # a torch.Size is a tuple too
    if annotation is Parameter.empty or text.rpartition(".")[2] == "Any":
        return (_as_int, *shapes), "shape" in name or name == ""
    says_int = annotation is int or _SAYS_INT.match(text) is not None
    says_shape = any(word in text for word in _SHAPE_WORDS)
    if says_shape and not says_int:
        return (*shapes, _as_int), True
    return (_as_int, *shapes), says_shape
