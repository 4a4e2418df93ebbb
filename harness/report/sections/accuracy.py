"""How wrong: error against condition."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from harness.numerics.bound_terms import SIGNIFICAND_BITS
from harness.records import Direction, Status
from harness.records.text import in_words, ulp_text
from harness.report.content import (
    Block,
    Cell,
    Column,
    FigureBlock,
    LegendEntry,
    Panel,
    Table,
    Text,
    name_of,
    number,
    pill,
)
from harness.report.figures import BoundLine, condition_figure
from harness.report.figures.condition import CLASSES
from harness.report.figures.theme import series_variable
from harness.report.frame import Findings
from harness.report.quantities import DASH, rounded
from harness.report.slices import groups, leading, worst

__all__ = ["error_against_condition"]

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


def error_against_condition(findings: Findings) -> tuple[Block, ...]:
    """Show how the error grows with the mean of the inputs over their standard deviation."""
    cases = findings.cases
    forward = cases[(cases["direction"] == Direction.FORWARD) & cases["y_ulp"].notna()]
    if not len(forward):
        return (Text("No error of a forward pass was measured."),)
    figures: list[FigureBlock] = []
    tables: list[Table] = []
    for (place,), rows in groups(forward, "place"):
        figures += _condition_figures(str(place), rows)
        for (dtype,), own in groups(rows, "dtype"):
            tables.append(_error_table(str(place), str(dtype), own, is_folded=bool(tables)))
    if not figures:
        text = "No shape was run with two or more offsets, so there is no curve to draw."
        return (Text(text), *tables)
    return (*figures, *tables)


def _condition_figures(place: str, forward: pd.DataFrame) -> list[FigureBlock]:
    """Return a figure per dtype, of which the first alone is open: there the classes differ."""
    figures: list[FigureBlock] = []
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
        lines = worst(lines, by, "y_ulp").sort_values("condition", kind="stable")
        title = f"{dtype}, {lines['shape'].iloc[0]}"
        panel = Panel(
            name_of("error against condition", place, dtype),
            f"Error against condition: {place}, {title}",
            partial(
                condition_figure,
                title=f"Error of y against condition: {title}",
                lines=lines,
                points=points,
                bounds=_bounds(lines),
            ),
        )
        caption = _CONDITION_CAPTION
        if len(finite) < len(rows):
            caption += " Constant rows have an infinite condition and are only in the tables."
        figures.append(
            FigureBlock(
                title=f"Error of y against condition: {place}, forward, {title}",
                caption=caption,
                panels=(panel,),
                conclusion=_conclusion(lines),
                legend=_class_legend(lines),
                is_wide=True,
                is_folded=bool(figures),
            )
        )
    return figures


def _conclusion(lines: pd.DataFrame) -> str:
    """Say which implementations were right at every offset, and how far the others were."""
    kept: list[str] = []
    limits: list[tuple[float, str]] = []
    for (label,), own in groups(lines, "label"):
        failing = own[own["status"] != Status.OK]
        if len(failing):
            limits.append((failing["condition"].min(), str(label)))
        else:
            kept.append(str(label))
    sentences = []
    if kept:
        worst_ulp = lines[lines["label"].isin(kept)]["y_ulp"].max()
        sentences.append(
            f"Right at every condition number: {', '.join(kept)} (up to {ulp_text(worst_ulp)} off)."
        )
    if limits:
        names = (f"{label} at condition {rounded(limit)}" for limit, label in sorted(limits))
        sentences.append(f"First failure measured: {', '.join(names)}.")
    return " ".join(sentences)


def _bounds(lines: pd.DataFrame) -> list[BoundLine]:
    """Return the bounds that the implementations declare, in the order of the classes."""
    known = lines[lines["algorithm"].isin(CLASSES) & lines["statistics"].isin(SIGNIFICAND_BITS)]
    keys = known[["algorithm", "reduction", "statistics", "hidden", "dtype"]].drop_duplicates()
    bounds = [
        BoundLine(str(algorithm), str(reduction), str(statistics), int(hidden), str(dtype))
        for algorithm, reduction, statistics, hidden, dtype in keys.to_numpy()
    ]
    return sorted(bounds, key=lambda each: (CLASSES.index(each.algorithm), each.reduction))


def _class_legend(lines: pd.DataFrame) -> tuple[LegendEntry, ...]:
    present = set(lines["algorithm"])
    return (
        *(
            LegendEntry(in_words(name), series_variable(place), series=f"series-{place}", mark=mark)
            for place, (name, mark) in enumerate(zip(CLASSES, "▼■◆●✚", strict=True))
            if name in present
        ),
        LegendEntry("bound of the class", "var(--muted)"),
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
    firsts = worst(rows[_OF_ERRORS], ["label", "distribution"], "y_ulp")
    in_series = _is_series(firsts)
    conditions = rows.groupby("distribution")["condition"].max()
    distributions = sorted(
        conditions.index, key=lambda name: (not _is_offset(name), conditions[name], name)
    )
    failing = rows.loc[rows["status"] != Status.OK, ["label", "distribution", "condition"]]
    failing = failing[_is_series(failing) & np.isfinite(failing["condition"])]
    first_failures = failing.groupby("label", observed=True)["condition"].min()
    lines = []
    for (label,), own in groups(firsts, "label"):
        found = {row.distribution: _error_cell(row) for row in own.itertuples()}
        order = _growth(own[in_series[own.index]], SIGNIFICAND_BITS.get(dtype))
        first = rounded(first_failures[label]) if label in first_failures else "none"
        cells = (found.get(name, number(DASH)) for name in distributions)
        lines.append((Cell(str(label)), number(order), number(first), *cells))
    return Table(
        name=name_of("errors", place, dtype),
        title=f"Largest error of y in ulp: {place}, forward, {dtype}",
        caption="The worst case of all shapes. ✕ wrong, ○ out of guarantee. Order: 1 if the error "
        "grows like the condition number, 2 if like its square, 0 if not at all; a dash where "
        "rounding hides it. First failure measured: the least condition number of an offset "
        "at which a case was wrong or out of guarantee.",
        columns=(
            Column("Implementation"),
            Column("Order", is_number=True),
            Column("First failure measured", is_number=True),
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


def _growth(series: pd.DataFrame, bits: int | None) -> str:
    """Return the order of the error's growth: the rounded slope of log error over log condition.

    Only errors below 2**bits ulp count: larger ones have no digit left to lose.
    """
    points = sorted(zip(series["condition"], series["y_ulp"], strict=True))
    points = [each for each in points if 0 < each[0] < inf]
    return DASH if len(points) < 2 else _order(points, 2.0**bits if bits else inf)


def _order(points: list[tuple[float, float]], lost_ulp: float) -> str:
    known = [(condition, error) for condition, error in points if error < lost_ulp]
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
