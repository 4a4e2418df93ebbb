"""What was measured, and how: every case, failures, warnings, the method, machines, terms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from harness.cases.axes import python_line, unusual
from harness.records import Environment, Gpu, Run, Status
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
from harness.report.frame import BAD_LAST, PageData, groups
from harness.selection import CLOSE_RATIO

__all__ = ["all_cases", "environment_and_method", "terms", "warnings", "what_failed"]

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


def what_failed(data: PageData) -> tuple[Block, ...]:
    """List the wrong cases and those that were not measured, by reason, the worst first."""
    found: dict[tuple[Status, str], list[int]] = {}
    for index, record in enumerate(data.records):
        if record.status is Status.WRONG or not record.status.is_measured:
            found.setdefault((record.status, _NUMBER.sub("#", record.reason)), []).append(index)
    blocks: list[Block] = []
    if data.missing:
        blocks.append(
            Text(
                f"{count(data.missing, 'case')} of {data.planned:,} planned have no record: the "
                "run was cut short. To continue it, repeat its command with --resume."
            )
        )
    if not found:
        return (*blocks, Text("Every case with a record was measured, and none is wrong."))
    rows = []
    for (status, _), own in sorted(
        found.items(), key=lambda item: (-BAD_LAST.index(item[0][0]), -len(item[1]))
    ):
        simplest = min((data.records[index] for index in own), key=lambda one: unusual(one.case))
        is_odd = status is Status.WRONG or status.is_failure
        rows.append((
            pill(status),
            *_reasons(data, own, [data.records[index].reason for index in own]),
            number(f"{len(own):,}"),
            Cell(python_line(simplest.case) if is_odd else DASH, is_long=True, is_code=is_odd),
        ))
    table = Table(
        name="failed",
        title=f"{count(sum(map(len, found.values())), 'case')}, by reason",
        caption="Wrong cases, and those that were not measured; cases out of guarantee are no "
        "failures, and the table of all cases has them. The last column is Python that runs the "
        "simplest of the cases by itself and prints its errors.",
        columns=columns("Status", "Reason", "Implementations", "Cases#", "To see it"),
        rows=tuple(rows[:_MOST_REASONS]),
        is_folded=len(rows) > _MOST_OPEN,
    )
    return (*blocks, table)


def _reasons(data: PageData, rows: list[int], reasons: list[str]) -> tuple[Cell, Cell]:
    """Return the first reason, how many differ from it, and the implementations and dtypes."""
    others = len(set(reasons)) - 1
    note = f"and {others:,} like it" if others else ""
    cases = data.cases.iloc[rows]
    names = {
        str(label): ", ".join(own["dtype"].unique()) for (label,), own in groups(cases, "label")
    }
    of = "\n".join(f"{label}: {dtypes}" for label, dtypes in names.items())
    reason = reasons[0] or "no reason was recorded"
    return Cell(reason, note=note, is_long=True), Cell(of, is_long=True)


def warnings(data: PageData) -> tuple[Block, ...]:
    """List the measurement warnings, by kind."""
    found: dict[str, dict[int, str]] = {}
    for index, record in enumerate(data.records):
        for warning in record.warnings:
            found.setdefault(warning.kind, {})[index] = warning.advice
    if not found:
        return (Text("No measurement has a warning."),)
    table = Table(
        name="warnings",
        title="Warnings, by kind",
        caption="The numbers of these cases may be less certain than their intervals.",
        columns=columns("Warning", "What was seen, and what to do", "Implementations", "Cases#"),
        rows=tuple(
            (
                Cell(in_words(kind)),
                *_reasons(data, list(advice), list(advice.values())),
                number(f"{len(advice):,}"),
            )
            for kind, advice in found.items()
        ),
    )
    return (table,)


# --- how it was measured --------------------------------------------------------------------------

_METHOD = (
    "Error: the distance from the exact result for the inputs as rounded to the dtype, in units in "
    "the last place (ulp) at the scale of the element's row or column; 0.5 is correctly rounded. "
    "Each result is held to a bound that follows from the algorithm that the implementation "
    "declares; a larger error is wrong. Where there is no error bound, the case is out of "
    "guarantee: that is not a pass, however small the error.",
    "Latency: several calls are timed between two readings of the clock. The inputs get a new "
    "place in memory in every epoch. The estimate is the median over epochs of the epoch's 10 % "
    "quantile. The implementation, the reference and a copy of the same bytes are timed in turn, "
    "so that a disturbance affects all of them. Relative speeds compare times of the same epochs.",
    f"Choice: the fastest eligible candidate. {WIDENED_TEXT} If intervals overlap, accuracy "
    f"decides between those within {percent_text(CLOSE_RATIO - 1)} of the fastest, then memory. A "
    "candidate is disqualified if it has no interval, was wrong in any case, or was out of "
    "guarantee or not measured where another was ok. If every candidate is out of guarantee in a "
    "case, the case disqualifies none; a note below the name counts such cases.",
    "Memory: as the allocator counts it, during one call, beyond the inputs, with the results.",
    "Numbers are rounded: in tables to three digits (memory to four), in the maps of speeds to two "
    "decimals, or to two digits below 0.1. The CSV of all cases and the results file have all "
    "digits.",
)


def environment_and_method(data: PageData) -> tuple[Block, ...]:
    """Show the method, what each implementation declares, the environments and the runs."""
    blocks: list[Block] = [Text(paragraph) for paragraph in _METHOD]
    declared = Counter(
        tuple(
            map(
                in_words,
                (record.case.implementation, *(getattr(errors, name) for name in _DECLARED)),
            )
        )
        for record in data.records
        if (errors := record.errors)
    )
    if declared:
        blocks.append(
            Table(
                name="declarations",
                title="Declarations, which the bounds follow from",
                caption="As the implementation declares; one that declares nothing is held to "
                "those of native.",
                columns=columns(
                    "Implementation", "Algorithm", "Sums", "Statistics in", "Exact reference",
                    "Cases#",
                ),
                rows=tuple(
                    (*map(Cell, key), number(f"{cases:,}")) for key, cases in declared.items()
                ),
            )
        )  # fmt: skip
    for letter, own in data.environments.items():
        title = f"Environment {letter}, fingerprint {own.fingerprint}"
        blocks.append(Facts(title, _facts(own)))
    blocks += [Facts(f"Run {run.name}", _facts(run)) for run in data.runs]
    return tuple(blocks)


_DECLARED = ("algorithm", "reduction", "accumulate_dtype", "oracle")
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
