"""The names of a package whose modules are imported when one of their names is used."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any


def names_in(package: str, names: Collection[str], *modules: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: its name.
        names: what it exports.
        modules: those that may have a name, in the order in which they are imported.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = (import_module(f"{package}.{module}") for module in modules)
        return next(getattr(module, name) for module in found if hasattr(module, name))

    return find
