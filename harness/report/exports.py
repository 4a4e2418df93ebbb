"""A run as CSV, and for services that draw charts over commits; the formats of ``export``.

A value in a chart must mean the same on every machine that a hosted runner uses. So
github-action-benchmark gets time as the ratio to the reference timed in turn with it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from io import StringIO
from math import inf, isfinite
from typing import Any

from harness.records import Case, Record, Status
from harness.records.metrics import metrics_in
from harness.report.ci import LIMIT_BYTES, junit_of_run, summary_of_run
from harness.report.document import json_text, markdown
from harness.store import Results

__all__ = ["AS_TEXT", "bencher_metrics", "csv_columns", "csv_table", "smaller_is_better"]

_NANOSECONDS = 1e9  # in a second
_FACTS = (
    *(f"case.{axis.name}" for axis in fields(Case)), "environment", "status", "reason",
    "errors.worst.output", "errors.worst.bound_ratio", "latency.reference", "latency.processes",
    "latency.converged", "latency.is_valid", "latency.timer", "latency.clock",
)  # fmt: skip
"""Columns beside the metrics: fields of the results file, whose schema gives their meaning."""


def csv_columns() -> list[str]:
    """Return the names of the columns.

    ``id`` is the id of the case, ``errors.worst`` the output with the largest scaled error, and
    ``warnings`` the kinds of warnings; the others are fields of the results file.
    """
    numbers = (
        f"{metric.field}.{end}" if end else metric.field
        for metric in metrics_in("csv")
        for end in (("value", "low", "high") if metric.is_estimate else ("",))
    )
    return ["id", *_FACTS, *numbers, "warnings"]


def csv_table(results: Results) -> str:
    """Return a line of names, then one line per case; what was not measured is empty."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(csv_columns())
    for record in results.records:
        values = (
            record.case.id,
            *(_field(record, name) for name in _FACTS),
            *(number for metric in metrics_in("csv") for number in metric.numbers(record)),
            " ".join(warning.kind for warning in record.warnings),
        )
        table.writerow(map(_csv_cell, values))
    return text.getvalue()


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


def smaller_is_better(results: Results) -> str | None:
    """Return time, error and memory of each case for github-action-benchmark; None if none has any.

    The format ``customSmallerIsBetter`` is a list of names, units and values in JSON.
    """
    entries = []
    for record in results.records:
        charted = dict(_charted(record))
        if "latency-ratio" in charted:
            charted.pop("latency", None)  # seconds do not compare between hosted runners
        for name, (unit, (value, *ends)) in charted.items():
            # "±" is the one notation that the action can parse: the wider half of the interval
            half = max((abs(end - value) for end in ends), default=inf)
            range_text = {"range": f"± {half:.3g}"} if isfinite(half) else {}
            title = f"{record.case.id}: {name}"
            entries.append({"name": title, "unit": unit, "value": value, **range_text})
    return json_text(entries, indent=1) + "\n" if entries else None


def bencher_metrics(results: Results) -> str | None:
    """Return the measures of each case in Bencher Metric Format; None if there are none.

    ``latency`` (ns), ``latency-ratio`` (to the reference), ``error`` (scaled ulp of the worst
    output), ``peak-memory`` (bytes beyond the inputs). Bencher has a measure for the first by
    default, and creates the others on first use.
    """
    cases: dict[str, dict[str, dict[str, float]]] = {}
    for record in results.records:
        for name, (unit, numbers) in _charted(record):
            factor = _NANOSECONDS if unit == "s" else 1
            named = zip(("value", "lower_value", "upper_value"), numbers, strict=False)
            cases.setdefault(record.case.id, {})[name] = {
                end: number * factor for end, number in named if isfinite(number)
            }
    return json_text(cases, indent=1) + "\n" if cases else None


def _charted(record: Record) -> Iterator[tuple[str, tuple[str, list[float]]]]:
    """Yield names, units and numbers: none of a wrong result, and only finite and valid ones."""
    if record.status is Status.WRONG:
        return
    latency = record.latency
    is_timed = latency is not None and latency.is_valid and 0 < latency.per_call_s.value < inf
    for metric in metrics_in("chart"):
        numbers = [number for number in metric.numbers(record) if number is not None]
        if numbers and isfinite(numbers[0]) and (is_timed or metric.part != "latency"):
            yield metric.heading("chart"), (metric.unit, numbers)


AS_TEXT: Mapping[str, Callable[[Results, str], str | None]] = {
    "csv": lambda results, _: csv_table(results),
    "junit": junit_of_run,
    "summary": lambda results, name: markdown(
        summary_of_run(results, name), limit_bytes=LIMIT_BYTES
    ),
    "smaller-is-better": lambda results, _: smaller_is_better(results),
    "bencher": lambda results, _: bencher_metrics(results),
}
"""Functions from a run and its name to text; they return None if nothing fits the format."""
