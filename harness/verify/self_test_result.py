"""The result of the self-test, as a plain value that can be printed, stored and sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CompoundResult", "Fate", "MutantResult", "RedTeam", "SelfTest"]

_ALL_FOUND = (1, 2)
"""Numbers of conditions for which every visible compound mutant must be found.

The default covering array has every combination of three conditions, so that one is left for the
data on which a mistake shows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantResult:
    """Whether the verification finds one known mistake in one dtype."""

    name: str
    mistake: str
    dtype: str
    is_found: bool


class Fate(StrEnum):
    """What became of a compound mutant."""

    FOUND = "found"
    MISSED = "missed"
    """No case of the verification fails, but some other valid case does."""
    INVISIBLE = "invisible"
    """Neither the first cases of the verification fail, nor any of those drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompoundResult:
    """What became of one compound mutant."""

    base: str
    """Name of the mistake."""
    trigger: tuple[str, ...]
    """The conditions under which it is made, in words."""
    fate: Fate
    shown_by: str
    """The first case that fails, of the verification or at random; empty if none does."""

    @property
    def text(self) -> str:
        """Such as "weight_ignored where N > 1024 and x is not contiguous"."""
        return f"{self.base} where {' and '.join(self.trigger)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedTeam:
    """What became of compound mutants: mistakes made only where a random trigger holds."""

    compounds: tuple[CompoundResult, ...]
    false_alarms: tuple[str, ...]
    """Cases that a right LayerNorm fails, of those with which a mutant was found."""

    def fates(self, order: int) -> dict[Fate, int]:
        """Count the compounds with ``order`` conditions, by what became of them."""
        fates = [each.fate for each in self.compounds if len(each.trigger) == order]
        return {fate: fates.count(fate) for fate in Fate}

    def share(self, order: int) -> float | None:
        """Return the share found of the visible ones with ``order`` conditions; None if none is."""
        fates = self.fates(order)
        visible = fates[Fate.FOUND] + fates[Fate.MISSED]
        return fates[Fate.FOUND] / visible if visible else None

    @property
    def orders(self) -> tuple[int, ...]:
        """Numbers of conditions that occur."""
        return tuple(sorted({len(each.trigger) for each in self.compounds}))

    @property
    def missed(self) -> tuple[CompoundResult, ...]:
        """The visible ones that were not found."""
        return tuple(each for each in self.compounds if each.fate is Fate.MISSED)

    @property
    def passed(self) -> bool:
        """Whether all of one and two conditions are found, and no right LayerNorm fails."""
        return all(self.share(order) == 1 for order in _ALL_FOUND) and not self.false_alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The result of a self-test."""

    mutants: tuple[MutantResult, ...]
    rejected: tuple[str, ...]
    """Right implementations that the verification rejected."""
    red_team: RedTeam | None = None
    """None if it was not run."""

    @property
    def passed(self) -> bool:
        """Whether every mistake was found and nothing rejected; without mutants it did not pass."""
        is_found = [each.is_found for each in self.mutants]
        is_beaten = self.red_team is None or self.red_team.passed
        return bool(is_found) and all(is_found) and not self.rejected and is_beaten
