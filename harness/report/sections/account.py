"""Every case: the table of all, those that were not measured, and measurement warnings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from harness.records import Status, WarningKind
from harness.records.text import count, in_words
from harness.report.content import Block, CaseTable, Cell, Column, Table, Text, number, pill
from harness.report.embedded import case_data, script_json
from harness.report.frame import Findings, mostly_not_converged
from harness.report.shown_cases import shown_cases

__all__ = ["all_cases", "not_measured", "warnings"]

_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?:e[+-]?\d+)?\b", re.IGNORECASE)


def all_cases(findings: Findings) -> tuple[Block, ...]:
    """Show every case of the run, measured or not, to be filtered, drawn, sorted and downloaded."""
    shown = shown_cases(findings)
    table = CaseTable(len(shown.cases), script_json(case_data(shown)))
    if not shown.grouped_over:
        return (table,)
    left_out = f" {count(shown.left_out, 'case')} are not shown at all." if shown.left_out else ""
    files = f": {', '.join(findings.files)}" if findings.files else ""
    return (
        Text(
            f"{count(len(findings.cases), 'case')} are too many for a page: below, "
            f"{count(len(shown.cases), 'row')} stand for groups of cases that differ only in "
            f"{' and '.join(shown.grouped_over)}. A row has the status, error, id and command of "
            "the case of its group that needs the most attention, and the times and memory of the "
            f"case with the median latency.{left_out} The results file has every case{files}."
        ),
        table,
    )


def not_measured(findings: Findings) -> tuple[Block, ...]:
    """List the cases that were not measured, with their reasons."""
    statuses = [each.value for each in Status if not each.is_measured]
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for label, record in zip(findings.cases["label"], findings.records, strict=True):
        if not record.status.is_measured:
            key = (record.status.value, _NUMBER.sub("#", record.reason))
            found.setdefault(key, []).append((label, record.reason))
    blocks: list[Block] = []
    if findings.missing:
        blocks.append(
            Text(
                f"{count(findings.missing, 'case')} of {findings.planned:,} planned have no "
                "record: the run was cut short. To continue it, repeat its command with --resume."
            )
        )
    if not found:
        return (*blocks, Text("Every case with a record was measured."))
    rows = [
        (
            pill(status),
            Cell(rows[0][1] or "no reason was recorded", note=_others(rows), is_long=True),
            Cell(_names(label for label, _ in rows), is_long=True),
            number(f"{len(rows):,}"),
        )
        for (status, _), rows in sorted(
            found.items(), key=lambda item: (-statuses.index(item[0][0]), -len(item[1]))
        )
    ]
    table = Table(
        name="not-measured",
        title=f"{count(sum(map(len, found.values())), 'case')}, by reason",
        caption="The table of all cases has them too.",
        columns=(
            Column("Status"),
            Column("Reason"),
            Column("Implementations"),
            Column("Cases", is_number=True),
        ),
        rows=tuple(rows),
    )
    return (*blocks, table)


def _others(rows: list[tuple[str, str]]) -> str:
    """Return how many other reasons differ from the first only in their numbers."""
    others = len({reason for _, reason in rows}) - 1
    return f"and {others:,} with other numbers" if others else ""


def _names(labels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(labels))


def warnings(findings: Findings) -> tuple[Block, ...]:
    """List the measurement warnings, by kind."""
    found: dict[str, list[tuple[str, str]]] = {}
    cases: Counter[str] = Counter()
    for label, record in zip(findings.cases["label"], findings.records, strict=True):
        # a case may have two warnings of one kind, one for its warm and one for its cold time
        cases.update({warning.kind for warning in record.warnings})
        for warning in record.warnings:
            found.setdefault(warning.kind, []).append((label, warning.advice))
    if not found:
        return (Text("No measurement has a warning."),)
    lead: tuple[Block, ...] = ()
    if mostly_not_converged(findings.records):
        del found[WarningKind.NOT_CONVERGED]
        timed = sum(1 for each in findings.records if each.latency or each.cold)
        lead = (
            Text(
                f"Not converged: {cases[WarningKind.NOT_CONVERGED]:,} of "
                f"{count(timed, 'timed case')}. Their intervals did not become as narrow as "
                "required in time. Most cases have this warning, so that the table of all cases "
                "does not repeat it. For narrower intervals give a case more time or more "
                "processes, or stop other work."
            ),
        )
    if not found:
        return lead
    rows = [
        (
            Cell(in_words(kind)),
            Cell(rows[0][1], note=_others(rows), is_long=True),
            Cell(_names(label for label, _ in rows), is_long=True),
            number(f"{cases[kind]:,}"),
        )
        for kind, rows in found.items()
    ]
    columns = (
        Column("Warning"),
        Column("What was seen, and what to do"),
        Column("Implementations"),
        Column("Cases", is_number=True),
    )
    caption = "The numbers of these cases may be less certain than their intervals."
    return (
        *lead,
        Table(
            name="warnings",
            title="Warnings, by kind",
            caption=caption,
            columns=columns,
            rows=tuple(rows),
        ),
    )
