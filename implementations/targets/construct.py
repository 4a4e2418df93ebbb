"""How a ``torch.nn.Module`` class is built for a given shape and eps, read from its constructor.

Names and annotations of the parameters say which is the size, which the eps, and which switch
weight and bias on and off. What they leave open is found by trying.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from implementations.contract import UnsupportedError
from implementations.targets.attempt import Raised, attempt

__all__ = ["Constructor", "Form", "is_eps", "makes_modules", "signature_text"]

# names under which published modules take their size, the most telling first
_SIZES = (
    "normalized_shape",
    "hidden_size",
    "hidden_dim",
    "d_model",
    "n_embd",
    "n_embed",
    "emb_dim",
    "embed_dim",
    "embedding_dim",
    "num_channels",
    "num_features",
    "channels",
    "input_size",
    "in_features",
    "embed_size",
    "model_dim",
    "features",
    "ndim",
    "nout",
    "size",
    "dim",
    "shape",
    "width",
    "units",
    "d",
    "n",
    "c",
)
_UNMISTAKABLE = _SIZES.index("features")  # of names after it, some are those of a tensor too
_BIAS_FLAGS = ("bias", "use_bias", "with_bias", "has_bias", "add_bias", "elementwise_bias")
_WEIGHT_FLAGS = ("weight", "use_weight", "use_scale", "with_weight", "scale")
_AFFINE_FLAGS = ("elementwise_affine", "affine", "use_affine", "learnable", "with_affine")
_USUAL_EPS = 1e-5  # of torch.nn.LayerNorm
_SAYS_INT = re.compile(r"(typing\.)?(Union\[|Optional\[)?\s*int\b")
_SHAPE_WORDS = ("Size", "uple", "ist[", "List", "Sequence", "Iterable", "_shape_t")

Form = Callable[[tuple[int, ...]], Any]
"""Writes a normalized shape as a constructor wants it."""


@dataclass(frozen=True, slots=True)
class Constructor:
    """A module class, and what each parameter of its constructor is for."""

    build: Callable[..., nn.Module]
    given: Mapping[str, object]
    """Arguments that the user has supplied."""
    size: str | None
    """The parameter that is the size; None if it takes none, or the user has supplied it."""
    eps: str | None
    flags: Mapping[str, str]
    """From a parameter that switches parameters on and off to what it switches."""
    forms: tuple[Form, ...]
    """Ways of writing a normalized shape, the likeliest first."""
    takes_several_axes: bool
    """Whether the size may be a shape of several axes."""
    eps_is_required: bool = False
    guesses_eps: bool = False
    """Whether eps is passed on in ``**kwargs``, without being named."""

    @classmethod
    def of(cls, build: Callable[..., nn.Module], given: Mapping[str, object]) -> Constructor:
        """Read the constructor of ``build``.

        Raises:
            UnsupportedError: it has a required argument that is none of these; the message says
                how to supply it.
        """
        taken = _parameters(build)
        unknown = [
            name
            for name in given
            if name not in taken
            and not any(each.kind is Parameter.VAR_KEYWORD for each in taken.values())
        ]
        if unknown:
            raise UnsupportedError(
                f"{signature_text(build)} has no argument named {', '.join(unknown)}"
            )
        rest = {
            name: each
            for name, each in taken.items()
            if name not in given and each.kind not in {Parameter.VAR_POSITIONAL}
        }
        eps = next((name for name in rest if is_eps(name)), None)
        if eps is None and any(each.kind is Parameter.VAR_KEYWORD for each in rest.values()):
            eps = "eps"
        flags = {
            name: what
            for what, names in (
                ("bias", _BIAS_FLAGS),
                ("weight", _WEIGHT_FLAGS),
                ("affine", _AFFINE_FLAGS),
            )
            for name in rest
            if name in names and _is_flag(rest[name])
        }
        others = {
            name: each
            for name, each in rest.items()
            if name != eps and name not in flags and each.kind is not Parameter.VAR_KEYWORD
        }
        size = _size_among(others, is_given=any(name in given for name in _SIZES))
        if size is None and any(each.kind is Parameter.VAR_POSITIONAL for each in taken.values()):
            size = ""  # a subclass that passes everything on
        missing = [
            name
            for name, each in others.items()
            if each.default is Parameter.empty and name != size
        ]
        if missing:
            needed = " ".join(f"--init '{name}=...'" for name in missing)
            raise UnsupportedError(
                f"{signature_text(build)} needs {', '.join(missing)}: give {needed}, or make an "
                "instance in a file and name that"
            )
        forms, several = _forms(size, taken.get(size)) if size is not None else ((), False)
        guesses = eps is not None and eps not in taken
        required = eps in taken and taken[eps].default is Parameter.empty
        return cls(build, dict(given), size, eps, flags, forms, several, required, guesses)

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
            weight: whether it is to have a weight.
            bias: whether it is to have a bias.
            form: how to write ``shape``; None for the first of :attr:`forms` that builds.

        Raises:
            UnsupportedError: it cannot be built so; the message has the reason.
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
        )

    def _sizes(
        self, shape: tuple[int, ...], form: Form | None
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yield each way of passing the size: positional and named arguments."""
        if self.size is None:
            yield (), {}
            return
        for each in (form,) if form is not None else self.forms:
            if len(shape) > 1 and each is _as_int:
                continue
            value = each(shape)
            yield ((), {self.size: value}) if self.size else ((value,), {})
        if not self.size:  # a class without a constructor of its own takes nothing
            yield (), {}


def makes_modules(function: Callable[..., Any]) -> bool:
    """Whether a function takes a size first, as one that returns a module does."""
    first = next(iter(_parameters(function)), None)
    return first in _SIZES[:_UNMISTAKABLE]


def is_eps(name: str) -> bool:
    """Whether a parameter of that name is added to the variance."""
    return "eps" in name.lower() or name == "e"


def signature_text(function: Callable[..., Any]) -> str:
    """Return name and parameters of a class or function, for messages."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return f"{name}{signature(function)}"
    except (TypeError, ValueError):
        return f"{name}(...)"


def _parameters(build: Callable[..., nn.Module]) -> dict[str, Parameter]:
    try:
        return dict(signature(build).parameters)
    except (TypeError, ValueError):  # written in C
        return {}


def _is_flag(parameter: Parameter) -> bool:
    """Whether a parameter is true or false, as far as it says."""
    if isinstance(parameter.default, bool):
        return True
    return parameter.default is Parameter.empty and parameter.annotation in {
        bool,
        "bool",
        Parameter.empty,
    }


def _size_among(others: Mapping[str, Parameter], *, is_given: bool) -> str | None:
    """Return which parameter is the size: a required one by a known name, or the first of them.

    If none is required, it is one of a known name, unless the user has given a size.
    """
    required = [name for name, each in others.items() if each.default is Parameter.empty]
    candidates = required or ([] if is_given else list(others))
    for name in _SIZES:
        if name in candidates:
            return name
    return required[0] if required else None


def _as_int(shape: tuple[int, ...]) -> int:
    (size,) = shape
    return size


def _as_size(shape: tuple[int, ...]) -> torch.Size:
    return torch.Size(shape)  # a tuple too


def _as_list(shape: tuple[int, ...]) -> list[int]:
    return list(shape)


def _forms(name: str, parameter: Parameter | None) -> tuple[tuple[Form, ...], bool]:
    """Return how a size may be written, the likeliest first, and whether it may have several axes.

    ``torch.ones`` takes a tuple where an int is meant, so that a tuple which works proves nothing:
    several axes are given only where the annotation, or a name with "shape" in it, asks for one.
    """
    annotation = Parameter.empty if parameter is None else parameter.annotation
    text = annotation if isinstance(annotation, str) else str(annotation)
    shapes = (_as_size, _as_list)
    if annotation is Parameter.empty or text.rpartition(".")[2] == "Any":
        return (_as_int, *shapes), "shape" in name or name == ""
    says_int = annotation is int or _SAYS_INT.match(text) is not None
    says_shape = any(word in text for word in _SHAPE_WORDS)
    if says_shape and not says_int:
        return (*shapes, _as_int), True
    return (_as_int, *shapes), says_shape
