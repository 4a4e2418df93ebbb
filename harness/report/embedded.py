"""The cases as the page's script reads them: columns, dictionary-encoded, in JSON.

A row is a case or, if there are too many, a group of cases.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isinf, isnan
from typing import Any

import pandas as pd

from harness.cases.axes import command_options
from harness.records import Measurement, Record
from harness.records.metrics import metrics_in
from harness.report.frame import PageData, worst

__all__ = ["ShownCases", "case_data", "command_rest", "script_json", "shown_cases"]

MOST_ROWS = 20_000
"""More rows take more than half of a page of 6 MB (about 120 bytes each), and seconds to sort."""
_AXES = ("implementation", "mode", "device", "dtype", "direction", "shape", "distribution")
_LEFT_OUT = {
    "seed": "seed", "setting": "settings", "distribution": "input distribution", "shape": "shape",
    "direction": "direction", "dtype": "dtype", "mode": "mode",
}  # fmt: skip
"""The axes over which cases are grouped, one after the other, until the rows are few enough."""
_FEW = 4  # cases per distinct number from which on a list of the distinct ones is shorter
_IN_ID = ("implementation", "direction", "shape", "dtype", "distribution")


@dataclass(frozen=True, slots=True)
class ShownCases:
    """The rows of the table, and how they were made of the cases."""

    cases: pd.DataFrame
    """As in :class:`PageData`; if grouped, also ``cases``: how many a row stands for."""
    records: tuple[Record, ...]
    """One per row: the case whose status, errors and id the row has."""
    grouped_over: tuple[str, ...] = ()
    """The axes that the cases of a row differ in, in words; empty if a row is a case."""
    left_out: int = 0
    """Cases that no row stands for."""


def shown_cases(data: PageData, most: int = MOST_ROWS) -> ShownCases:
    """Return the rows to show: every case if there are at most ``most``, else groups of them.

    The row of a group has status, errors and id of the case that needs the most attention; its
    times and memory are the medians of the group.
    """
    cases = data.cases
    if len(cases) <= most:
        return ShownCases(cases, data.records)
    keys, over = [*_AXES, "setting", "seed"], []
    for axis, words in _LEFT_OUT.items():
        keys.remove(axis)
        if cases[axis].nunique() > 1:  # a seed that only one case has, for example, groups nothing
            over.append(words)
        if len(cases[keys].drop_duplicates()) <= most:
            break
    group = cases.groupby(keys, sort=False, observed=True)
    costs = [
        name
        for metric in metrics_in("frame", "page")
        for name in metric.columns
        if metric.part != "errors"
    ]
    medians = group[costs].transform("median").assign(cases=group["status"].transform("size"))
    rows = worst(cases.drop(columns=costs), keys, "error_ulp").join(medians)
    kept = rows.head(most)
    return ShownCases(
        cases=kept.reset_index(drop=True),
        records=tuple(data.records[index] for index in kept.index),
        grouped_over=tuple(over),
        left_out=int(rows["cases"].iloc[most:].sum()),
    )


def case_data(shown: ShownCases) -> dict[str, Any]:
    """Return the columns of the table of all cases.

    A text column is a list of distinct texts and, for each case, an index into that list, which
    takes a third of the bytes; so is a column of few distinct numbers. A column without a number is
    left out. The script joins ids and commands from the columns and ``id_rest``, ``command_rest``.
    """
    cases = shown.cases.assign(
        id_rest=[
            "".join(f"/{word}" for word in record.case.settings()) for record in shown.records
        ],
        command_rest=list(map(command_rest, shown.records)),
    )
    texts = (*_AXES[:5], "distribution", "shape", "status", "error_output", "reason", "warnings",
             "id_rest", "command_rest")  # fmt: skip
    numbers = (
        name
        for metric in metrics_in("page")
        for name in (metric.columns if "page_interval" in metric.views else metric.columns[:1])
    )
    return {
        "count": len(cases),
        "texts": {name: _encoded(cases[name].map(str)) for name in texts},
        "numbers": {
            name: _numbers(cases[name])
            for name in ("hidden", *numbers, "cases")
            if name in cases and cases[name].notna().any()
        },
    }


def script_json(data: object) -> str:
    """Return JSON that can be put inside a script element.

    Raises:
        ValueError: a number is NaN or infinite, which JSON cannot hold.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # "<" could end the element; the two separators end a line in old scripts
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def command_rest(record: Record) -> str:
    """Return the options that a command for one case needs beyond the axes in columns.

    ``layernorm-bench run -i NAME --shape S --dtype D --distribution X --direction P`` and these
    options measure the case again, and measure the same of it.
    """
    words = command_options(record.case, without=_IN_ID)
    if record.status.is_measured:
        measured = [
            part.value
            for part in Measurement
            if part is Measurement.ERRORS or getattr(record, part.value) is not None
        ]
        words.append(f"--measure {','.join(measured)}")
    if record.latency is not None and record.latency.processes > 1:
        words.append(f"--processes {record.latency.processes}")
    if record.instructions is not None:
        words.append("--instructions")
    return " ".join(words)


def _encoded(column: pd.Series) -> dict[str, Any]:
    codes, words = pd.factorize(column)
    return {"words": [str(word) for word in words], "codes": codes.tolist()}


def _numbers(column: pd.Series) -> dict[str, Any] | list[float | str | None]:
    codes, values = pd.factorize(column)
    if len(values) * _FEW > len(column):
        return list(map(_plain, column))
    # a missing number has the code -1
    return {"words": list(map(_plain, values)), "codes": codes.tolist()}


def _plain(value: float) -> float | str | None:
    """Return a number as JSON can hold it: None where not measured, a text where infinite."""
    if isnan(value):
        return None
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    whole = float(value)  # a column without a gap may be of integers
    return int(whole) if whole.is_integer() and abs(whole) < 1e15 else whole
