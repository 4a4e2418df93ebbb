"""What was measured, and how: every case, failures, warnings, the method, machines, terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from math import isfinite, isnan
from typing import Any

import pandas as pd

from harness.cases.axes import command_options, python_line, unusual
from harness.records import (
    BAD_FIRST,
    Environment,
    Gpu,
    Measurement,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.records.metrics import metrics_in
from harness.records.text import bytes_text, count, grouped, in_words, percent_text, seconds_text
from harness.report.accuracy import status_text
from harness.report.choice import WIDENED_TEXT
from harness.report.document import (
    DASH,
    Block,
    CaseTable,
    Cell,
    Facts,
    Table,
    Text,
    columns,
    definitions,
    number,
    pill,
)
from harness.report.frame import PageData, worst
from harness.selection import CLOSE_RATIO, label_of

_MOST_OPEN = 12  # trade-off: a longer table is folded
_MOST_REASONS = 100  # trade-off: each takes 0.5 kB, and the table of all cases has the others

_NO_FAILURE = "Every case with a record was measured: none is wrong or inaccurate, none warns."
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?:e[+-]?\d+)?\b", re.IGNORECASE)


def all_cases(data: PageData) -> Iterator[Block]:
    """Show every case of the run, measured or not, to be filtered, drawn, sorted and downloaded."""
    found = case_data(data)
    if found["count"] < len(data.cases):
        files = f": {', '.join(data.files)}" if data.files else ""
        yield Text(
            f"{count(len(data.cases), 'case')} are too many for a page. Below are "
            f"{found['count']:,}, the worst of each shape and input distribution. The results file "
            f"has every case{files}."
        )
    yield CaseTable(found)


def failures_and_warnings(data: PageData) -> Iterator[Block]:
    """List what is wrong, was not measured or has a warning, by reason, the worst first."""
    found: dict[tuple[Status | WarningKind, str], dict[int, str]] = {}
    for index, record in enumerate(data.records):
        reasons: list[tuple[Status | WarningKind, str]] = [
            (warning.kind, warning.advice) for warning in record.warnings
        ]
        if record.status.is_incorrect or not record.status.is_measured:
            reasons.append((record.status, record.reason))
        for kind, reason in reasons:
            found.setdefault((kind, _NUMBER.sub("#", reason)), {})[index] = reason
    if data.missing:
        yield Text(
            f"{count(data.missing, 'case')} of {data.planned:,} planned have no record: the run "
            "was cut short. To continue it, repeat its command with --resume."
        )
    if not found:
        yield Text(_NO_FAILURE)
        return
    ran = data.cases[[record.status.is_measured for record in data.records]]
    left, warned = len(data.cases) - len(ran), sum(bool(own.warnings) for own in data.records)
    yield Text(f"{status_text(ran, 'that ran')}. Not run: {left:,}. With a warning: {warned:,}.")
    order = [*BAD_FIRST, *WarningKind]
    ordered = sorted(found.items(), key=lambda item: (order.index(item[0][0]), -len(item[1])))
    yield Table(
        name="failures",
        title="Failures and warnings, by reason",
        caption="Wrong and inaccurate cases, those that were not measured, and those whose "
        "numbers may be less certain than their intervals. Cases out of guarantee are no "
        "failures: the table of all cases has them. The last column is Python that runs the "
        "simplest of the failing cases by itself and prints its errors.",
        columns=columns("What", "Reason", "Implementations", "Cases#", "To see it"),
        rows=tuple(_reason_row(data, kind, own) for (kind, _), own in ordered[:_MOST_REASONS]),
        is_folded=len(found) > _MOST_OPEN,
    )


def _reason_row(
    data: PageData, kind: Status | WarningKind, reasons: dict[int, str]
) -> tuple[Cell, ...]:
    """Return the first reason, how many are like it, where they are, and the simplest case."""
    others = len(set(reasons.values())) - 1
    cases = [data.records[index].case for index in reasons]
    dtypes = grouped((label_of((case.implementation, case.mode)), case.dtype) for case in cases)
    names = (f"{label}: {', '.join(dict.fromkeys(own))}" for label, own in dtypes.items())
    simplest = min(cases, key=unusual)
    is_bad = isinstance(kind, Status) and (kind.is_incorrect or kind.is_failure)
    return (
        pill(kind) if isinstance(kind, Status) else Cell(in_words(kind)),
        Cell(
            next(iter(reasons.values())) or "no reason was recorded",
            note=f"and {others:,} like it" if others else "",
            is_long=True,
        ),
        Cell("\n".join(names), is_long=True),
        number(f"{len(reasons):,}"),
        Cell(python_line(simplest) if is_bad else DASH, is_long=True, is_code=is_bad),
    )


# --- how it was measured --------------------------------------------------------------------------

_METHOD = (
    "Error: the distance from the exact result for the inputs as rounded to the dtype, in units in "
    "the last place (ulp) at the scale of the element's row or column; 0.5 is correctly rounded. "
    "Each result is held to a bound that follows from the algorithm that the implementation "
    "declares. A larger error is inaccurate if it is within the bound of the same algorithm with "
    "statistics or sums in a narrower dtype, or with sums added one after the other; otherwise it "
    "is wrong. Where there is no error bound, the case is out of "
    "guarantee: that is not a pass, however small the error.",
    "Latency: the median over epochs of the epoch's 10 % quantile; the inputs get a new place in "
    "memory in every epoch. The implementation, the reference and a copy of the same bytes are "
    "timed in turn, and relative speeds compare times of the same epochs.",
    f"Choice: the fastest eligible candidate. {WIDENED_TEXT} If intervals overlap, accuracy "
    f"decides between those within {percent_text(CLOSE_RATIO - 1)} of the fastest, then memory. A "
    "candidate is disqualified if it has no interval, was wrong or inaccurate in any case, or was "
    "out of guarantee or not measured where another was ok. If every candidate is out of "
    "guarantee in a case, the case disqualifies none; a note below the name counts such cases.",
    "Memory: as the allocator counts it, during one call, beyond the inputs, with the results.",
    "Numbers are rounded; the CSV of all cases and the results file have all digits.",
)


def environment_and_method(data: PageData) -> Iterator[Block]:
    """Show the method, the environments and the runs."""
    yield from map(Text, _METHOD)
    for letter, own in data.environments.items():
        title = f"Environment {letter}, fingerprint {own.fingerprint}"
        yield Facts(title, tuple(_facts(own)))
    yield from (Facts(f"Run {run.name}", tuple(_facts(run))) for run in data.runs)


_WRITE: dict[str, Callable[[Any], str]] = {
    "_bytes": bytes_text, "_s": seconds_text, "_ratio": percent_text,
    "packages": lambda pairs: ", ".join(" ".join(pair) for pair in pairs),
    "gpus": lambda gpus: "; ".join(
        ", ".join(f"{name} {text}" for name, text in _facts(gpu)) for gpu in gpus
    ),
}  # fmt: skip
"""How a fact is written, by its name or the unit at its end; others as they are."""


def _facts(found: Environment | Gpu | Run) -> Iterator[tuple[str, str]]:
    """Yield what is known of a machine or a run, by the names of the fields."""
    for field in fields(found):
        value = getattr(found, field.name)
        if value not in {None, (), ""}:
            end = next((end for end in _WRITE if field.name.endswith(end)), "")
            name = field.name.removesuffix(end) if end.startswith("_") else field.name
            yield in_words(name), _WRITE.get(end, str)(value)


def terms(_: PageData) -> Iterator[Block]:
    """Define the terms that captions use."""
    yield Facts("From the glossary", tuple(definitions().items()), is_glossary=True)


# --- the cases as the page's script reads them: columns, dictionary-encoded, in JSON --------------

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
            for name in ("hidden", "error_abs", *numbers)
            if shown[name].notna().any()
        },
    }


def command_rest(record: Record) -> str:
    """Return the options that a command for one case needs beyond the axes in columns.

    ``layernorm-bench run -i NAME --shape S --dtype D --distribution X --direction P`` and these
    options measure the case again, and measure the same of it.
    """
    words = command_options(record.case, without=_IN_ID)
    if record.status.is_measured:
        measured = [part for part in Measurement if getattr(record, part) is not None]
        words.append(f"--measure {','.join(dict.fromkeys([Measurement.ERRORS, *measured]))}")
    if record.latency is not None and record.latency.processes > 1:
        words.append(f"--processes {record.latency.processes}")
    return " ".join(words)


def _encoded(column: pd.Series) -> dict[str, Any]:
    codes, words = pd.factorize(column)
    return {"words": [str(word) for word in words], "codes": codes.tolist()}


def _plain(value: float) -> float | str | None:
    """Return a number as JSON can hold it: None where not measured, a text where infinite."""
    number = float(value)  # a column without a gap may be of integers
    if not isfinite(number):
        return None if isnan(number) else str(number)
    return int(number) if number.is_integer() and abs(number) < 1e15 else number
