"""Calls of foreign code, such as constructors, which may raise any exception."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception of a call."""

    error: Exception

    @property
    def reason(self) -> str:
        """Type and first line of the message."""
        return f"{type(self.error).__name__}: {first_line(self.error)}"


def attempt(call: Callable[[], T]) -> T | Raised:
    """Return the result of ``call``, or the exception."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - other people's code may raise anything
        return Raised(error)


def first_success(calls: Iterable[Callable[[], T]], kind: type[Exception]) -> T:
    """Return the first result; if every call raises an exception of ``kind``, raise the first."""
    failed: Exception | None = None
    for call in calls:
        try:
            return call()
        except kind as error:
            failed = failed or error
    assert failed is not None  # there is at least one call
    raise failed


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message; empty if the message itself raises."""
    message = attempt(lambda: str(error))
    return message.strip().partition("\n")[0] if isinstance(message, str) else ""
