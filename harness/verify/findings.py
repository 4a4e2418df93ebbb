"""What a verification finds beside its findings: counts, causes, and what was covered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.cases import Condition

__all__ = [
    "Count",
    "Coverage",
    "Instead",
    "Outcome",
    "RunningSums",
    "Suspect",
    "Trigger",
]


class Outcome(StrEnum):
    """The result of a verification."""

    LAYER_NORM = "layer_norm"
    """Every result was right within the target's scope."""
    WRONG = "wrong"
    """A valid call gave a wrong result, or changed something else."""
    NOT_VERIFIED = "not_verified"
    """Too few cases gave a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Another known function that the target computes instead of a LayerNorm."""

    name: str
    """Such as "RMSNorm"."""
    axes: str
    """The axes it normalises, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How the cases of one dtype ended."""

    dtype: str
    ok: int = 0
    """Within the bound."""
    out_of_guarantee: int = 0
    """The algorithm has no finite bound."""
    failed: int = 0
    """Outside the bound, or crashed."""
    declined: int = 0
    """The target raised."""

    @property
    def answered(self) -> int:
        """Cases that gave a result, or crashed."""
        return self.ok + self.out_of_guarantee + self.failed

    @property
    def is_verified(self) -> bool:
        """Whether more cases gave a result than raised."""
        return self.answered > self.declined


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was tried: every combination of ``strength`` conditions that can occur together."""

    strength: int
    axes: tuple[str, ...]
    """Those with more than one value within the target's scope."""
    conditions: int
    """Values of these axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Cases outside the bound of tree sums and within the bound of plain running sums."""

    algorithm: str
    """The strictest class whose running sums explain all of them."""
    dtypes: tuple[str, ...]
    """Dtypes with such cases, in which nothing failed."""
    cases: int
    worst: str
    """The case furthest outside, and how far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A known mistake that explains the failures."""

    name: str
    mistake: str
    """What the target does, as the end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...]
    """Dtypes whose failures it explains."""
    outputs: tuple[str, ...]
    """The outputs that it explains."""
    unexplained_ratio: float = 0.0
    """The largest ratio, over the cases, of the distance to the mutant's outputs to the error.

    0 if a probe found the mistake, without a mutant.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What every failed case has in common; none of the right ones has it and shows the mistake."""

    dtypes: tuple[str, ...]
    outputs: tuple[str, ...]
    """The outputs that fail."""
    conditions: tuple[Condition, ...]
    """All hold in every failed case; empty if the target fails everywhere."""
    regardless: tuple[str, ...]
    """Axes on which failed cases have every value that was tried."""
    failed: int
    """Cases that failed, the further ones included."""
    right: int
    """Cases that did not fail, the further ones included."""
    hidden: int
    """Right cases that meet the conditions: their data hide the mistake."""
    further_cases: int
    """Cases tried to find and confirm it; 0 if it was not confirmed."""
