"""What was found about one metric of a case, and how findings become the one change of a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1

from harness.records import Case, Estimate
from harness.regression.changes import Change, ChangeKind, Metric

__all__ = [
    "Finding",
    "change_of",
    "count_of",
    "inconclusive_latency",
    "latency_finding",
    "percent",
    "worst_first",
]

_WORST_FIRST = tuple(ChangeKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one metric of a case."""

    kind: ChangeKind
    metric: Metric
    reason: str
    """In words, with the figures."""
    severity: float = 1.0
    """Orders findings of one kind: now over before, infinite where no number says it."""
    ratio: Estimate | None = None
    """Latency now over latency before; None for every other metric."""


def latency_finding(kind: ChangeKind, reason: str, ratio: Estimate | None) -> Finding:
    """What became of a latency, as serious as it takes longer."""
    severity = ratio.value if ratio else 1.0
    return Finding(
        kind=kind,
        metric=Metric.LATENCY,
        reason=f"latency: {reason}",
        severity=severity,
        ratio=ratio,
    )


def inconclusive_latency(why: str, ratio: Estimate | None = None) -> Finding:
    """A latency of which it cannot be told what became of it."""
    return latency_finding(ChangeKind.INCONCLUSIVE, why, ratio)


def percent(moved: float) -> str:
    """The logarithm of a ratio of times, in words."""
    return f"{abs(expm1(moved)):.1%} {'slower' if moved > 0 else 'faster'}"


def count_of(processes: int) -> str:
    """So many processes, in words."""
    return "1 process" if processes == 1 else f"{processes} processes"


def change_of(case: Case, findings: Sequence[Finding]) -> Change:
    """Return the change of a case: its worst finding, with whatever else is not the same."""
    ordered = sorted(findings, key=_gravity)
    worst = ordered[0]
    told = [each for each in ordered if each.kind is not ChangeKind.UNCHANGED] or ordered
    return Change(
        case=case,
        kind=worst.kind,
        reason="; ".join(each.reason for each in told),
        metric=None if worst.kind is ChangeKind.UNCHANGED else worst.metric,
        ratio=next((each.ratio for each in findings if each.ratio is not None), None),
    )


def worst_first(changes: Sequence[tuple[Change, float]]) -> tuple[Change, ...]:
    """Order changes by kind and, within one, by severity."""
    ordered = sorted(changes, key=lambda each: (_WORST_FIRST.index(each[0].kind), -each[1]))
    return tuple(change for change, _ in ordered)


def _gravity(finding: Finding) -> tuple[int, float]:
    return _WORST_FIRST.index(finding.kind), -finding.severity
