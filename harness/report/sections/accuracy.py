"""How wrong: error against condition, and the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from harness.records import Direction, Status
from harness.records.text import count, in_words
from harness.report.content import (
    Block,
    Cell,
    Column,
    FigureBlock,
    LegendEntry,
    Panel,
    Table,
    Text,
    number,
    pill,
)
from harness.report.figures import condition_panel
from harness.report.frame import SIGNIFICAND_BITS, Findings
from harness.report.quantities import DASH, rounded
from harness.report.slices import colours, groups, leading, legend, worst, worst_status

__all__ = ["error_against_condition", "error_of_the_gradients"]

_GRADIENTS = ("dx", "dweight", "dbias")
_LONGEST_REASON = 170  # characters: three lines of its column; the title has all of it
_RISING = 4.0  # trade-off: errors within this factor of the least count as rounding, not growth
_MARKS = (
    LegendEntry("within its bound", "var(--muted)", mark="●"),
    LegendEntry("out of guarantee", "var(--muted)", mark="○"),
    LegendEntry("wrong", "var(--muted)", mark="✕"),
    LegendEntry("not finite", "var(--muted)", mark="▲"),
)


def error_against_condition(findings: Findings) -> tuple[Block, ...]:
    """Show how the error grows with the mean of the inputs over their standard deviation."""
    cases = findings.cases
    forward = cases[(cases["direction"] == Direction.FORWARD) & cases["y_ulp"].notna()]
    if not len(forward):
        return (Text("No error of a forward pass was measured."),)
    figures: list[FigureBlock] = []
    tables: list[Table] = []
    for (place,), rows in groups(forward, "place"):
        figure = _condition_figure(findings, str(place), rows, len(figures))
        figures += [figure] if figure else []
        for (dtype,), own in groups(rows, "dtype"):
            tables.append(_error_table(str(place), str(dtype), own, is_folded=bool(tables)))
    if not figures:
        text = "No shape was run with two or more offsets, so there is no curve to draw."
        return (Text(text), *tables)
    return (*figures, *tables)


def _condition_figure(
    findings: Findings, place: str, forward: pd.DataFrame, position: int
) -> FigureBlock | None:
    palette = colours(findings.implementations)
    panels: list[Panel] = []
    shown: list[pd.DataFrame] = []
    constant = False
    for (dtype,), rows in groups(forward, "dtype"):
        finite = rows[np.isfinite(rows["condition"]) & (rows["condition"] > 0)]
        series = finite[_is_series(finite)]
        if series["distribution"].nunique() < 2:
            continue
        lines = _fullest(series)
        here = (finite["shape"] == lines["shape"].iloc[0]) & (
            finite["setting"] == lines["setting"].iloc[0]
        )
        by = ["implementation", "mode", "distribution"]
        points = worst(finite[here & ~_is_series(finite)], by, "y_ulp")
        constant = constant or len(finite) < len(rows)
        title = f"{dtype}, {lines['shape'].iloc[0]}"
        bits = SIGNIFICAND_BITS.get(str(dtype))
        name = f"c{position}-{len(panels)}"
        lines = worst(lines, by, "y_ulp").sort_values("condition", kind="stable")
        panels.append(condition_panel(name, title, lines, points, bits, palette))
        shown += [lines, points]
    if not panels:
        return None
    caption = (
        "Lines: standard normal numbers plus a growing offset. Smaller marks: other inputs of the "
        "same shape. The condition number, sqrt(1 + mean²/variance), is that of the inputs as "
        "stored. If a line is level, the error does not depend on the offset. If it grows like the "
        "condition number, the mean is rounded to one number of the dtype. If it grows like its "
        "square, two large squares are subtracted, as in one_pass. Above the upper dashed line no "
        "digit of the result is right."
    )
    if constant:
        caption += " Constant rows have an infinite condition and are only in the tables."
    return FigureBlock(
        title=f"Error of y against condition: {place}, forward",
        caption=caption,
        panels=tuple(panels),
        legend=(*legend(pd.concat(shown), findings.implementations), *_MARKS),
    )


def _is_series(rows: pd.DataFrame) -> pd.Series:
    """Return which rows are of the distributions that differ only in their offset."""
    return (rows["distribution"] == "normal") | rows["distribution"].str.startswith("offset_")


def _fullest(series: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the shape and setting with the most offsets; of several, the largest."""
    by = ["shape", "setting"]
    offsets = series.groupby(by, sort=False)["distribution"].transform("nunique")
    fullest = series[offsets == offsets.max()]
    return leading(fullest.sort_values("elements", ascending=False, kind="stable"), by)[0]


def _error_table(place: str, dtype: str, rows: pd.DataFrame, *, is_folded: bool) -> Table:
    firsts = worst(rows, ["label", "distribution"], "y_ulp")
    conditions = rows.groupby("distribution")["condition"].max()
    distributions = sorted(
        conditions.index, key=lambda name: (not _is_offset(name), conditions[name], name)
    )
    lines = []
    for (label,), own in groups(firsts, "label"):
        found = {row.distribution: _error_cell(row) for row in own.itertuples()}
        order, limit = _growth(own[_is_series(own)], SIGNIFICAND_BITS.get(dtype))
        cells = (found.get(name, number(DASH)) for name in distributions)
        lines.append((Cell(str(label)), number(order), number(limit), *cells))
    return Table(
        title=f"Largest error of y in ulp: {place}, forward, {dtype}",
        caption="The worst case of all shapes. ✕ wrong, ○ out of guarantee. Order: 1 if the error "
        "grows like the condition number, 2 if like its square, 0 if not at all; a dash where "
        "rounding hides it. Not ok from: the least condition number of an offset at which a case "
        "was not ok.",
        columns=(
            Column("Implementation"),
            Column("Order", is_number=True),
            Column("Not ok from", is_number=True),
            *(Column(in_words(name), is_number=True) for name in distributions),
        ),
        rows=tuple(lines),
        is_folded=is_folded,
    )


def _is_offset(name: str) -> bool:
    return name == "normal" or name.startswith("offset_")


def _error_cell(row: Any) -> Cell:
    where = f"{row.shape}, condition {rounded(row.condition)}"
    return pill(row.status, rounded(row.y_ulp), title=f"{where}: {row.reason or 'ok'}")


def _growth(series: pd.DataFrame, bits: int | None) -> tuple[str, str]:
    """Return the order of the error's growth, and the least condition that was not ok.

    The order is the rounded slope of log error over log condition, where the error grows. Only
    errors below 2**bits ulp count: larger ones have no digit left to lose.
    """
    points = sorted(zip(series["condition"], series["y_ulp"], series["status"], strict=True))
    points = [each for each in points if 0 < each[0] < inf]
    if len(points) < 2:
        return DASH, DASH
    failing = [condition for condition, _, status in points if status != Status.OK]
    return _order(points, 2.0**bits if bits else inf), rounded(failing[0]) if failing else "never"


def _order(points: list[tuple[float, float, str]], lost_ulp: float) -> str:
    known = [(condition, error) for condition, error, _ in points if error < lost_ulp]
    if not known:
        return DASH
    # half an ulp is the rounding of the result itself
    floor = max(min(error for _, error in known), 0.5)
    rising = [each for each in known if each[1] > _RISING * floor]
    if not rising:
        return "0" if len(known) == len(points) else DASH
    if rising[0][0] == rising[-1][0]:
        return DASH  # one point above rounding has no slope
    logs = np.log10(np.array(rising))
    return f"{round(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))}"


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
    firsts = worst(backward, ["place", "direction", "dtype", "label"], "error_ulp")
    tables: list[Table] = []
    for (place, direction), rows in groups(joined, "place", "direction"):
        here = firsts[(firsts["place"] == place) & (firsts["direction"] == direction)]
        lines = tuple(_gradient_rows(rows, here))
        tables.append(
            Table(
                title=f"Largest error of the gradients in ulp: {place}, {direction}",
                caption="At the scale of their row or column, the worst of all shapes and inputs. "
                "✕ wrong, ○ out of guarantee. The reason is that of the worst case.",
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
    reasons = {(row.dtype, row.label): row for row in firsts.itertuples()}
    cells = {
        name: pill(worst_status(each["status"]), rounded(each["error_ulp"].max()))
        for name, each in groups(rows, "dtype", "label", "output")
    }
    cases = rows.drop_duplicates("case")
    for name, own in groups(cases, "dtype", "label"):
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
