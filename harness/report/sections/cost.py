"""The cost of a call per shape: time relative to a copy, memory, and instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isnan
from typing import Any

import pandas as pd

from harness.records import Mode
from harness.records.text import bytes_text, count, seconds_text, speed_text
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
    rounded,
)
from harness.report.figures import MOST_BARS, memory_figure
from harness.report.figures.theme import series_variable
from harness.report.frame import PageData, combinations, groups

__all__ = ["instructions", "memory", "speed_against_a_copy"]


def speed_against_a_copy(data: PageData) -> tuple[Block, ...]:
    """Show the time of a copy of the same bytes as a share of the time of each call."""
    known = data.cases[data.cases["copy_ratio"].notna()]
    if not len(known):
        return (Text("No copy was timed with the cases."),)
    caption = (
        "Time of the fastest copy of the same number of bytes, divided by the time of the call. "
        "The two are timed in turn, with the caches in the same state. At 100 % a call is limited "
        "by memory bandwidth only."
    )
    if known["cold_s"].notna().any():
        caption += " Second line: share and time of cold calls, whose inputs are not in the cache."

    def cell(row: Any) -> Cell:
        cold = ""
        if not isnan(row.cold_s):
            share = "" if isnan(row.cold_copy_ratio) else f"{row.cold_copy_ratio:.0%}, "
            cold = f"cold {share}{seconds_text(row.cold_s)}"
        return number(f"{row.copy_ratio:.0%}", note=cold, title=seconds_text(row.latency_s))

    return _by_shape(known, "copy", "latency_s", "Share of a copy's speed", caption, cell)


def memory(data: PageData) -> tuple[Block, ...]:
    """Show the peak memory of a call, the memory saved for the backward, and operators."""
    cases = data.cases
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


def _memory_cell(row: Any) -> Cell:
    if isnan(row.peak_bytes):
        return number("not counted", title=row.memory_not_counted)
    notes = []
    if not isnan(row.saved_bytes):
        per_row = f" ({bytes_text(row.saved_bytes / row.rows)} per row)" if row.rows else ""
        notes.append(f"saves {bytes_text(row.saved_bytes)}{per_row}")
    if not isnan(row.operators) and row.mode != Mode.COMPILED:  # which cannot be counted
        notes.append(count(int(row.operators), "operator"))
    peak = bytes_text(row.peak_bytes)
    # a case without elements has no results
    text = speed_text(row.peak_ratio) if row.peak_ratio > 0 else peak
    return number(text, note=", ".join(notes), title=peak)


def _memory_figures(known: pd.DataFrame) -> Iterator[FigureBlock]:
    """Yield a figure for each device: of the direction that saves memory, and the largest shape."""
    for (device,), rows in groups(known, "device"):
        saving = rows[rows["saved_bytes"].notna()]
        chosen = saving if len(saving) else rows
        for axis in ("direction", "dtype"):
            chosen = chosen[chosen[axis] == chosen[axis].min()]
        chosen = chosen.sort_values(["elements", "peak_bytes"], ascending=False, kind="stable")
        chosen = chosen[chosen["shape"] == chosen["shape"].iloc[0]].drop_duplicates("label")
        least = chosen["peak_bytes"] / chosen["peak_ratio"]
        shown = chosen.assign(saved_ratio=chosen["saved_bytes"] / least)
        shown = shown.sort_values(["peak_ratio", "saved_ratio"], kind="stable")
        few = shown.head(MOST_BARS)
        is_cut = len(shown) > len(few)
        cut = f" These are the leanest {len(few)} of {len(shown):,}." if is_cut else ""
        title = ", ".join(map(str, shown.iloc[0][["direction", "dtype", "shape"]]))
        whole = f"Memory against the least possible: {device}, {title}"
        draw = partial(memory_figure, title=title, rows=few)
        yield FigureBlock(
            title=whole,
            caption="1 is the size of the results, the least that a call can allocate; the least "
            "that it can save is 0, if the backward computes mean and variance again. The shape is "
            f"the largest that was measured; the tables have the others.{cut}",
            panels=(Panel(name_of("memory against the least", str(device)), whole, draw),),
            legend=(
                LegendEntry("peak beyond the inputs", series_variable(0), mark="▬"),
                LegendEntry("saved for the backward", series_variable(1), mark="◆"),
            ),
            is_wide=True,
        )


def instructions(data: PageData) -> tuple[Block, ...]:
    """Show how many instructions a call executes, if they were counted."""
    known = data.cases[data.cases["instructions"].notna()]
    caption = (
        "Instructions of one call in user space, with AVX2 kernels on every processor. The count "
        "does not depend on other work on the machine, on caches or on memory."
    )

    def cell(row: Any) -> Cell:
        return number(rounded(row.instructions), title=f"{row.instructions:,.0f}")

    title = "Instructions of a call"
    return _by_shape(known, "instructions", "instructions", title, caption, cell)


def _by_shape(
    rows: pd.DataFrame, name: str, by: str, title: str, caption: str, cell: Callable[[Any], Cell]
) -> tuple[Table, ...]:
    """Return one table per device and direction; a cell shows the case with the largest ``by``."""
    tables: list[Table] = []
    for (device, direction), group in groups(rows, "device", "direction"):
        shapes = list(group.sort_values("elements", kind="stable")["shape"].unique())
        most = group.sort_values(by, ascending=False, kind="stable")
        most = most.drop_duplicates(["label", "dtype", "shape"])
        cells = {(row.dtype, row.label, row.shape): cell(row) for row in most.itertuples()}
        lines = tuple(
            (
                Cell(label),
                Cell(dtype),
                *(cells.get((dtype, label, shape), number(DASH)) for shape in shapes),
            )
            for dtype, label in combinations(group, "dtype", "label")
        )
        table = Table(
            name=name_of(name, str(device), str(direction)),
            title=f"{title}: {device}, {direction}",
            caption=caption,
            columns=columns("Implementation", "dtype", *(f"{shape}#" for shape in shapes)),
            rows=lines,
            is_folded=bool(tables),
        )
        tables.append(table)
    return tuple(tables)
