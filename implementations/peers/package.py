"""Packages that peers need: imported by the first call of a peer, and never installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from implementations.contract import UnsupportedError

__all__ = ["Package", "environment"]


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a peer needs."""

    module: str
    """Name of the module to import."""
    distributions: tuple[str, ...]
    """Its name on PyPI, followed by the packages whose versions affect its results too."""
    install: str
    """How to install it: a command if there is one, else a sentence."""

    @property
    def is_installed(self) -> bool:
        """Whether a module of this name exists; it may belong to another package."""
        return find_spec(self.module) is not None

    def load(self, module: str = "", *names: str) -> Any:
        """Import ``module``, or the package itself, and check that it has all of ``names``.

        Raises:
            UnsupportedError: the module or a name is missing; the message says what to install.
        """
        path = module or self.module
        try:
            found = import_module(path)
        except ImportError as error:
            if not self.is_installed:
                raise UnsupportedError(f"needs {self.distributions[0]}: {self.install}") from error
            raise UnsupportedError(
                f"{self.distributions[0]} cannot be imported ({error}): {self.install}"
            ) from error
        missing = [name for name in names if not hasattr(found, name)]
        if missing:
            raise UnsupportedError(
                f"this {self.distributions[0]} has no {path}.{missing[0]}: {self.install}"
            )
        return found


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside a with block; some packages read theirs on import."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
