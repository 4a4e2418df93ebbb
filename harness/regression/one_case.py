"""What became of one case, from its two records."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Case, Record
from harness.regression.changes import Change, ChangeKind, Metric
from harness.regression.exact import exact_findings
from harness.regression.findings import Finding, change_of

__all__ = ["change_between", "findings_of", "only_in"]


def findings_of(before: Record, after: Record, latency: Finding | None) -> list[Finding]:
    """Return what there is to say of a case that is in both; one finding at least."""
    found = [*exact_findings(before, after), *([latency] if latency else [])]
    if found:
        return found
    why = f"{before.status.replace('_', ' ')} in both, and nothing else of it may be compared"
    return [Finding(kind=ChangeKind.NOT_COMPARABLE, metric=Metric.STATUS, reason=why)]


def change_between(case: Case, found: Sequence[Finding]) -> tuple[Change, float]:
    """Return the change of a case that is in both, and how bad it is among those of its kind."""
    change = change_of(case, found)
    return change, max(each.severity for each in found if each.kind is change.kind)


def only_in(record: Record, kind: ChangeKind, where: str) -> tuple[Change, float]:
    """Return the change of a case that is in one of the two."""
    text = f"in the {where} only, {record.status.replace('_', ' ')} there"
    if record.reason:
        text += f": {record.reason}"
    return Change(case=record.case, kind=kind, reason=text), 0.0
