"""How cases changed over the runs of a folder: for the terminal, the page, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any

from harness.records import Estimate
from harness.records.metrics import Metric
from harness.records.text import count, percent_text
from harness.regression.history import (
    LEAST_RUNS,
    MISSING_DETECTOR,
    TREND_METRICS,
    History,
    HistoryRun,
    Series,
    Trend,
    TrendChange,
    series_of,
)
from harness.report.document import (
    DASH,
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

if TYPE_CHECKING:
    from harness.report.frame import PageData

__all__ = ["document_of_history", "history_as_plain", "how_it_changed"]

_UNITS = {
    "speed": "speed relative to the reference; above 1 is faster",
    "time": "time per call",
    "error": "largest error of any output",
    "peak-memory": "peak memory beyond the inputs",
    "saved-memory": "memory saved for the backward",
    "operators": "operators per call",
}
_MOST_PRINTED = 50  # trade-off: a page of a terminal can be read; --json has every series
_MOST_ROWS = 200  # trade-off: each takes 0.3 kB, and more are read by a program
_MOST_PANELS = 12  # trade-off: each takes 10 kB
_ENDS = ("value", "low", "high")
_BARS = "▁▂▃▄▅▆▇█"


def document_of_history(history: History, trend: Trend) -> tuple[Block, ...]:
    """Return the trend of each series, those with changes first."""
    changed = sum(bool(series.changes) for series in trend.series)
    environments = {series.environment for series in trend.series}
    return (
        Text(f"{history.folder}: {_span(history)}, {count(len(environments), 'environment')}"),
        Text(f"{_name(trend.metric)}: {_UNITS[_name(trend.metric)]}"),
        Text(f"{changed} of {count(len(trend.series), 'series', 'series')} changed"),
        *(Text(note, "note") for note in _notes(history, trend)),
        _series_table(trend, _MOST_PRINTED, has_changes=True),
    )


def how_it_changed(data: PageData) -> tuple[Block, ...]:
    """Show the changes in a folder of runs, and the trend of each case's speed."""
    history = data.history
    if history is None:
        return ()
    trends = {
        name: series_of(history, metric) for name, metric in TREND_METRICS.items() if name != "time"
    }
    speeds = trends["speed"]
    intro = (
        f"{_span(history)}, in the order of their commits. The other sections are of the latest "
        "run of each environment. Speeds are relative to the reference, which is timed in turn "
        "with each case."
    )
    shown = [series for series in speeds.series if len(series.points) > 1][:_MOST_PANELS]
    return (
        Text(intro),
        *(Text(note[0].upper() + note[1:]) for note in _notes(history, speeds)),
        _change_table([trends[name] for name in TREND_METRICS if name in trends]),
        *([_figures(history, speeds, shown)] if shown else []),
        _series_table(speeds, _MOST_ROWS, has_changes=False)
        if speeds.series
        else Text("No case has a speed relative to a reference."),
    )


def _name(metric: Metric) -> str:
    return metric.heading("trend") or metric.name


def _span(history: History) -> str:
    first, last = (
        f"{(run.committed or run.started).date()} ({run.label})"
        for run in (history.runs[0], history.runs[-1])
    )
    return f"{count(len(history.runs), 'run')}, {first} to {last}"


def _notes(history: History, trend: Trend) -> list[str]:
    """Return what a reader must know: of the folder, and of how changes were searched."""
    notes = list(history.notes)
    if not trend.is_searched:
        notes.append(MISSING_DETECTOR)
    short = sum(len(series.points) < LEAST_RUNS for series in trend.series)
    if not trend.metric.exact and short and trend.is_searched:
        notes.append(
            f"{count(short, 'series', 'series')} of fewer than {LEAST_RUNS} comparable runs: no "
            "change points are searched there"
        )
    return notes


def _value_text(metric: Metric, value: float) -> str:
    # gates judge changes of a few percent, so a speed has three decimals
    return f"{value:.3f}" if metric.unit == "speed" else metric.write(value)


def _estimate_text(metric: Metric, value: Estimate) -> str:
    text = _value_text(metric, value.value)
    if value.low == value.high:
        return text
    return f"{text} [{_value_text(metric, value.low)}, {_value_text(metric, value.high)}]"


def _change_text(metric: Metric, change: TrendChange) -> str:
    """Return "worse by 5.1 %: 1.38 before, 1.31 after"."""
    size = ""
    if change.before > 0 and change.after > 0:
        factor = max(change.after / change.before, change.before / change.after)
        size = f" by {percent_text(factor - 1)}"
    before, after = (_value_text(metric, value) for value in (change.before, change.after))
    return f"{'worse' if change.is_worse else 'better'}{size}: {before} before, {after} after"


# --- tables and figures --------------------------------------------------------------------------


def _series_table(trend: Trend, most_rows: int, *, has_changes: bool) -> Table:
    metric = trend.metric
    has_others = len({series.environment for series in trend.series}) > 1
    rows = []
    for series in trend.series[:most_rows]:
        notes = [f"environment {series.environment}"] if has_others else []
        if has_changes:
            notes += [
                f"{_change_text(metric, change)}, in {change.commits}" for change in series.changes
            ]
        values = [point.value for point in series.points]
        rows.append((
            Cell(series.case.id, note="\n".join(notes), is_long=True),
            Cell(_bars([value.value for value in values])),
            number(_value_text(metric, values[0].value)),
            number(_estimate_text(metric, values[-1])),
            number(f"{len(values)}"),
            number(DASH if series.spread is None else f"±{percent_text(series.spread)}"),
            number(f"{len(series.changes)}"),
        ))
    left = len(trend.series) - len(rows)
    more = f" and {count(left, 'more series', 'more series')}; --case chooses, --json has all"
    return Table(
        name="series",
        title=f"Every series of {_name(metric)}: {len(trend.series):,}",
        caption="Runs that cannot be compared, such as of another machine, have a series of their "
        f"own.{more if left else ''}",
        columns=(
            Column("case"),
            Column("trend"),
            *(Column(head, is_number=True) for head in ("first", "last", "runs")),
            Column("noise between runs", is_number=True),
            Column("changes", is_number=True),
        ),
        rows=tuple(rows),
        is_folded=True,
    )


def _bars(values: Sequence[float]) -> str:
    """Return one character per value, from the lowest to the highest of the series."""
    low, high = min(values), max(values)
    if low <= 0 or log(high / low) < 0.01:  # trade-off: less than 1 % looks alike
        return _BARS[3] * len(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[round(steps * log(value / low) / log(high / low))] for value in values)


def _change_table(trends: list[Trend]) -> Block:
    found = [
        (trend.metric, series, change)
        for trend in trends
        for series in trend.series
        for change in series.changes
        if _value_text(trend.metric, change.before) != _value_text(trend.metric, change.after)
    ]
    if not found:
        return Text("No change was found in any series.")
    left = len(found) - _MOST_ROWS
    return Table(
        name="changes",
        title=f"{count(len(found), 'change')}",
        caption="The cause is one of the commits after the first named, up to and including the "
        "second. Where a change is hardly larger than the noise, it may be one or two runs away. "
        "Changes of speed are found by PELT (Killick et al. 2012, as ruptures implements it); "
        f"other metrics repeat exactly, to the digits shown.{f' {left:,} more.' * (left > 0)}",
        columns=tuple(map(Column, ("Case", "Metric", "Change", "Commits", "Files"))),
        rows=tuple(
            (
                Cell(series.case.id, is_long=True),
                Cell(_name(metric).replace("-", " ")),
                Cell(_change_text(metric, change), is_long=True, is_strong=change.is_worse),
                Cell(change.commits, link=change.first.commit_url),
                Cell(f"{change.last.path.name} to {change.first.path.name}", is_long=True),
            )
            for metric, series, change in found[:_MOST_ROWS]
        ),
    )


def _figures(history: History, trend: Trend, shown: list[Series]) -> Block:
    from harness.report.figures.plots import BAND_SPREADS, history_figure  # slow to import

    others = len(trend.series) - len(shown)
    text = (
        "Each point is a run, with the interval of its measurement. The line is the median between "
        f"changes, and the band {BAND_SPREADS:g} standard deviations of the noise between runs. A "
        "dashed line is a change point. The interval of a run of one process does not include the "
        "differences between processes."
    )
    if others:
        text += f" {count(others, 'other series', 'other series')}, with less change, are below."

    def panel(series: Series) -> Panel:
        draw = partial(
            history_figure, title=series.case.id, unit="speed", history=history, series=series
        )
        name = name_of("history", series.case.id, series.environment)
        return Panel(name, f"History of {series.case.id}", draw)

    return FigureBlock(
        title="Speed relative to the reference, run by run",
        caption=text,
        panels=tuple(map(panel, shown)),
        is_narrow=True,
    )


# --- JSON ----------------------------------------------------------------------------------------


def history_as_plain(history: History, trend: Trend) -> dict[str, Any]:
    """Return a history as values that JSON can hold."""
    return {
        "folder": str(history.folder),
        "metric": _name(trend.metric),
        "unit": _UNITS[_name(trend.metric)],
        "change_points_searched": trend.is_searched,
        "notes": _notes(history, trend),
        "runs": [_run_as_plain(run) for run in history.runs],
        "series": [_series_as_plain(series) for series in trend.series],
    }


def _run_as_plain(run: HistoryRun) -> dict[str, Any]:
    committed = run.committed and run.committed.isoformat()
    where = {
        "file": run.path.name,
        "commit": run.run.git_commit,
        "commit_url": run.commit_url or None,
    }
    return {**where, "committed": committed, "started": run.started.isoformat()}


def _series_as_plain(series: Series) -> dict[str, Any]:
    points = [
        {"file": point.run.path.name, **{end: getattr(point.value, end) for end in _ENDS}}
        for point in series.points
    ]
    changes = [
        {
            "commits": change.commits,
            "last_file_before": change.last.path.name,
            "first_file_after": change.first.path.name,
            **{name: getattr(change, name) for name in ("before", "after", "is_worse")},
        }
        for change in series.changes
    ]
    facts = {name: getattr(series, name) for name in ("environment", "spread")}
    return {"id": series.case.id, **facts, "points": points, "changes": changes}
