"""How wrong the gradients are, and where native itself fails."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from typing import Any

import pandas as pd

from harness.records import Direction, Record, Status
from harness.records.reproduction import python_line, unusual
from harness.records.text import count
from harness.report.content import Block, Cell, Column, Table, Text, name_of, number, pill
from harness.report.frame import Findings
from harness.report.quantities import DASH, rounded
from harness.report.slices import groups, worst, worst_status
from harness.selection.times import REFERENCE_NAME

__all__ = ["error_of_the_gradients", "where_native_itself_fails"]

_GRADIENTS = ("dx", "dweight", "dbias")
_LONGEST_REASON = 170  # characters: three lines of its column; the title has all of it


def error_of_the_gradients(findings: Findings) -> tuple[Block, ...]:
    """Show how far dx, dweight and dbias are from the exact gradients."""
    cases = findings.cases
    backward = cases[(cases["direction"] != Direction.FORWARD) & cases["error_ulp"].notna()]
    if not len(backward):
        return (Text("No gradient was checked: the run has no measured backward case."),)
    joined = findings.outputs.merge(
        backward.drop(columns="error_ulp").rename(columns={"status": "case_status"}),
        left_on="case",
        right_index=True,
    )
    largest = joined.groupby("case")["error_ulp"].max()
    backward = backward.assign(error_ulp=largest.reindex(backward.index))
    firsts = worst(backward, ["place", "direction", "dtype", "label"], "error_ulp")
    tables: list[Table] = []
    for (place, direction), rows in groups(joined, "place", "direction"):
        here = firsts[(firsts["place"] == place) & (firsts["direction"] == direction)]
        lines = tuple(_gradient_rows(rows, here))
        tables.append(
            Table(
                name=name_of("gradients", str(place), str(direction)),
                title=f"Largest error of the gradients in ulp: {place}, {direction}",
                caption="At the scale of their row or column, the worst of all shapes and inputs. "
                "✕ wrong, ○ out of guarantee. The reason is that of the wrong case, else of the "
                "case out of guarantee, with the largest error.",
                columns=(
                    Column("Implementation"),
                    Column("dtype"),
                    *(Column(each, is_number=True) for each in _GRADIENTS),
                    Column("Not ok in", is_number=True),
                    Column("Reason"),
                ),
                rows=lines,
                is_folded=bool(tables),
            )
        )
    return (Text(_gradient_summary(backward)), *tables)


def _gradient_rows(rows: pd.DataFrame, firsts: pd.DataFrame) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each dtype and implementation.

    Args:
        rows: outputs of one device and direction, with the columns of their cases.
        firsts: for each implementation the case that needs the most attention.
    """
    shown = firsts[["dtype", "label", "reason", "shape", "distribution"]]
    reasons = {(row.dtype, row.label): row for row in shown.itertuples()}
    cells = {
        name: pill(worst_status(each["status"]), rounded(each["error_ulp"].max()))
        for name, each in groups(
            rows[["dtype", "label", "output", "status", "error_ulp"]], "dtype", "label", "output"
        )
    }
    cases = rows.drop_duplicates("case")
    for name, own in groups(cases[["dtype", "label", "case_status"]], "dtype", "label"):
        failing = int((own["case_status"] != Status.OK).sum())
        first: Any = reasons[name]
        yield (
            Cell(str(name[1])),
            Cell(str(name[0])),
            *(cells.get((*name, output), number(DASH)) for output in _GRADIENTS),
            number(f"{failing} of {len(own)}"),
            Cell(
                shorten(first.reason, _LONGEST_REASON, placeholder=" …"),
                title=first.reason,
                note=f"{first.shape}, {first.distribution}" if failing else "",
                is_long=True,
            ),
        )


def _gradient_summary(backward: pd.DataFrame) -> str:
    wrong = backward[backward["status"] == Status.WRONG]
    if not len(wrong):
        return f"None of {count(len(backward), 'case')} with gradients is outside its bound."
    names = [
        f"{label} in {', '.join(rows['dtype'].unique())}"
        for (label,), rows in groups(wrong, "label")
    ]
    return (
        f"{len(wrong):,} of {count(len(backward), 'case')} with gradients "
        f"{'is' if len(wrong) == 1 else 'are'} outside the bound: {'; '.join(names)}."
    )


def where_native_itself_fails(findings: Findings) -> tuple[Block, ...]:
    """Name the cases in which the reference is wrong or fails, each with a line that shows it."""
    cases = findings.cases
    own = cases[cases["implementation"] == REFERENCE_NAME]
    if not len(own):
        return (Text(f"{REFERENCE_NAME} was not run."),)
    failing = own[own["status"].isin(_FAILING)]
    if not len(failing):
        return (Text(f"{REFERENCE_NAME} is not wrong in any of its {count(len(own), 'case')}."),)
    rows = []
    by = ("place", "label", "direction", "dtype", "status")
    for (place, label, direction, dtype, status), group in groups(failing, *by):
        record = _plainest([findings.records[row] for row in group.index])
        of = own[
            (own["place"] == place)
            & (own["label"] == label)
            & (own["direction"] == direction)
            & (own["dtype"] == dtype)
            & ~own["status"].eq(Status.UNSUPPORTED)
        ]
        rows.append((
            Cell(f"{label}, {direction}, {dtype}", note=str(place)),
            pill(str(status)),
            number(f"{len(group):,} of {len(of):,}"),
            Cell(record.reason, note=f"at {record.case.id}", is_long=True),
            Cell(python_line(record.case), is_long=True, is_code=True),
        ))
    caption = (
        "The simplest failing case of each dtype and direction. The last column is Python that "
        "runs the case by itself and prints the errors. Cases out of guarantee are no failures; "
        "the tables of errors have them."
    )
    table = Table(
        name="native-fails",
        title=f"{count(len(failing), 'case')} in which {REFERENCE_NAME} is wrong or does not run",
        caption=caption,
        columns=(
            Column("What"),
            Column("Status"),
            Column("Cases", is_number=True),
            Column("What was found"),
            Column("To see it"),
        ),
        rows=tuple(rows),
    )
    return (table,)


_FAILING = [each.value for each in Status if each is Status.WRONG or each.is_failure]


def _plainest(records: list[Record]) -> Record:
    return min(records, key=lambda record: unusual(record.case))
