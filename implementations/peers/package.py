"""Packages that peers need: imported when one runs, never before, and never installed."""

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
    """Somebody else's package."""

    module: str
    """What is imported."""
    distributions: tuple[str, ...]
    """What pip calls it, and what its numbers depend on as much as on itself."""
    install: str
    """How it is installed, as a command where there is one."""

    @property
    def is_installed(self) -> bool:
        """Whether there is such a module; it is not imported, and may be another's."""
        return find_spec(self.module) is not None

    def load(self, module: str = "", *names: str) -> Any:
        """Import ``module``, or the package itself, and see that it has all of ``names``.

        Raises:
            UnsupportedError: it is not there, or not like that; the message says what to install.
        """
        wanted = module or self.module
        try:
            found = import_module(wanted)
        except ImportError as error:
            if not self.is_installed:
                raise UnsupportedError(f"needs {self.distributions[0]}: {self.install}") from error
            raise UnsupportedError(
                f"{self.distributions[0]} cannot be imported ({error}): {self.install}"
            ) from error
        missing = [name for name in names if not hasattr(found, name)]
        if missing:
            raise UnsupportedError(
                f"this {self.distributions[0]} has no {wanted}.{missing[0]}: {self.install}"
            )
        return found


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for a while: some packages read theirs when they start."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
