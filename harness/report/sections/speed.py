"""How fast and how hungry: latency against size, memory."""

from __future__ import annotations

from math import isnan
from typing import Any

import pandas as pd

from harness.records import Clock, Latency
from harness.report.content import Block, Cell, Column, Figure, Key, Panel, Table, Text, number
from harness.report.figures import latency_panel
from harness.report.frame import Findings
from harness.report.quantities import bytes_text, count, seconds, speed
from harness.report.slices import colours, groups, keys, leading

__all__ = ["latency_against_size", "memory", "speed_against_a_copy"]


_CLOCKS = {
    Clock.THREAD_CPU.value: "the calling thread's CPU time",
    Clock.WALL.value: "the wall clock",
    Clock.CUDA_EVENT.value: "CUDA events",
}


def latency_against_size(findings: Findings) -> tuple[Block, ...]:
    """Show the time of a call as the input grows."""
    cases = findings.cases
    timed = cases[(cases["latency_s"] > 0) & (cases["elements"] > 0)]
    if not len(timed):
        return (Text("No latency was measured."),)
    palette = colours(findings.implementations)
    figures: list[Figure] = []
    shown: set[str] = set()
    for (place, direction), group in groups(timed, "place", "direction"):
        panels: list[Panel] = []
        left_out = 0
        for (dtype,), rows in groups(group, "dtype"):
            alike, others = leading(rows, ["distribution", "setting"])
            left_out += others
            alike = _one_per_size(alike)
            name = f"l{len(figures)}-{len(panels)}"
            panels.append(latency_panel(name, str(dtype), alike, palette))
        has_copy = group["copy_ratio"].notna().any()
        copy = (Key("a copy of the same bytes", "var(--muted)", mark="┈"),) if has_copy else ()
        figures.append(
            Figure(
                title=f"Latency against size: {place}, {direction}",
                caption=_latency_caption(findings, group, left_out),
                panels=tuple(panels),
                keys=(*keys(group, findings.implementations), *copy),
                is_folded=place in shown,
            )
        )
        shown.add(place)
    return tuple(figures)


def _one_per_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Where shapes are equally large keep the slowest: a line has one height at each place."""
    slowest = rows.sort_values("latency_s", ascending=False, kind="stable")
    return slowest.drop_duplicates(["implementation", "mode", "elements"]).sort_index()


def _latency_caption(findings: Findings, group: pd.DataFrame, left_out: int) -> str:
    """Say how these times were taken, from the records themselves."""
    latencies = [findings.records[row].latency for row in group.index]
    measured = [each for each in latencies if each is not None]
    one_process = all(each.processes == 1 for each in measured)
    text = (
        f"Median over epochs of the epoch's 10 % quantile, by {_listed(measured, 'clock')}; caches "
        f"{_listed(measured, 'cache')}, allocation {_listed(measured, 'allocation')}. The band, "
        "where it is wider than its line, is the 95 % interval"
    )
    text += (
        " within one process: another process may lie outside it."
        if one_process
        else " over the processes that the samples come from."
    )
    slow = sum(not each.converged for each in measured)
    if slow:
        text += f" {count(slow, 'case')} did not become as certain as asked before time was up."
    if left_out:
        text += (
            f" {count(left_out, 'case')} with other inputs or settings not drawn: see the table."
        )
    return f"{text} Where two shapes are equally large, the slower is shown."


def _listed(latencies: list[Latency], field: str) -> str:
    values = dict.fromkeys(str(getattr(each, field)) for each in latencies)
    return " or ".join(_CLOCKS.get(each, each) for each in values)


def speed_against_a_copy(findings: Findings) -> tuple[Block, ...]:
    """Show how near each call comes to the speed at which its bytes can be copied."""
    cases = findings.cases
    known = cases[cases["copy_ratio"].notna()]
    if not len(known):
        return (Text("No copy was timed beside the cases."),)
    tables: list[Table] = []
    for (place, direction), rows in groups(known, "place", "direction"):
        shapes = list(rows.sort_values("elements", kind="stable")["shape"].unique())
        slowest = rows.sort_values("latency_s", ascending=False, kind="stable")
        slowest = slowest.drop_duplicates(["label", "dtype", "shape"])
        cells = {(row.dtype, row.label, row.shape): _copy_cell(row) for row in slowest.itertuples()}
        lines = [name for name, _ in groups(rows, "dtype", "label")]
        has_cold = bool(rows["cold_s"].notna().any())
        tables.append(
            Table(
                title=f"Share of a copy's speed: {place}, {direction}",
                caption="Time that the bytes of the case take to copy, by the fastest copy there "
                "is, timed in turn with it and in the same state of the caches, over the time "
                "taken: at 100 % a call is as fast as its bytes can move."
                + (" Below it the same from cold caches, and that time." if has_cold else ""),
                columns=(
                    Column("Implementation"),
                    Column("dtype"),
                    *(Column(shape, is_number=True) for shape in shapes),
                ),
                rows=tuple(
                    (
                        Cell(label),
                        Cell(dtype),
                        *(cells.get((dtype, label, shape), number("–")) for shape in shapes),
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
        cold = f"cold {share}{seconds(row.cold_s)}"
    return number(f"{row.copy_ratio:.0%}", note=cold, title=seconds(row.latency_s))


def memory(findings: Findings) -> tuple[Block, ...]:
    """Show the most memory held during a call, and what is kept for the backward."""
    cases = findings.cases
    known = cases[cases["peak_bytes"].notna()]
    if not len(known):
        return (Text("No memory was measured."),)
    tables: list[Table] = []
    for (place, direction), rows in groups(known, "place", "direction"):
        shapes = list(rows.sort_values("elements", kind="stable")["shape"].unique())
        most = rows.sort_values("peak_bytes", ascending=False, kind="stable")
        most = most.drop_duplicates(["label", "dtype", "shape"])
        cells = {(row.dtype, row.label, row.shape): _memory_cell(row) for row in most.itertuples()}
        lines = [name for name, _ in groups(rows, "dtype", "label")]
        tables.append(
            Table(
                title=f"Peak memory of a call: {place}, {direction}",
                caption="Most memory held at once beyond the inputs, as a multiple of the results, "
                "which any implementation must hold; below it what is kept for the backward beyond "
                "inputs and y.",
                columns=(
                    Column("Implementation"),
                    Column("dtype"),
                    *(Column(shape, is_number=True) for shape in shapes),
                ),
                rows=tuple(
                    (
                        Cell(label),
                        Cell(dtype),
                        *(cells.get((dtype, label, shape), number("–")) for shape in shapes),
                    )
                    for dtype, label in lines
                ),
                is_folded=bool(tables),
            )
        )
    return tuple(tables)


def _memory_cell(row: Any) -> Cell:
    has_ratio = row.peak_ratio > 0  # no elements, no results: nothing to be a multiple of
    return number(
        speed(row.peak_ratio) if has_ratio else bytes_text(row.peak_bytes),
        note="" if isnan(row.saved_bytes) else f"keeps {bytes_text(row.saved_bytes)}",
        title=bytes_text(row.peak_bytes),
    )
