"""The cases as the page's script reads them: columns, dictionary-encoded, in JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from math import isinf, isnan
from typing import Any

import pandas as pd

from harness.records import Case, Measurement, Record
from harness.report.shown_cases import ShownCases

__all__ = ["case_data", "command_rest", "script_json"]

_TEXT = (
    "implementation", "mode", "place", "dtype", "direction", "distribution", "shape", "status",
    "error_output", "reason", "warnings", "id_rest", "command_rest",
)  # fmt: skip
_NUMBERS = (
    "hidden", "error_ulp", "bound_ratio", "condition", "latency_s", "latency_low_s",
    "latency_high_s", "ratio", "cold_s", "copy_ratio", "peak_bytes", "peak_ratio", "saved_bytes",
    "operators", "instructions", "cases",
)  # fmt: skip
_FEW = 4  # cases per distinct number from which on a list of the distinct ones is shorter
_IN_ID = ("implementation", "direction", "shape", "dtype", "distribution")
_DEFAULTS = {each.name: each.default for each in fields(Case) if each.name not in _IN_ID}


def case_data(shown: ShownCases) -> dict[str, Any]:
    """Return the columns of the table of all cases.

    A text column is a list of distinct texts and, for each case, an index into that list, which
    takes a third of the bytes; so is a column of few distinct numbers. A column without a number is
    left out. The script joins ids and commands from the columns and ``id_rest``, ``command_rest``.
    """
    cases = shown.cases
    texts = cases.assign(
        id_rest=["".join(f"/{each}" for each in one.case.settings()) for one in shown.records],
        command_rest=list(map(command_rest, shown.records)),
    )
    numbers = cases.assign(hidden=[each.case.hidden for each in shown.records])
    return {
        "count": len(cases),
        "texts": {name: _encoded(texts[name].map(str)) for name in _TEXT},
        "numbers": {
            name: _numbers(numbers[name])
            for name in _NUMBERS
            if name in numbers and numbers[name].notna().any()
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
    case, words = record.case, []
    for name, default in _DEFAULTS.items():
        value = getattr(case, name)
        if value != (case.dtype if name == "param_dtype" else default):
            words.append(f"--{name.replace('_', '-')} {value}")
    if record.status.is_measured:
        measured = [
            each.value
            for each in Measurement
            if each is Measurement.ERRORS or getattr(record, each.value) is not None
        ]
        words.append(f"--measure {','.join(measured)}")
    if record.latency is not None and record.latency.processes > 1:
        words.append(f"--processes {record.latency.processes}")
    if record.instructions is not None:
        words.append("--instructions")
    return " ".join(words)


def _encoded(column: pd.Series) -> dict[str, Any]:
    codes, words = pd.factorize(column)
    return {"words": [str(each) for each in words], "codes": codes.tolist()}


def _numbers(column: pd.Series) -> dict[str, Any] | list[float | str | None]:
    codes, values = pd.factorize(column)
    if len(values) * _FEW > len(column):
        return [_plain(value) for value in column]
    # a missing number has the code -1
    return {"words": [_plain(value) for value in values], "codes": codes.tolist()}


def _plain(value: float) -> float | str | None:
    """Return a number as JSON can hold it: None where not measured, a text where infinite."""
    if isnan(value):
        return None
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    whole = float(value)  # a column without a gap may be of integers
    return int(whole) if whole.is_integer() and abs(whole) < 1e15 else whole
