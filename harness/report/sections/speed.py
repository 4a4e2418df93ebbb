"""How fast: latency against size, and speed relative to native."""

from __future__ import annotations

from functools import partial
from math import log2
from typing import Any

import numpy as np
import pandas as pd

from harness.records import Clock, Latency, Status
from harness.records.text import count
from harness.report.content import (
    MOST_DRAWN,
    Block,
    Cell,
    Column,
    FigureBlock,
    LegendEntry,
    Panel,
    Table,
    Text,
    left_out,
    name_of,
    number,
)
from harness.report.figures import latency_figure, speed_map
from harness.report.figures.speed_map import LIMIT_LOG2, speed_word
from harness.report.frame import Findings
from harness.report.quantities import DASH
from harness.report.slices import combinations, groups, leading, legend, view_of
from harness.selection.times import REFERENCE_NAME

__all__ = ["latency_against_size", "speed_relative_to_native"]

_CLOCKS = {
    Clock.THREAD_CPU.value: "the calling thread's CPU time",
    Clock.PROCESS_CPU.value: "the CPU time of all threads",
    Clock.WALL.value: "the wall clock",
    Clock.CUDA_EVENT.value: "CUDA events",
}
_MEASURED = [each.value for each in Status if each.is_measured]


def latency_against_size(findings: Findings) -> tuple[Block, ...]:
    """Show the time of a call by the size of its input."""
    cases = findings.cases
    timed = cases[(cases["latency_s"] > 0) & (cases["elements"] > 0)]
    if not len(timed):
        return (Text("No latency was measured."),)
    figures: list[FigureBlock] = []
    shown: set[str] = set()
    drawn_so_far, undrawn = 0, []
    for (direction, place), group in groups(timed, "direction", "place"):
        panels: list[Panel] = []
        others = 0
        for (dtype,), rows in groups(group, "dtype"):
            drawn, rest = leading(rows, ["distribution", "setting"])
            others += rest
            where = (str(place), str(direction), str(dtype))
            panels += _latency_panels(drawn, where, findings.implementations)
        if figures and drawn_so_far + len(panels) > MOST_DRAWN:
            undrawn += panels
            continue
        drawn_so_far += len(panels)
        entries = legend(group, findings.implementations)
        if group["copy_ratio"].notna().any():
            entries += (LegendEntry("a copy of the same bytes", "var(--muted)", mark="┈"),)
        figures.append(
            FigureBlock(
                title=f"Latency against size: {place}, {direction}",
                caption=_latency_caption(findings, group, others),
                panels=tuple(panels),
                legend=entries,
                is_folded=place in shown,
            )
        )
        shown.add(place)
    return (*figures, *left_out(undrawn))


def _latency_panels(
    rows: pd.DataFrame, where: tuple[str, str, str], implementations: tuple[str, ...]
) -> list[Panel]:
    """Return a panel of the warm times, and one of the cold times if there are any."""
    place, direction, dtype = where
    warm = {"time_s": "latency_s", "low_s": "latency_low_s", "high_s": "latency_high_s"}
    cold = {"time_s": "cold_s", "low_s": "cold_low_s", "high_s": "cold_high_s"}
    panels = []
    for state, columns in (("warm", warm), ("cold", cold)):
        times = rows.assign(**{new: rows[old] for new, old in columns.items()})
        if state == "cold":
            times["copy_ratio"] = rows["cold_copy_ratio"]
        times = times[times["time_s"] > 0]
        if not len(times):
            continue
        both = rows["cold_s"].notna().any()
        title = f"{dtype}, {state} calls" if both else dtype
        name = name_of("latency", place, direction, dtype, "cold" if state == "cold" else "")
        draw = partial(
            latency_figure, title=title, rows=_one_per_size(times), implementations=implementations
        )
        view = view_of(place, direction, dtype, x="elements", y=columns["time_s"])
        title = f"Latency against size: {place}, {direction}, {title}"
        panels.append(Panel(name, title, draw, view))
    return panels


def _one_per_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest of cases of equal size: a line has one value at each size."""
    slowest = rows.sort_values("time_s", ascending=False, kind="stable")
    return slowest.drop_duplicates(["implementation", "mode", "elements"]).sort_index()


def _latency_caption(findings: Findings, group: pd.DataFrame, others: int) -> str:
    """Return how these times were measured."""
    latencies = [findings.records[row].latency for row in group.index]
    measured = [each for each in latencies if each is not None]
    one_process = all(each.processes == 1 for each in measured)
    text = (
        f"Median over epochs of the epoch's 10 % quantile, by {_listed(measured, 'clock')}; caches "
        f"{_listed(measured, 'cache')}, allocation {_listed(measured, 'allocation')}. The dotted "
        "line is a copy of the same bytes, the ceiling: no LayerNorm can be below it. The share of "
        "the copy's speed that is reached at the largest size is written beside each name. The "
        "band, where it is wider than its line, is the 95 % interval"
    )
    text += (
        " within one process; another process may be outside it."
        if one_process
        else " across the processes that were sampled."
    )
    if others:
        text += f" {count(others, 'case')} with other inputs or settings are only in the table."
    return f"{text} Of two shapes of equal size the slower is shown."


def _listed(latencies: list[Latency], field: str) -> str:
    values = dict.fromkeys(str(getattr(each, field)) for each in latencies)
    return " or ".join(_CLOCKS.get(each, each) for each in values)


def speed_relative_to_native(findings: Findings) -> tuple[Block, ...]:
    """Show a map of implementations and shapes for each dtype: above 1 is faster than native."""
    cases = findings.cases
    timed = cases[cases["ratio"].notna()]
    if not len(timed):
        return (Text(f"No time relative to {REFERENCE_NAME} was measured."),)
    tables: list[Table] = []
    for (place, direction), group in groups(timed, "place", "direction"):
        for (dtype,), rows in groups(group, "dtype"):
            whole = cases[
                (cases["place"] == place)
                & (cases["direction"] == direction)
                & (cases["dtype"] == dtype)
            ]
            speeds, failed = _speed_tables(rows, whole)
            title = f"{place}, {direction}, {dtype}"
            name = name_of("speed", str(place), str(direction), str(dtype))
            draw = partial(speed_map, title=title, speeds=speeds, failed=failed)
            tables.append(
                Table(
                    name=name,
                    title=f"Speed relative to {REFERENCE_NAME}: {title}",
                    caption=_MAP_CAPTION,
                    columns=(
                        Column("Implementation"),
                        *(Column(str(shape), is_number=True) for shape in speeds.columns),
                    ),
                    rows=tuple(
                        (
                            Cell(str(label)),
                            *map(_speed_cell, speeds.loc[label], failed.loc[label]),
                        )
                        for label in speeds.index
                    ),
                    is_folded=bool(tables),
                    drawings=(Panel(name, f"Speed relative to {REFERENCE_NAME}: {title}", draw),),
                )
            )
    return tuple(tables)


_MAP_CAPTION = (
    "Timed in turn with native, run eagerly. 2.00 is twice as fast, 0.50 half as fast: blue is "
    "faster, orange slower. ✕: a result was not within its bound. A dash: not in the sweep, or not "
    "timed for a reason that is under “Not measured” or “Warnings”. A cell of several cases shows "
    "their geometric mean."
)


def _speed_cell(speed: Any, is_bad: Any) -> Cell:
    if np.isnan(speed):
        return number(DASH)
    heat = max(-1.0, min(1.0, log2(speed) / LIMIT_LOG2))
    return Cell(speed_word(speed, bool(is_bad)), is_number=True, heat=round(heat, 2))


def _speed_tables(timed: pd.DataFrame, whole: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return implementations by shapes: how fast, and whether a result was not ok.

    An implementation that should have been timed and was not has a row of dashes; one that was
    measured for its errors only has no row.
    """
    shown = whole[
        whole["ratio"].notna() | ~whole["status"].isin(_MEASURED) | (whole["warnings"] != "")
    ]
    labels = [str(label) for (label,) in combinations(shown, "label")]
    shapes = list(timed.sort_values("elements", kind="stable")["shape"].unique())
    rows = pd.DataFrame({
        "label": timed["label"].astype(str),
        "shape": timed["shape"],
        "log_speed": -np.log(timed["ratio"]),
        "is_bad": timed["status"] != Status.OK,
    })
    by_cell = rows.groupby(["label", "shape"], sort=False)
    speeds = np.exp(by_cell["log_speed"].mean()).unstack("shape")
    failed = by_cell["is_bad"].max().unstack("shape", fill_value=False)
    speeds = speeds.reindex(index=labels, columns=shapes)
    failed = failed.reindex(index=labels, columns=shapes, fill_value=False)
    return speeds, failed
