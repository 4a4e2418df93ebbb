"""The one kind of exception that is the user's to mend, and ends in a line and an exit code."""

from __future__ import annotations

__all__ = ["Refusal"]


class Refusal(Exception):  # noqa: N818 - its subclasses are the errors
    """What was asked cannot be done; the message says what was found and what to do next."""

    exit_code = 2
    """2 used wrongly or unreadable; 3 not measured; 4 not comparable."""
