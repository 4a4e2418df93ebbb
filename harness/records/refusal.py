"""The exceptions for what the user can correct: a text, one fact per line, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Refusal(Exception):  # noqa: N818 - its subclasses are the errors
    """The request cannot be carried out; the message says what was found and what to do next."""

    exit_code = 2
    """2 wrong use or unreadable input; 3 nothing measured; 4 not comparable."""


class NotMeasuredError(Refusal):
    """There is nothing to work on: no case, no measured case, or no time."""

    exit_code = 3


class NotComparableError(Refusal):
    """There is nothing in common with what it is to be compared with, or chosen for."""

    exit_code = 4


class StoreError(Refusal):
    """A file that cannot be read or written; the message names it and says why."""


@contextmanager
def refusing(path: Path, what: str, advice: str = "") -> Iterator[None]:
    """Raise a StoreError in place of an error of the system: ``path`` cannot be ``what``."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be {what}: {error.strerror or error}{advice}") from error
