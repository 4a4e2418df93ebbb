"""The exceptions for what the user can correct: a text, one fact per line, and an exit code."""

from __future__ import annotations


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
