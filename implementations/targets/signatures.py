"""Read the signatures of targets, and quote them in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

VARIADIC = frozenset({Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD})
"""The kinds of ``*args`` and ``**kwargs``."""


def parameters_of(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the parameters by name; empty for a function written in C."""
    try:
        return signature(function).parameters
    except (TypeError, ValueError):
        return {}


def required(parameters: Iterable[Parameter]) -> list[str]:
    """Return the names of the parameters that every call must give."""
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is Parameter.empty and parameter.kind not in VARIADIC
    ]


def inputs_besides_x(parameters: Sequence[Parameter]) -> str | None:
    """Return a message about the required parameters of a forward after the first; None if none."""
    needed = required(parameters[1:])
    return f"its forward needs {', '.join(needed)} besides {parameters[0].name}" if needed else None


def is_eps(name: str) -> bool:
    """Whether a parameter or attribute of this name is added to the variance."""
    return "eps" in name.lower() or name == "e"


def signature_text(function: Callable[..., Any]) -> str:
    """Return name and parameters of a class or function, for messages."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return f"{name}{signature(function)}"
    except (TypeError, ValueError):
        return f"{name}(...)"


def missing_text(function: Callable[..., Any], names: Iterable[str]) -> str:
    """Return a message that asks the user for arguments of ``function``."""
    names = list(names)
    options = " ".join(f"--init '{name}=...'" for name in names)
    return f"{signature_text(function)} needs {', '.join(names)}: give {options}"
