"""How fast: latency against size."""

from __future__ import annotations

import pandas as pd

from harness.records import Clock, Latency
from harness.records.text import count
from harness.report.content import Block, FigureBlock, LegendEntry, Panel, Text
from harness.report.figures import latency_panel
from harness.report.frame import Findings
from harness.report.slices import colours, groups, leading, legend

__all__ = ["latency_against_size"]


_CLOCKS = {
    Clock.THREAD_CPU.value: "the calling thread's CPU time",
    Clock.PROCESS_CPU.value: "the CPU time of all threads",
    Clock.WALL.value: "the wall clock",
    Clock.CUDA_EVENT.value: "CUDA events",
}


def latency_against_size(findings: Findings) -> tuple[Block, ...]:
    """Show the time of a call by the size of its input."""
    cases = findings.cases
    timed = cases[(cases["latency_s"] > 0) & (cases["elements"] > 0)]
    if not len(timed):
        return (Text("No latency was measured."),)
    palette = colours(findings.implementations)
    figures: list[FigureBlock] = []
    shown: set[str] = set()
    for (place, direction), group in groups(timed, "place", "direction"):
        panels: list[Panel] = []
        left_out = 0
        for (dtype,), rows in groups(group, "dtype"):
            drawn, others = leading(rows, ["distribution", "setting"])
            left_out += others
            name = f"l{len(figures)}-{len(panels)}"
            panels.append(latency_panel(name, str(dtype), _one_per_size(drawn), palette))
        entries = legend(group, findings.implementations)
        if group["copy_ratio"].notna().any():
            entries += (LegendEntry("a copy of the same bytes", "var(--muted)", mark="┈"),)
        figures.append(
            FigureBlock(
                title=f"Latency against size: {place}, {direction}",
                caption=_latency_caption(findings, group, left_out),
                panels=tuple(panels),
                legend=entries,
                is_folded=place in shown,
            )
        )
        shown.add(place)
    return tuple(figures)


def _one_per_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the slowest of cases of equal size: a line has one value at each size."""
    slowest = rows.sort_values("latency_s", ascending=False, kind="stable")
    return slowest.drop_duplicates(["implementation", "mode", "elements"]).sort_index()


def _latency_caption(findings: Findings, group: pd.DataFrame, left_out: int) -> str:
    """Return how these times were measured."""
    latencies = [findings.records[row].latency for row in group.index]
    measured = [each for each in latencies if each is not None]
    one_process = all(each.processes == 1 for each in measured)
    text = (
        f"Median over epochs of the epoch's 10 % quantile, by {_listed(measured, 'clock')}; caches "
        f"{_listed(measured, 'cache')}, allocation {_listed(measured, 'allocation')}. The band, "
        "where it is wider than its line, is the 95 % interval"
    )
    text += (
        " within one process; another process may be outside it."
        if one_process
        else " across the processes that were sampled."
    )
    slow = sum(not each.converged for each in measured)
    if slow:
        text += (
            f" The interval of {count(slow, 'case')} did not become as narrow as required in time."
        )
    if left_out:
        text += f" {count(left_out, 'case')} with other inputs or settings are only in the table."
    return f"{text} Of two shapes of equal size the slower is shown."


def _listed(latencies: list[Latency], field: str) -> str:
    values = dict.fromkeys(str(getattr(each, field)) for each in latencies)
    return " or ".join(_CLOCKS.get(each, each) for each in values)
