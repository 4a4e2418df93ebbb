"""What was measured, and how: every case, failures, warnings, the method, machines, terms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from harness.cases.axes import python_line, unusual
from harness.records import BAD_FIRST, Environment, Gpu, Run, Status, WarningKind
from harness.records.text import bytes_text, count, in_words, percent_text, seconds_text
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
from harness.report.embedded import case_data, script_json
from harness.report.frame import PageData, groups
from harness.selection import CLOSE_RATIO

__all__ = ["all_cases", "environment_and_method", "failures_and_warnings", "terms"]

_MOST_OPEN = 12  # trade-off: a longer table is folded
_MOST_REASONS = 100  # trade-off: each takes 0.5 kB, and the table of all cases has the others

_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?:e[+-]?\d+)?\b", re.IGNORECASE)


def all_cases(data: PageData) -> tuple[Block, ...]:
    """Show every case of the run, measured or not, to be filtered, drawn, sorted and downloaded."""
    found = case_data(data)
    table = CaseTable(found["count"], script_json(found))
    if found["count"] == len(data.cases):
        return (table,)
    files = f": {', '.join(data.files)}" if data.files else ""
    text = (
        f"{count(len(data.cases), 'case')} are too many for a page. Below are {found['count']:,}, "
        "the worst of each shape and input distribution. The results file has every case"
        f"{files}."
    )
    return (Text(text), table)


def failures_and_warnings(data: PageData) -> tuple[Block, ...]:
    """List what is wrong, was not measured or has a warning, by reason, the worst first."""
    found: dict[tuple[Status | WarningKind, str], dict[int, str]] = {}
    for index, record in enumerate(data.records):
        reasons: list[tuple[Status | WarningKind, str]] = [
            (warning.kind, warning.advice) for warning in record.warnings
        ]
        if record.status is Status.WRONG or not record.status.is_measured:
            reasons.append((record.status, record.reason))
        for kind, reason in reasons:
            found.setdefault((kind, _NUMBER.sub("#", reason)), {})[index] = reason
    blocks: list[Block] = []
    if data.missing:
        blocks.append(
            Text(
                f"{count(data.missing, 'case')} of {data.planned:,} planned have no record: the "
                "run was cut short. To continue it, repeat its command with --resume."
            )
        )
    if not found:
        return (*blocks, Text("Every case with a record was measured: none is wrong, none warns."))
    order = [*BAD_FIRST, *WarningKind]
    ordered = sorted(found.items(), key=lambda item: (order.index(item[0][0]), -len(item[1])))
    table = Table(
        name="failures",
        title="Failures and warnings, by reason",
        caption="Wrong cases, those that were not measured, and those whose numbers may be less "
        "certain than their intervals. Cases out of guarantee are no failures: the table of all "
        "cases has them. The last column is Python that runs the simplest of the failing cases by "
        "itself and prints its errors.",
        columns=columns("What", "Reason", "Implementations", "Cases#", "To see it"),
        rows=tuple(_reason_row(data, kind, own) for (kind, _), own in ordered[:_MOST_REASONS]),
        is_folded=len(found) > _MOST_OPEN,
    )
    return (*blocks, table)


def _reason_row(
    data: PageData, kind: Status | WarningKind, reasons: dict[int, str]
) -> tuple[Cell, ...]:
    """Return the first reason, how many are like it, where they are, and the simplest case."""
    others = len(set(reasons.values())) - 1
    names = "\n".join(
        f"{label}: {', '.join(own['dtype'].unique())}"
        for (label,), own in groups(data.cases.iloc[list(reasons)], "label")
    )
    simplest = min((data.records[index].case for index in reasons), key=unusual)
    is_bad = kind is Status.WRONG or (isinstance(kind, Status) and kind.is_failure)
    return (
        pill(kind) if isinstance(kind, Status) else Cell(in_words(kind)),
        Cell(
            next(iter(reasons.values())) or "no reason was recorded",
            note=f"and {others:,} like it" if others else "",
            is_long=True,
        ),
        Cell(names, is_long=True),
        number(f"{len(reasons):,}"),
        Cell(python_line(simplest) if is_bad else DASH, is_long=True, is_code=is_bad),
    )


# --- how it was measured --------------------------------------------------------------------------

_METHOD = (
    "Error: the distance from the exact result for the inputs as rounded to the dtype, in units in "
    "the last place (ulp) at the scale of the element's row or column; 0.5 is correctly rounded. "
    "Each result is held to a bound that follows from the algorithm that the implementation "
    "declares; a larger error is wrong. Where there is no error bound, the case is out of "
    "guarantee: that is not a pass, however small the error.",
    "Latency: the median over epochs of the epoch's 10 % quantile; the inputs get a new place in "
    "memory in every epoch. The implementation, the reference and a copy of the same bytes are "
    "timed in turn, and relative speeds compare times of the same epochs.",
    f"Choice: the fastest eligible candidate. {WIDENED_TEXT} If intervals overlap, accuracy "
    f"decides between those within {percent_text(CLOSE_RATIO - 1)} of the fastest, then memory. A "
    "candidate is disqualified if it has no interval, was wrong in any case, or was out of "
    "guarantee or not measured where another was ok. If every candidate is out of guarantee in a "
    "case, the case disqualifies none; a note below the name counts such cases.",
    "Memory: as the allocator counts it, during one call, beyond the inputs, with the results.",
    "Numbers are rounded; the CSV of all cases and the results file have all digits.",
)


def environment_and_method(data: PageData) -> tuple[Block, ...]:
    """Show the method, the environments and the runs."""
    blocks: list[Block] = [Text(paragraph) for paragraph in _METHOD]
    for letter, own in data.environments.items():
        title = f"Environment {letter}, fingerprint {own.fingerprint}"
        blocks.append(Facts(title, _facts(own)))
    blocks += [Facts(f"Run {run.name}", _facts(run)) for run in data.runs]
    return tuple(blocks)


_WRITE: dict[str, Callable[[Any], str]] = {
    "_bytes": bytes_text, "_s": seconds_text, "_ratio": percent_text,
    "packages": lambda pairs: ", ".join(" ".join(pair) for pair in pairs),
    "gpus": lambda gpus: "; ".join(
        ", ".join(f"{name} {text}" for name, text in _facts(gpu)) for gpu in gpus
    ),
}  # fmt: skip
"""How a fact is written, by its name or the unit at its end; others as they are."""


def _facts(found: Environment | Gpu | Run) -> tuple[tuple[str, str], ...]:
    """Return what is known of a machine or a run, by the names of the fields."""
    facts = []
    for field in fields(found):
        value = getattr(found, field.name)
        if value not in {None, (), ""}:
            end = next((end for end in _WRITE if field.name.endswith(end)), "")
            name = field.name.removesuffix(end) if end.startswith("_") else field.name
            facts.append((in_words(name), _WRITE.get(end, str)(value)))
    return tuple(facts)


def terms(_: PageData) -> tuple[Block, ...]:
    """Define the terms that captions use."""
    return (Facts("From the glossary", tuple(definitions().items()), is_glossary=True),)
