"""CSV: one row per case, for spreadsheets and tools that cannot read parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import fields
from io import StringIO
from typing import Any

from harness.records import Case, Record
from harness.store import Results

__all__ = ["COLUMNS", "csv_table"]

COLUMNS = (
    "id",
    *(f"case.{each.name}" for each in fields(Case)),
    "environment",
    "status",
    "reason",
    "errors.worst.output",
    "errors.worst.scaled_max_ulp",
    "errors.worst.bound_ratio",
    "errors.condition_max_ratio",
    "latency.per_call_s.value",
    "latency.per_call_s.low",
    "latency.per_call_s.high",
    "latency.reference",
    "latency.reference_ratio.value",
    "latency.reference_ratio.low",
    "latency.reference_ratio.high",
    "latency.ceiling_ratio",
    "latency.processes",
    "latency.converged",
    "latency.is_valid",
    "latency.timer",
    "latency.clock",
    "cold.per_call_s.value",
    "cold.reference_ratio.value",
    "memory.peak_extra_bytes",
    "memory.allocated_bytes",
    "memory.saved_bytes",
    "memory.minimum_bytes",
    "instructions",
    "warnings",
)
"""Each column is a field of the results file, whose schema gives its unit and meaning. In addition
``id`` is the id of the case, ``errors.worst`` the output with the largest scaled error, and
``warnings`` the kinds of warnings."""


def csv_table(results: Results) -> str:
    """Return a line of names, then one line per case; what was not measured is empty."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for record in results.records:
        special = {
            "id": record.case.id,
            "warnings": " ".join(warning.kind for warning in record.warnings),
        }
        table.writerow([_cell(record, name, special) for name in COLUMNS])
    return text.getvalue()


def _cell(record: Record, name: str, special: Mapping[str, str]) -> str:
    if name in special:
        return _as_text(special[name])
    value: Any = record
    for part in name.split("."):
        value = getattr(value, part)
        if value is None:
            return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return _as_text(value) if isinstance(value, str) else str(value)


def _as_text(text: str) -> str:
    """Return text that a spreadsheet does not take for a formula: names and reasons are not ours.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
