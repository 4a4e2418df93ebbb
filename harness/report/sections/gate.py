"""How the run compares with its baseline."""

from __future__ import annotations

from harness.records.speed import as_speed, speed_interval_text
from harness.records.text import count
from harness.regression.changes import Change, ChangeKind
from harness.report.content import Block, Cell, Column, Table, Text, number
from harness.report.frame import Findings
from harness.report.quantities import DASH

__all__ = ["gate_verdicts"]

_MOST_ROWS = 50  # trade-off: what a reader goes through; `compare` prints all


def gate_verdicts(findings: Findings) -> tuple[Block, ...]:
    """Show what changed since the baseline, if one was given, the worst first."""
    comparison = findings.comparison
    if comparison is None:
        return ()
    worse = sum(change.kind.is_failure for change in comparison.changes)
    verdict = f"{count(worse, 'case')} got worse" if worse else "No case got worse"
    counts = ", ".join(f"{cases:,} {kind}" for kind, cases in comparison.counts.items())
    lead = Text(f"{verdict} from {comparison.baseline} to {comparison.head}: {counts}.")
    notes = tuple(Text(f"{note[0].upper()}{note[1:]}.") for note in comparison.notes)
    changed = [each for each in comparison.changes if each.kind is not ChangeKind.UNCHANGED]
    if not changed:
        return (lead, *notes)
    left = len(changed) - _MOST_ROWS
    table = Table(
        name="gate",
        title="Cases that changed or cannot be judged",
        caption="The speed is now over before, each relative to the reference; above 1 is faster. "
        "Nothing was timed again for this page."
        + (f" {left:,} more are left out; layernorm-bench compare prints all." if left > 0 else ""),
        columns=(
            Column("Case"),
            Column("Verdict"),
            Column("Speed", is_number=True),
            Column("Why"),
        ),
        rows=tuple(map(_row, changed[:_MOST_ROWS])),
    )
    return (lead, *notes, table)


def _row(change: Change) -> tuple[Cell, ...]:
    ratio = change.ratio
    return (
        Cell(change.case.id, is_long=True),
        Cell(change.kind, is_strong=change.kind.is_failure),
        number(DASH if ratio is None else speed_interval_text(as_speed(ratio))),
        Cell(change.reason, is_long=True),
    )
