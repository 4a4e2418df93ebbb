"""A number and its noun: "1 case", "3 cases"."""

from __future__ import annotations

__all__ = ["count"]


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``number`` and ``noun``, which takes an s unless ``plural`` is given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
