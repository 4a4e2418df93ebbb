"""The cases as the page's script reads them: columns, dictionary-encoded, in JSON."""

from __future__ import annotations

import json
from math import isinf, isnan
from typing import Any

import pandas as pd

from harness.records import Case
from harness.report.frame import Findings

__all__ = ["case_data", "script_json"]

_TEXT = (
    "implementation", "mode", "place", "dtype", "direction", "distribution", "shape", "status",
    "error_output", "reason", "warnings", "id_rest",
)  # fmt: skip
_NUMBERS = (
    "error_ulp", "bound_ratio", "condition", "latency_s", "latency_low_s", "latency_high_s",
    "ratio", "copy_ratio", "peak_bytes", "saved_bytes",
)  # fmt: skip


def case_data(findings: Findings) -> dict[str, Any]:
    """Return the columns of the table of all cases.

    A text column is a list of distinct texts and, for each case, an index into that list, which
    takes a third of the bytes. The script joins an id from the columns and ``id_rest``.
    """
    cases = findings.cases
    texts = cases.assign(id_rest=[_id_rest(each.case) for each in findings.records])
    return {
        "count": len(cases),
        "texts": {name: _encoded(texts[name]) for name in _TEXT},
        "numbers": {name: [_plain(value) for value in cases[name]] for name in _NUMBERS},
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


def _id_rest(case: Case) -> str:
    """Return the end of the id: the settings, which have no columns of their own."""
    return "".join(f"/{setting}" for setting in case.settings())


def _encoded(column: pd.Series) -> dict[str, Any]:
    codes, words = pd.factorize(column)
    return {"words": [str(each) for each in words], "codes": codes.tolist()}


def _plain(value: float) -> float | str | None:
    """Return a number as JSON can hold it: None where not measured, a text where infinite."""
    if isnan(value):
        return None
    if isinf(value):
        return "inf"
    whole = float(value)  # a column without a gap may be of integers
    return int(whole) if whole.is_integer() and abs(whole) < 1e15 else whole
