"""The account of every case: the table, what was not measured, what is doubtful."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from harness.records import Status
from harness.records.text import count
from harness.report.content import Block, CaseTable, Cell, Column, Table, Text, number, pill
from harness.report.frame import Findings

__all__ = ["all_cases", "not_measured", "warnings"]

_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?:e[+-]?\d+)?\b", re.IGNORECASE)


def all_cases(findings: Findings) -> tuple[Block, ...]:
    """Offer every case of the run, measured or not."""
    return (CaseTable(len(findings.cases)),)


def not_measured(findings: Findings) -> tuple[Block, ...]:
    """List what could not be measured, and why."""
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
                f"{count(findings.missing, 'case')} of {findings.planned:,} planned left no "
                "record: the run was cut short. To go on where it stopped, repeat its command with "
                "--resume."
            )
        )
    if not found:
        return (*blocks, Text("Every case on record was measured."))
    rows = [
        (
            pill(status),
            Cell(rows[0][1] or "no reason was recorded", note=_alike(rows), is_long=True),
            Cell(_names(label for label, _ in rows), is_long=True),
            number(f"{len(rows):,}"),
        )
        for (status, _), rows in sorted(
            found.items(), key=lambda item: (-statuses.index(item[0][0]), -len(item[1]))
        )
    ]
    table = Table(
        title=f"{count(sum(map(len, found.values())), 'case')}, by reason",
        caption="Each of them is in the table of all cases, too.",
        columns=(
            Column("Status"),
            Column("Reason"),
            Column("Implementations"),
            Column("Cases", is_number=True),
        ),
        rows=tuple(rows),
    )
    return (*blocks, table)


def _alike(rows: list[tuple[str, str]]) -> str:
    """Say how many other reasons differ from the one shown in their numbers only."""
    others = len({reason for _, reason in rows}) - 1
    return f"and {others:,} alike with other numbers" if others else ""


def _names(labels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(labels))


def warnings(findings: Findings) -> tuple[Block, ...]:
    """List the measurements that should be taken with care."""
    found: dict[str, list[tuple[str, str]]] = {}
    cases: Counter[str] = Counter()
    for label, record in zip(findings.cases["label"], findings.records, strict=True):
        # a case may have one of a kind warm, and another cold
        cases.update({warning.kind for warning in record.warnings})
        for warning in record.warnings:
            found.setdefault(warning.kind, []).append((label, warning.advice))
    if not found:
        return (Text("No measurement gave cause for warning."),)
    rows = [
        (
            Cell(kind.replace("_", " ")),
            Cell(rows[0][1], note=_alike(rows), is_long=True),
            Cell(_names(label for label, _ in rows), is_long=True),
            number(f"{cases[kind]:,}"),
        )
        for kind, rows in found.items()
    ]
    columns = (
        Column("MeasurementWarning"),
        Column("What was seen, and what to do"),
        Column("Implementations"),
        Column("Cases", is_number=True),
    )
    caption = "The numbers stand; they may be less certain than they look."
    return (Table(title="Warnings, by kind", caption=caption, columns=columns, rows=tuple(rows)),)
