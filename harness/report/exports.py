"""A run as CSV, and the other formats of ``export`` that are text."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import fields
from io import StringIO
from typing import Any

from harness.records import Case, Record
from harness.records.metrics import metrics_in
from harness.report.ci import LIMIT_BYTES, junit_of_run, summary_of_run
from harness.report.document import markdown
from harness.store import Results

__all__ = ["AS_TEXT", "csv_table"]

_FACTS = (
    *(f"case.{axis.name}" for axis in fields(Case)), "environment", "status", "reason",
    "errors.worst.output", "errors.worst.bound_ratio", "latency.reference", "latency.processes",
    "latency.converged", "latency.is_valid", "latency.timer", "latency.clock",
)  # fmt: skip
"""Columns beside the metrics: fields of the results file, whose schema gives their meaning."""


def csv_table(results: Results) -> str:
    """Return a line of names, then one line per case; what was not measured is empty.

    ``id`` is the id of the case, ``errors.worst`` the output with the largest scaled error, and
    ``warnings`` the kinds of warnings; the others are fields of the results file.
    """
    text, rows = StringIO(), [_row(record) for record in results.records]
    table = csv.writer(text, lineterminator="\n")
    table.writerows([rows[0], *(map(_csv_cell, row.values()) for row in rows)])
    return text.getvalue()


def _row(record: Record) -> dict[str, Any]:
    """Return the values of a case by the names of their columns."""
    row = {"id": record.case.id} | {name: _field(record, name) for name in _FACTS}
    for metric in metrics_in("csv"):
        ends = (".value", ".low", ".high") if metric.is_estimate else ("",)
        names = (f"{metric.field}{end}" for end in ends)
        row |= zip(names, metric.numbers(record), strict=True)
    return {**row, "warnings": " ".join(warning.kind for warning in record.warnings)}


def _field(record: Record, path: str) -> Any:
    found: Any = record
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def _csv_cell(value: Any) -> str:
    """Return text that a spreadsheet does not take for a formula: names and reasons are not ours.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "" if value is None else str(value)


AS_TEXT: Mapping[str, Callable[[Results, str], str]] = {
    "csv": lambda results, _: csv_table(results),
    "junit": junit_of_run,
    "summary": lambda results, name: markdown(
        summary_of_run(results, name), limit_bytes=LIMIT_BYTES
    ),
}
"""Functions from a run and its name to text."""
