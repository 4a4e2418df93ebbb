"""The cases as the page's script reads them: columns, dictionary-encoded, in JSON."""

from __future__ import annotations

import json
from math import isinf, isnan
from typing import Any

import pandas as pd

from harness.cases.axes import command_options
from harness.records import Measurement, Record
from harness.records.metrics import metrics_in
from harness.report.frame import PageData, worst

__all__ = ["MOST_ROWS", "case_data", "command_rest", "script_json"]

MOST_ROWS = 20_000
"""More rows take more than half of a page of 6 MB (about 120 bytes each), and seconds to sort."""
_AXES = ["implementation", "mode", "device", "dtype", "direction", "distribution", "shape"]
_IN_ID = ("implementation", "direction", "shape", "dtype", "distribution")


def case_data(data: PageData, most: int = MOST_ROWS) -> dict[str, Any]:
    """Return the columns of the table of all cases.

    Of more than ``most`` cases the rows are those that need the most attention; first of all, one
    of those that differ only in seed and settings.

    A text column is a list of distinct texts and, for each case, an index into that list, which
    takes a third of the bytes. A column without a number is left out. The script joins ids and
    commands from the columns and ``id_rest``, ``command_rest``.
    """
    shown = data.cases
    if len(shown) > most:
        shown = worst(shown, _AXES, "error_ulp").head(most).sort_index()
    records = [data.records[index] for index in shown.index]
    shown = shown.assign(
        id_rest=["".join(f"/{word}" for word in record.case.settings()) for record in records],
        command_rest=list(map(command_rest, records)),
    )
    texts = (*_AXES, "status", "error_output", "reason", "warnings", "id_rest", "command_rest")
    numbers = (
        name
        for metric in metrics_in("page")
        for name in (metric.columns if "page_interval" in metric.views else metric.columns[:1])
    )
    return {
        "count": len(shown),
        "texts": {name: _encoded(shown[name].map(str)) for name in texts},
        "numbers": {
            name: list(map(_plain, shown[name]))
            for name in ("hidden", *numbers)
            if shown[name].notna().any()
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
        parts = [part.value for part in Measurement if part is not Measurement.ERRORS]
        measured = [part for part in parts if getattr(record, part) is not None]
        words.append(f"--measure {','.join([Measurement.ERRORS.value, *measured])}")
    if record.latency is not None and record.latency.processes > 1:
        words.append(f"--processes {record.latency.processes}")
    if record.instructions is not None:
        words.append("--instructions")
    return " ".join(words)


def _encoded(column: pd.Series) -> dict[str, Any]:
    codes, words = pd.factorize(column)
    return {"words": [str(word) for word in words], "codes": codes.tolist()}


def _plain(value: float) -> float | str | None:
    """Return a number as JSON can hold it: None where not measured, a text where infinite."""
    if isnan(value):
        return None
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    whole = float(value)  # a column without a gap may be of integers
    return int(whole) if whole.is_integer() and abs(whole) < 1e15 else whole
