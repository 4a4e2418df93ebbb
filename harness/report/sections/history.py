"""How cases changed over the runs of a folder: change points, trends, noise."""

from __future__ import annotations

from functools import partial

from harness.records.text import count, percent_text
from harness.regression.history.runs import History
from harness.regression.history.series import Series, Trend, TrendChange, TrendMetric, series_of
from harness.regression.history.text import UNITS, change_text, notes_of, value_text
from harness.report.content import (
    Block,
    Cell,
    Column,
    FigureBlock,
    Panel,
    Table,
    Text,
    name_of,
    number,
)
from harness.report.figures.history import BAND_SPREADS, history_figure
from harness.report.frame import Findings
from harness.report.quantities import DASH

__all__ = ["how_it_changed"]

_METRICS = tuple(metric for metric in TrendMetric if metric is not TrendMetric.TIME)
_MOST_PANELS = 12  # trade-off: each takes 10 kB
_MOST_ROWS = 200  # trade-off: each takes 0.3 kB, and more are read by a program


def how_it_changed(findings: Findings) -> tuple[Block, ...]:
    """Show the changes in a folder of runs, and the trend of each case's speed."""
    history = findings.history
    if history is None:
        return ()
    trends = [series_of(history, metric) for metric in _METRICS]
    speeds = trends[_METRICS.index(TrendMetric.SPEED)]
    first, last = history.runs[0], history.runs[-1]
    intro = (
        f"{count(len(history.runs), 'run')}, from {(first.committed or first.started).date()} "
        f"({first.label}) to {(last.committed or last.started).date()} ({last.label}), in the "
        "order of their commits. The other sections are of the latest run of each environment. "
        "Speeds are relative to the reference, which is timed in turn with each case."
    )
    blocks: list[Block] = [
        Text(intro),
        *(Text(note[0].upper() + note[1:]) for note in notes_of(history, speeds)),
    ]
    blocks.append(_changes(trends))
    shown = [series for series in speeds.series if len(series.points) > 1][:_MOST_PANELS]
    if shown:
        blocks.append(_figures(history, speeds, shown))
    blocks.append(_all_series(speeds))
    return tuple(blocks)


def _changes(trends: list[Trend]) -> Block:
    found = [
        (trend.metric, series, change)
        for trend in trends
        for series in trend.series
        for change in series.changes
        if value_text(trend.metric, change.before) != value_text(trend.metric, change.after)
    ]
    if not found:
        return Text("No change was found in any series.")
    rows = tuple(_change_row(*each) for each in found[:_MOST_ROWS])
    left_out = f" {len(found) - len(rows):,} more are left out." if len(found) > len(rows) else ""
    return Table(
        name="changes",
        title=f"{count(len(found), 'change')}",
        caption="The cause is one of the commits after the first named, up to and including the "
        "second. Where a change is hardly larger than the noise, it may be one or two runs away. "
        "Changes of speed are found by PELT (Killick et al. 2012, as ruptures implements it); "
        f"other metrics repeat exactly, to the digits shown.{left_out}",
        columns=(
            Column("Case"),
            Column("Metric"),
            Column("Change"),
            Column("Commits"),
            Column("Files"),
        ),
        rows=rows,
    )


def _change_row(metric: TrendMetric, series: Series, change: TrendChange) -> tuple[Cell, ...]:
    return (
        Cell(series.case.id, is_long=True),
        Cell(metric.replace("-", " ")),
        Cell(change_text(metric, change), is_long=True, is_strong=change.is_worse),
        Cell(change.commits, link=change.first.commit_url),
        Cell(f"{change.last.name} to {change.first.name}", is_long=True),
    )


def _figures(history: History, trend: Trend, shown: list[Series]) -> Block:
    others = len(trend.series) - len(shown)
    text = (
        "Each point is a run, with the interval of its measurement. The line is the median between "
        f"changes, and the band {BAND_SPREADS:g} standard deviations of the noise between runs. A "
        "dashed line is a change point. The interval of a run of one process does not include the "
        "differences between processes."
    )
    if others:
        text += f" {count(others, 'other series', 'other series')}, with less change, are below."
    return FigureBlock(
        title="Speed relative to the reference, run by run",
        caption=text,
        panels=tuple(
            Panel(
                name_of("history", series.case.id, series.environment),
                f"History of {series.case.id}",
                partial(
                    history_figure,
                    title=series.case.id,
                    unit="speed",
                    history=history,
                    series=series,
                ),
            )
            for series in shown
        ),
        is_narrow=True,
    )


def _all_series(trend: Trend) -> Block:
    rows = tuple(
        (
            Cell(series.case.id, note=f"environment {series.environment}", is_long=True),
            number(f"{len(series.points)}", note=f"{series.gaps} missing" if series.gaps else ""),
            number(value_text(trend.metric, series.points[0].value.value)),
            number(value_text(trend.metric, series.points[-1].value.value)),
            number(DASH if series.spread is None else f"±{percent_text(series.spread)}"),
            number(f"{len(series.changes)}"),
        )
        for series in trend.series[:_MOST_ROWS]
    )
    if not rows:
        return Text("No case has a speed relative to a reference.")
    left_out = len(trend.series) - len(rows)
    return Table(
        name="series",
        title=f"Every series of speed: {len(trend.series):,}",
        caption=f"{UNITS[trend.metric].capitalize()}. Runs that cannot be compared, such as of "
        "another machine, have a series of their own."
        + (f" {left_out:,} more: `layernorm-bench history DIR --json`." if left_out else ""),
        columns=(
            Column("Case"),
            Column("Runs", is_number=True),
            Column("First", is_number=True),
            Column("Last", is_number=True),
            Column("Noise between runs", is_number=True),
            Column("Changes", is_number=True),
        ),
        rows=rows,
        is_folded=True,
    )
