"""The names of a package whose modules are imported when one of their names is used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def names_in(package: str, file: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports a name when it is first used.

    The names are those that the package imports under ``if TYPE_CHECKING``: type checkers run
    these imports, and this function reads them, as lazy_loader does for the packages of SPEC 1.

    Args:
        package: its name.
        file: its ``__init__.py``.
    """

    @cache
    def modules() -> dict[str, str]:
        nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules()[name]), name)

    return find
