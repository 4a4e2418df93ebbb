"""What became of each case between two runs, as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from harness.records import Case, Estimate

__all__ = ["Change", "ChangeKind", "Comparison", "Metric"]


class ChangeKind(StrEnum):
    """What became of a case. The order is from worst to best."""

    REGRESSED = "regressed"
    """Worse in a metric that is compared exactly: status, error, memory, operators."""
    SLOWER = "slower"
    """Takes longer, confirmed in fresh processes."""
    INCONCLUSIVE = "inconclusive"
    """Too noisy to judge, or suspected and not confirmed."""
    NOT_COMPARABLE = "not comparable"
    """Measured in both runs, but under conditions that differ."""
    GONE = "gone"
    """In the baseline only."""
    NEW = "new"
    """In the run only."""
    IMPROVED = "improved"
    """Better in a metric that is compared exactly."""
    FASTER = "faster"
    """Takes less time, confirmed in fresh processes."""
    UNCHANGED = "unchanged"
    """No difference beyond what the comparison allows."""

    @property
    def is_failure(self) -> bool:
        """Whether a gate fails because of it."""
        return self in {ChangeKind.REGRESSED, ChangeKind.SLOWER}

    @property
    def is_judged(self) -> bool:
        """Whether both runs were compared and the result is known."""
        return self not in {
            ChangeKind.INCONCLUSIVE,
            ChangeKind.NOT_COMPARABLE,
            ChangeKind.GONE,
            ChangeKind.NEW,
        }


class Metric(StrEnum):
    """What a change is about."""

    STATUS = "status"
    ERROR = "error"
    LATENCY = "latency"
    PEAK_MEMORY = "peak memory"
    ALLOCATED_MEMORY = "allocated memory"
    SAVED_MEMORY = "memory saved for the backward"
    OPERATORS = "operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of one case."""

    case: Case
    kind: ChangeKind
    reason: str
    """Why this kind, with the figures, in one line."""
    metric: Metric | None = None
    """What changed most; None where nothing did, or nothing can be compared."""
    ratio: Estimate | None = None
    """Latency now over latency before, each as the ratio to the reference where there is one;
    above 1 is slower. None where it was not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What became of all cases."""

    changes: tuple[Change, ...]
    """Worst first."""
    baseline: str
    """What was compared with: a file, or a revision."""
    head: str
    """What was compared."""
    notes: tuple[str, ...] = ()
    """What holds for all: another machine, one that changed, what was not compared."""

    @property
    def failed(self) -> bool:
        return any(each.kind.is_failure for each in self.changes)

    @property
    def counts(self) -> dict[ChangeKind, int]:
        """How many of each kind that occurs, worst first."""
        found = Counter(each.kind for each in self.changes)
        return {kind: found[kind] for kind in ChangeKind if found[kind]}
