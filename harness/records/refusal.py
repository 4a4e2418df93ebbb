"""The exception for mistakes that the user can correct: one line of text and an exit code."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - its subclasses are the errors
    """The request cannot be carried out; the message says what was found and what to do next."""

    exit_code = 2
    """2 wrong use or unreadable input; 3 nothing measured; 4 not comparable."""
