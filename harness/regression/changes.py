"""How each metric, and each case, changed between two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.records import Case, Estimate

__all__ = [
    "Change",
    "ChangeKind",
    "Comparison",
    "Finding",
    "Metric",
    "change_of",
    "inconclusive_latency",
    "latency_finding",
    "worst_first",
]


class ChangeKind(StrEnum):
    """How a case changed. The order is from worst to best."""

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


_WORST_FIRST = tuple(ChangeKind)


class Metric(StrEnum):
    """A metric that is compared."""

    STATUS = "status"
    ERROR = "error"
    LATENCY = "latency"
    PEAK_MEMORY = "peak memory"
    ALLOCATED_MEMORY = "allocated memory"
    SAVED_MEMORY = "memory saved for the backward"
    OPERATORS = "operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one metric of a case changed."""

    kind: ChangeKind
    metric: Metric
    reason: str
    """In words, with the figures."""
    severity: float = 1.0
    """Orders findings of one kind: now over before, or infinite if that is not a number."""
    ratio: Estimate | None = None
    """Latency now over latency before; None for every other metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one case changed."""

    case: Case
    kind: ChangeKind
    reason: str
    """Why it is of this kind, with the figures, in one line."""
    metric: Metric | None = None
    """What changed most; None if nothing changed or nothing can be compared."""
    ratio: Estimate | None = None
    """Latency now over latency before, each as the ratio to the reference where there is one;
    above 1 is slower. None where it was not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How all cases changed."""

    changes: tuple[Change, ...]
    """Worst first."""
    baseline: str
    """Name of the earlier file or revision."""
    head: str
    """Name of the later file or revision."""
    notes: tuple[str, ...] = ()
    """Facts about all cases, such as another machine, or a metric that was not compared."""

    @property
    def failed(self) -> bool:
        return any(change.kind.is_failure for change in self.changes)

    @property
    def counts(self) -> dict[ChangeKind, int]:
        """The number of changes of each kind that occurs, worst first."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in ChangeKind if counts[kind]}


def latency_finding(kind: ChangeKind, reason: str, ratio: Estimate | None = None) -> Finding:
    """Return a finding about a latency; the more the latency grew, the more severe it is."""
    return Finding(
        kind=kind,
        metric=Metric.LATENCY,
        reason=f"latency: {reason}",
        severity=ratio.value if ratio else 1.0,
        ratio=ratio,
    )


def inconclusive_latency(why: str, ratio: Estimate | None = None) -> Finding:
    """Return the finding that a latency cannot be judged."""
    return latency_finding(ChangeKind.INCONCLUSIVE, why, ratio)


def change_of(case: Case, findings: Sequence[Finding]) -> tuple[Change, float]:
    """Return the change of a case and its severity.

    The worst finding gives kind and metric; the reason names all findings but the unchanged.
    """
    ordered = sorted(findings, key=lambda finding: _rank(finding.kind, finding.severity))
    worst = ordered[0]
    unchanged = worst.kind is ChangeKind.UNCHANGED
    change = Change(
        case=case,
        kind=worst.kind,
        reason="; ".join(
            finding.reason
            for finding in ordered
            if unchanged or finding.kind is not ChangeKind.UNCHANGED
        ),
        metric=None if unchanged else worst.metric,
        ratio=next((finding.ratio for finding in findings if finding.ratio is not None), None),
    )
    return change, worst.severity


def worst_first(changes: Sequence[tuple[Change, float]]) -> tuple[Change, ...]:
    """Order changes by kind and, within a kind, by severity."""
    ordered = sorted(changes, key=lambda weighed: _rank(weighed[0].kind, weighed[1]))
    return tuple(change for change, _ in ordered)


def _rank(kind: ChangeKind, severity: float) -> tuple[int, float]:
    """Sort key: worst kind first, then the most severe."""
    return _WORST_FIRST.index(kind), -severity
