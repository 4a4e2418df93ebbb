"""The availability of targets in a revision, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Availability", "LookupResult"]


class Availability(Enum):
    """Whether a revision has a target."""

    PRESENT = "present"
    ABSENT = "absent"
    """The revision has no such target."""
    NOT_COMPARABLE = "not comparable"
    """It declares an algorithm or reduction that this revision does not know."""
    BROKEN = "broken"
    """It cannot be imported."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The availability of a target in a revision."""

    target: str
    availability: Availability
    reason: str = ""
    """Why it is not available; empty if it is."""
    devices: frozenset[str] = frozenset()
    """Kinds of device that it is written for; empty if it is not available."""
    listing: str | None = None
    """The tuple that it was found in; None if it was looked up by name."""
