"""How wrong: error against condition, gradients, and where native itself fails."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import inf
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from harness.cases.axes import python_line, unusual
from harness.numerics.bound_terms import SIGNIFICAND_BITS
from harness.records import Direction, Status
from harness.records.text import count, in_words, ulp_text
from harness.report.document import (
    DASH,
    Block,
    Cell,
    FigureBlock,
    LegendEntry,
    Panel,
    Table,
    Text,
    columns,
    name_of,
    number,
    pill,
    rounded,
)
from harness.report.figures import CLASSES, BoundLine, condition_figure
from harness.report.figures.theme import series_variable
from harness.report.frame import PageData, groups, leading, worst, worst_status
from harness.selection import REFERENCE_NAME

__all__ = ["error_against_condition", "error_of_the_gradients", "where_native_itself_fails"]

_OF_ERRORS = ["label", "distribution", "shape", "condition", "y_ulp", "status", "reason"]
_RISING = 4.0  # trade-off: errors within this factor of the least count as rounding, not growth
_CONDITION_CAPTION = (
    "Marks: the largest error that was measured, of standard normal numbers plus a growing offset; "
    "smaller marks are other inputs of the same shape. Broad lines: the error bound of each class "
    "of algorithms, for any rows (of shifted: with no element beyond 5 standard deviations). Each "
    "ends at its limit in theory, the condition number written above: beyond it the algorithm may "
    "lose every digit, so that a mark there is out of guarantee. A mark above the line of its "
    "class is wrong. The condition number of a row, sqrt(1 + mean²/variance), is about its mean "
    "over its standard deviation. Above the upper dashed line no digit of the result is right."
)


def error_against_condition(data: PageData) -> tuple[Block, ...]:
    """Show how the error grows with the mean of the inputs over their standard deviation."""
    cases = data.cases
    forward = cases[(cases["direction"] == Direction.FORWARD) & cases["y_ulp"].notna()]
    if not len(forward):
        return (Text("No error of a forward pass was measured."),)
    figures: list[FigureBlock] = []
    tables: list[Table] = []
    for (device,), of_device in groups(forward, "device"):
        is_first = True  # it alone is open: there the classes differ
        for (dtype,), rows in groups(of_device, "dtype"):
            if figure := _condition_figure(str(device), str(dtype), rows, is_folded=not is_first):
                figures.append(figure)
                is_first = False
            tables.append(_error_table(str(device), str(dtype), rows, is_folded=bool(tables)))
    if not figures:
        text = "No shape was run with two or more offsets, so there is no curve to draw."
        return (Text(text), *tables)
    return (*figures, *tables)


def _condition_figure(
    device: str, dtype: str, rows: pd.DataFrame, *, is_folded: bool
) -> FigureBlock | None:
    finite = rows[np.isfinite(rows["condition"]) & (rows["condition"] > 0)]
    series = finite[_is_series(finite)]
    if series["distribution"].nunique() < 2:
        return None
    # the shape and setting with the most offsets; of several, the largest
    of_case = ["shape", "setting"]
    offsets = series.groupby(of_case, sort=False)["distribution"].transform("nunique")
    fullest = series[offsets == offsets.max()]
    lines = leading(fullest.sort_values("elements", ascending=False, kind="stable"), of_case)[0]
    shape, setting = lines["shape"].iloc[0], lines["setting"].iloc[0]
    here = (finite["shape"] == shape) & (finite["setting"] == setting)
    by = ["implementation", "mode", "distribution"]
    points = worst(finite[here & ~_is_series(finite)], by, "y_ulp")
    lines = worst(lines, by, "y_ulp").sort_values("condition", kind="stable")
    title = f"Error of y against condition: {dtype}, {shape}"
    draw = partial(condition_figure, title=title, lines=lines, points=points, bounds=_bounds(lines))
    constant = " Constant rows have an infinite condition and are only in the tables."
    present = set(lines["algorithm"])
    return FigureBlock(
        title=f"Error of y against condition: {device}, forward, {dtype}, {shape}",
        caption=_CONDITION_CAPTION + (constant if len(finite) < len(rows) else ""),
        panels=(
            Panel(
                name_of("error against condition", device, dtype),
                f"Error against condition: {device}, {dtype}, {shape}",
                draw,
            ),
        ),
        conclusion=_conclusion(lines),
        legend=(
            *(
                LegendEntry(in_words(name), series_variable(i), series=f"series-{i}", mark=mark)
                for i, (name, mark) in enumerate(zip(CLASSES, "▼■◆●✚", strict=True))
                if name in present
            ),
            LegendEntry("bound of the class", "var(--muted)"),
        ),
        is_wide=True,
        is_folded=is_folded,
    )


def _conclusion(lines: pd.DataFrame) -> str:
    """Say which implementations were right at every offset, and how far the others were."""
    failing = lines[lines["status"] != Status.OK]
    limits = failing.groupby("label", observed=True)["condition"].min()
    kept = lines[~lines["label"].isin(limits.index)]
    sentences = []
    if len(kept):
        names = ", ".join(str(label) for (label,), _ in groups(kept, "label"))
        sentences.append(
            f"Right at every condition number: {names} (up to {ulp_text(kept['y_ulp'].max())} off)."
        )
    if len(limits):
        first = sorted((limit, str(label)) for label, limit in limits.items())
        names = ", ".join(f"{label} at condition {rounded(limit)}" for limit, label in first)
        sentences.append(f"First failure measured: {names}.")
    return " ".join(sentences)


def _bounds(lines: pd.DataFrame) -> list[BoundLine]:
    """Return the bounds that the implementations declare, in the order of the classes."""
    known = lines[lines["algorithm"].isin(CLASSES) & lines["statistics"].isin(SIGNIFICAND_BITS)]
    keys = known[["algorithm", "reduction", "statistics", "hidden", "dtype"]].drop_duplicates()
    bounds = [BoundLine(*key) for key in keys.astype(object).to_numpy()]
    return sorted(bounds, key=lambda bound: (CLASSES.index(bound.algorithm), bound.reduction))


def _is_series(rows: pd.DataFrame) -> pd.Series:
    """Return which rows are of the distributions that differ only in their offset."""
    return rows["distribution"].map(_is_offset).astype(bool)


def _is_offset(distribution: str) -> bool:
    return distribution == "normal" or distribution.startswith("offset_")


def _error_table(device: str, dtype: str, rows: pd.DataFrame, *, is_folded: bool) -> Table:
    firsts = worst(rows[_OF_ERRORS], ["label", "distribution"], "y_ulp")
    conditions = rows.groupby("distribution")["condition"].max()
    distributions = sorted(
        conditions.index, key=lambda name: (not _is_offset(name), conditions[name], name)
    )
    failing = rows[(rows["status"] != Status.OK) & _is_series(rows)]
    failing = failing[np.isfinite(failing["condition"])]
    first_failures = failing.groupby("label", observed=True)["condition"].min()
    lines = []
    for (label,), own in groups(firsts, "label"):
        found = {row.distribution: _error_cell(row) for row in own.itertuples()}
        order = _growth(own[_is_series(own)], SIGNIFICAND_BITS.get(dtype))
        first = rounded(first_failures[label]) if label in first_failures else "none"
        cells = (found.get(name, number(DASH)) for name in distributions)
        lines.append((Cell(str(label)), number(order), number(first), *cells))
    return Table(
        name=name_of("errors", device, dtype),
        title=f"Largest error of y in ulp: {device}, forward, {dtype}",
        caption="The worst case of all shapes. ✕ wrong, ○ out of guarantee. Order: 1 if the error "
        "grows like the condition number, 2 if like its square, 0 if not at all; a dash where "
        "rounding hides it. First failure measured: the least condition number of an offset "
        "at which a case was wrong or out of guarantee.",
        columns=columns(
            "Implementation", "Order#", "First failure measured#",
            *(f"{in_words(name)}#" for name in distributions),
        ),
        rows=tuple(lines),
        is_folded=is_folded,
    )  # fmt: skip


def _error_cell(row: Any) -> Cell:
    where = f"{row.shape}, condition {rounded(row.condition)}"
    return pill(row.status, rounded(row.y_ulp), title=f"{where}: {row.reason or 'ok'}")


def _growth(series: pd.DataFrame, bits: int | None) -> str:
    """Return the order of the error's growth: the rounded slope of log error over log condition.

    Only errors below 2**bits ulp count: larger ones have no digit left to lose.
    """
    points = sorted(zip(series["condition"], series["y_ulp"], strict=True))
    points = [point for point in points if 0 < point[0] < inf]
    return DASH if len(points) < 2 else _order(points, 2.0**bits if bits else inf)


def _order(points: list[tuple[float, float]], lost_ulp: float) -> str:
    known = [(condition, error) for condition, error in points if error < lost_ulp]
    if not known:
        return DASH
    # half an ulp is the rounding of the result itself
    floor = max(min(error for _, error in known), 0.5)
    rising = [point for point in known if point[1] > _RISING * floor]
    if not rising:
        return "0" if len(known) == len(points) else DASH
    if rising[0][0] == rising[-1][0]:
        return DASH  # one point above rounding has no slope
    logs = np.log10(np.array(rising))
    return f"{round(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))}"


# --- gradients -----------------------------------------------------------------------------------

_GRADIENTS = ("dx", "dweight", "dbias")
_LONGEST_REASON = 170  # characters: three lines of its column; the title has all of it


def error_of_the_gradients(data: PageData) -> tuple[Block, ...]:
    """Show how far dx, dweight and dbias are from the exact gradients."""
    cases = data.cases
    backward = cases[(cases["direction"] != Direction.FORWARD) & cases["error_ulp"].notna()]
    if not len(backward):
        return (Text("No gradient was checked: the run has no measured backward case."),)
    outputs = data.outputs.merge(
        backward.drop(columns="error_ulp").rename(columns={"status": "case_status"}),
        left_on="case",
        right_index=True,
    )
    largest = outputs.groupby("case")["error_ulp"].max()
    backward = backward.assign(error_ulp=largest.reindex(backward.index))
    firsts = worst(backward, ["device", "direction", "dtype", "label"], "error_ulp")
    tables: list[Table] = []
    for (device, direction), rows in groups(outputs, "device", "direction"):
        here = firsts[(firsts["device"] == device) & (firsts["direction"] == direction)]
        table = Table(
            name=name_of("gradients", str(device), str(direction)),
            title=f"Largest error of the gradients in ulp: {device}, {direction}",
            caption="At the scale of their row or column, the worst of all shapes and inputs. "
            "✕ wrong, ○ out of guarantee. The reason is that of the wrong case, else of the "
            "case out of guarantee, with the largest error.",
            columns=columns(
                "Implementation", "dtype", *(f"{output}#" for output in _GRADIENTS), "Not ok in#",
                "Reason",
            ),
            rows=tuple(_gradient_rows(rows, here)),
            is_folded=bool(tables),
        )  # fmt: skip
        tables.append(table)
    wrong = backward[backward["status"] == Status.WRONG]
    of_all = f"{count(len(backward), 'case')} with gradients"
    if not len(wrong):
        return (Text(f"None of {of_all} is outside its bound."), *tables)
    names = "; ".join(
        f"{label} in {', '.join(rows['dtype'].unique())}"
        for (label,), rows in groups(wrong, "label")
    )
    verb = "is" if len(wrong) == 1 else "are"
    return (Text(f"{len(wrong):,} of {of_all} {verb} outside the bound: {names}."), *tables)


def _gradient_rows(rows: pd.DataFrame, firsts: pd.DataFrame) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each dtype and implementation.

    Args:
        rows: outputs of one device and direction, with the columns of their cases.
        firsts: for each implementation the case that needs the most attention.
    """
    shown = firsts[["dtype", "label", "reason", "shape", "distribution"]]
    reasons = {(row.dtype, row.label): row for row in shown.itertuples()}
    cells = {
        name: pill(worst_status(own["status"]), rounded(own["error_ulp"].max()))
        for name, own in groups(
            rows[["dtype", "label", "output", "status", "error_ulp"]], "dtype", "label", "output"
        )
    }
    cases = rows.drop_duplicates("case")
    for (dtype, label), own in groups(cases[["dtype", "label", "case_status"]], "dtype", "label"):
        failing = int((own["case_status"] != Status.OK).sum())
        first: Any = reasons[dtype, label]
        yield (
            Cell(str(label)),
            Cell(str(dtype)),
            *(cells.get((dtype, label, output), number(DASH)) for output in _GRADIENTS),
            number(f"{failing} of {len(own)}"),
            Cell(
                shorten(first.reason, _LONGEST_REASON, placeholder=" …"),
                title=first.reason,
                note=f"{first.shape}, {first.distribution}" if failing else "",
                is_long=True,
            ),
        )


# --- native --------------------------------------------------------------------------------------


def where_native_itself_fails(data: PageData) -> tuple[Block, ...]:
    """Name the cases in which the reference is wrong or fails, each with a line that shows it."""
    own = data.cases[data.cases["implementation"] == REFERENCE_NAME]
    if not len(own):
        return (Text(f"{REFERENCE_NAME} was not run."),)
    failures = [status.value for status in Status if status is Status.WRONG or status.is_failure]
    is_failing = own["status"].isin(failures)
    if not is_failing.any():
        return (Text(f"{REFERENCE_NAME} is not wrong in any of its {count(len(own), 'case')}."),)
    by = ["device", "label", "direction", "dtype"]
    supported = own[own["status"] != Status.UNSUPPORTED].groupby(by, observed=True).size()
    rows = []
    for (*group, status), failing in groups(own[is_failing], *by, "status"):
        device, label, direction, dtype = group
        records = [data.records[row] for row in failing.index]
        record = min(records, key=lambda record: unusual(record.case))
        rows.append((
            Cell(f"{label}, {direction}, {dtype}", note=str(device)),
            pill(str(status)),
            number(f"{len(failing):,} of {supported[tuple(group)]:,}"),
            Cell(record.reason, note=f"at {record.case.id}", is_long=True),
            Cell(python_line(record.case), is_long=True, is_code=True),
        ))
    table = Table(
        name="native-fails",
        title=f"{count(is_failing.sum(), 'case')} in which {REFERENCE_NAME} is wrong or does not "
        "run",
        caption="The simplest failing case of each dtype and direction. The last column is Python "
        "that runs the case by itself and prints the errors. Cases out of guarantee are no "
        "failures; the tables of errors have them.",
        columns=columns("What", "Status", "Cases#", "What was found", "To see it"),
        rows=tuple(rows),
    )
    return (table,)
