"""A comparison of two runs: one document for terminal, Markdown and page; and values for JSON."""

from __future__ import annotations

import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

from harness.records.text import as_speed, count, speed_interval_text
from harness.regression import Change, ChangeKind, Comparison
from harness.report.document import DASH, Block, Cell, Column, Table, Text, columns, name_of, number
from harness.store import to_plain

if TYPE_CHECKING:
    from harness.report.frame import PageData

__all__ = ["MOST_ROWS", "comparison_as_plain", "document_of_comparison", "gate_verdicts", "verdict"]

MOST_ROWS = 50
"""What a reader goes through, on a page or in a terminal; --json has every case."""


def verdict(comparison: Comparison) -> tuple[str, str]:
    """Return a sign and the verdict of the gate in words."""
    if bad := sum(change.kind.is_failure for change in comparison.changes):
        return "❌", f"{count(bad, 'case')} got worse"
    if not any(kind.is_judged for kind in comparison.counts):
        return "⚠️", "no case could be judged in full"
    return "✅", "no case got worse"


def document_of_comparison(
    comparison: Comparison, *, most_rows: int = sys.maxsize
) -> tuple[Block, ...]:
    """Return how many cases changed in which way, the notes, and a table of each kind of change.

    Unchanged cases are only counted, and so are others that do not fail for the same reason.
    """
    counts = ", ".join(f"{cases:,} {kind}" for kind, cases in comparison.counts.items())
    groups: dict[ChangeKind, dict[str, list[Change]]] = {}
    for change in comparison.changes:
        if change.kind is not ChangeKind.UNCHANGED:
            alike = change.case.id if change.kind.is_failure else change.reason
            groups.setdefault(change.kind, {}).setdefault(alike, []).append(change)
    tables = []
    for kind, alike_changes in groups.items():
        rows = tuple(_row(*changes) for changes in alike_changes.values())
        left = max(len(rows) - most_rows, 0)
        tables.append(
            Table(
                name=name_of("gate", kind),
                title=f"{comparison.counts[kind]:,} {kind}",
                caption=f"and {left:,} more" if left else "",
                columns=(
                    *columns("case", "speed now against before#"),
                    Column("why", is_long=True),
                ),
                rows=rows[:most_rows],
                is_folded=not kind.is_failure,
            )
        )
        most_rows = max(most_rows - len(rows), 0)
    return (
        Text(f"{comparison.head} against {comparison.baseline}: {counts}"),
        *(Text(note, "note") for note in comparison.notes),
        *tables,
    )


def _row(change: Change, *alike: Change) -> tuple[Cell, ...]:
    more = f" (and {count(len(alike), 'more case')})" if alike else ""
    speed = DASH if change.ratio is None else speed_interval_text(as_speed(change.ratio))
    return (
        Cell(change.case.id, is_long=True),
        number(speed),
        Cell(f"{change.reason}{more}", is_long=True),
    )


def gate_verdicts(data: PageData) -> tuple[Block, ...]:
    """Show what changed since the baseline, if one was given, the worst first."""
    comparison = data.comparison
    if comparison is None:
        return ()
    _, words = verdict(comparison)
    lead, *rest = document_of_comparison(comparison, most_rows=MOST_ROWS)
    explained = (
        "Speeds are relative to the reference; above 1 is faster now. Nothing was timed again for "
        "this page; `layernorm-bench compare --json` has every case."
    )
    return (Text(f"{words[0].upper()}{words[1:]}.", "title"), lead, *rest, Text(explained))


def comparison_as_plain(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as values that JSON can hold; infinite ends of intervals become null."""
    return {
        "baseline": comparison.baseline,
        "head": comparison.head,
        "failed": comparison.failed,
        "counts": {str(kind): cases for kind, cases in comparison.counts.items()},
        "notes": list(comparison.notes),
        "changes": [_change_as_plain(change) for change in comparison.changes],
    }


def _change_as_plain(change: Change) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(change)
    del plain["severity"]  # of use for the order alone
    if change.ratio is not None:
        plain["ratio"] = {
            name: value if isfinite(value) else None for name, value in plain["ratio"].items()
        }
    return {"id": change.case.id, **plain}
