"""The cost of a call per shape: time relative to a copy, memory, and instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isnan
from typing import Any

import pandas as pd

from harness.records import Mode
from harness.records.text import bytes_text, count, seconds_text
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
)
from harness.report.figures import memory_figure
from harness.report.figures.memory import MOST_BARS
from harness.report.figures.theme import series_variable
from harness.report.frame import Findings
from harness.report.quantities import DASH, rounded, speed
from harness.report.slices import combinations, groups

__all__ = ["instructions", "memory", "speed_against_a_copy"]


def speed_against_a_copy(findings: Findings) -> tuple[Block, ...]:
    """Show the time of a copy of the same bytes as a share of the time of each call."""
    cases = findings.cases
    known = cases[cases["copy_ratio"].notna()]
    if not len(known):
        return (Text("No copy was timed with the cases."),)
    caption = (
        "Time of the fastest copy of the same number of bytes, divided by the time of the call. "
        "The two are timed in turn, with the caches in the same state. At 100 % a call is limited "
        "by memory bandwidth only."
    )
    if known["cold_s"].notna().any():
        caption += " Second line: share and time of cold calls, whose inputs are not in the cache."
    return _by_shape(known, "copy", "latency_s", "Share of a copy's speed", caption, _copy_cell)


def memory(findings: Findings) -> tuple[Block, ...]:
    """Show the peak memory of a call, the memory saved for the backward, and operators."""
    cases = findings.cases
    known = cases[cases["peak_bytes"].notna() | (cases["memory_not_counted"] != "")]
    if not len(known):
        return (Text("No memory was measured."),)
    caption = (
        "Peak memory beyond the inputs, as a multiple of the size of the results, which any "
        "implementation must allocate. Second line: the memory saved for the backward beyond "
        "inputs and y, in all and per row, and how many operators an eager call runs, not counting "
        "those that PyTorch's own operators call."
    )
    title = "Peak memory of a call"
    tables = _by_shape(known, "memory", "peak_bytes", title, caption, _memory_cell)
    return (*_memory_figures(cases[cases["peak_ratio"] > 0]), *tables)


def _memory_figures(known: pd.DataFrame) -> Iterator[FigureBlock]:
    """Yield a figure for each place: of the direction that saves memory, and the largest shape."""
    for (place,), rows in groups(known, "place"):
        saving = rows[rows["saved_bytes"].notna()]
        chosen = saving if len(saving) else rows
        for axis in ("direction", "dtype"):
            chosen = chosen[chosen[axis] == chosen[axis].min()]
        chosen = chosen.sort_values(["elements", "peak_bytes"], ascending=False, kind="stable")
        chosen = chosen[chosen["shape"] == chosen["shape"].iloc[0]].drop_duplicates("label")
        least = chosen["peak_bytes"] / chosen["peak_ratio"]
        shown = chosen.assign(saved_ratio=chosen["saved_bytes"] / least)
        shown = shown.sort_values(["peak_ratio", "saved_ratio"], kind="stable")
        first = shown.iloc[0]
        title = f"{first['direction']}, {first['dtype']}, {first['shape']}"
        few = shown.head(MOST_BARS)
        cut = (
            f" These are the leanest {len(few)} of {len(shown):,}." if len(shown) > len(few) else ""
        )
        yield FigureBlock(
            title=f"Memory against the least possible: {place}, {title}",
            caption=f"{_MEMORY_CAPTION}{cut}",
            panels=(
                Panel(
                    name_of("memory against the least", str(place)),
                    f"Memory against the least possible: {place}, {title}",
                    partial(memory_figure, title=title, rows=few),
                ),
            ),
            legend=(
                LegendEntry("peak beyond the inputs", series_variable(0), mark="▬"),
                LegendEntry("saved for the backward", series_variable(1), mark="◆"),
            ),
            is_wide=True,
        )


_MEMORY_CAPTION = (
    "1 is the size of the results, the least that a call can allocate; the least that it can save "
    "is 0, if the backward computes mean and variance again. The shape is the largest that was "
    "measured; the tables have the others."
)


def instructions(findings: Findings) -> tuple[Block, ...]:
    """Show how many instructions a call executes, if they were counted."""
    cases = findings.cases
    known = cases[cases["instructions"].notna()]
    if not len(known):
        return ()  # most runs do not count them
    caption = (
        "Instructions of one call in user space, with AVX2 kernels on every processor. The count "
        "does not depend on other work on the machine, on caches or on memory."
    )
    return _by_shape(
        known, "instructions", "instructions", "Instructions of a call", caption, _count_cell
    )


def _by_shape(
    rows: pd.DataFrame, name: str, by: str, title: str, caption: str, cell: Callable[[Any], Cell]
) -> tuple[Table, ...]:
    """Return one table per place and direction; a cell shows the case with the largest ``by``."""
    tables: list[Table] = []
    for (place, direction), group in groups(rows, "place", "direction"):
        shapes = list(group.sort_values("elements", kind="stable")["shape"].unique())
        most = group.sort_values(by, ascending=False, kind="stable")
        most = most.drop_duplicates(["label", "dtype", "shape"])
        cells = {(row.dtype, row.label, row.shape): cell(row) for row in most.itertuples()}
        lines = combinations(group, "dtype", "label")
        columns = (Column(shape, is_number=True) for shape in shapes)
        tables.append(
            Table(
                name=name_of(name, str(place), str(direction)),
                title=f"{title}: {place}, {direction}",
                caption=caption,
                columns=(Column("Implementation"), Column("dtype"), *columns),
                rows=tuple(
                    (
                        Cell(label),
                        Cell(dtype),
                        *(cells.get((dtype, label, shape), number(DASH)) for shape in shapes),
                    )
                    for dtype, label in lines
                ),
                is_folded=bool(tables),
            )
        )
    return tuple(tables)


def _copy_cell(row: Any) -> Cell:
    cold = ""
    if not isnan(row.cold_s):
        share = "" if isnan(row.cold_copy_ratio) else f"{row.cold_copy_ratio:.0%}, "
        cold = f"cold {share}{seconds_text(row.cold_s)}"
    return number(f"{row.copy_ratio:.0%}", note=cold, title=seconds_text(row.latency_s))


def _memory_cell(row: Any) -> Cell:
    if isnan(row.peak_bytes):
        return number("not counted", title=row.memory_not_counted)
    has_ratio = row.peak_ratio > 0  # a case without elements has no results
    kept = []
    if not isnan(row.saved_bytes):
        per_row = f" ({bytes_text(row.saved_bytes / row.rows)} per row)" if row.rows else ""
        kept = [f"saves {bytes_text(row.saved_bytes)}{per_row}"]
    # operators of compiled code cannot be counted
    is_counted = not isnan(row.operators) and row.mode != Mode.COMPILED
    counted = [count(int(row.operators), "operator")] if is_counted else []
    return number(
        speed(row.peak_ratio) if has_ratio else bytes_text(row.peak_bytes),
        note=", ".join(kept + counted),
        title=bytes_text(row.peak_bytes),
    )


def _count_cell(row: Any) -> Cell:
    return number(rounded(row.instructions), title=f"{row.instructions:,.0f}")
