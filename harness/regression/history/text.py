"""A history in words, and as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import Any

from harness.records import Estimate
from harness.records.text import bytes_text, count, percent_text, seconds_text, ulp_text
from harness.regression.history.change_points import LEAST_RUNS, MISSING_DETECTOR
from harness.regression.history.runs import History, HistoryRun
from harness.regression.history.series import Series, Trend, TrendChange, TrendMetric

__all__ = ["UNITS", "change_text", "history_as_plain", "history_lines", "notes_of", "value_text"]

_MOST_SERIES = 50  # trade-off: a page of a terminal can be read; --json has every series
_BARS = "▁▂▃▄▅▆▇█"
UNITS = {
    TrendMetric.SPEED: "speed relative to the reference; above 1 is faster",
    TrendMetric.TIME: "time per call",
    TrendMetric.ERROR: "largest error of any output",
    TrendMetric.PEAK_MEMORY: "peak memory beyond the inputs",
    TrendMetric.SAVED_MEMORY: "memory saved for the backward",
    TrendMetric.OPERATORS: "operators per call",
}
_WRITE: dict[TrendMetric, Callable[[float], str]] = {
    TrendMetric.SPEED: "{:.3f}".format,
    TrendMetric.TIME: seconds_text,
    TrendMetric.ERROR: ulp_text,
    TrendMetric.PEAK_MEMORY: bytes_text,
    TrendMetric.SAVED_MEMORY: bytes_text,
    TrendMetric.OPERATORS: "{:,.0f}".format,
}


def value_text(metric: TrendMetric, value: float) -> str:
    """Return a value of a metric with its unit."""
    return _WRITE[metric](value)


def change_text(metric: TrendMetric, change: TrendChange) -> str:
    """Return "worse by 5.1 %: 1.38 before, 1.31 after"."""
    size = ""
    if change.before > 0 and change.after > 0:
        factor = max(change.after / change.before, change.before / change.after)
        size = f" by {percent_text(factor - 1)}"
    before, after = (value_text(metric, value) for value in (change.before, change.after))
    return f"{'worse' if change.is_worse else 'better'}{size}: {before} before, {after} after"


def notes_of(history: History, trend: Trend) -> tuple[str, ...]:
    """Return what a reader must know: of the folder, and of how changes were searched."""
    notes = list(history.notes)
    if not trend.is_searched:
        notes.append(MISSING_DETECTOR)
    short = sum(len(each.points) < LEAST_RUNS for each in trend.series)
    if trend.metric.is_latency and short and trend.is_searched:
        notes.append(
            f"{count(short, 'series', 'series')} of fewer than {LEAST_RUNS} comparable runs: no "
            "change points are searched there"
        )
    if gaps := sum(bool(each.gaps) for each in trend.series):
        notes.append(f"{count(gaps, 'series', 'series')} with gaps: runs that lack the value")
    return tuple(notes)


def history_lines(history: History, trend: Trend) -> Iterator[str]:
    """Yield the trend of each series, those with changes first."""
    first, last = history.runs[0], history.runs[-1]
    environments = {each.environment for each in trend.series}
    yield (
        f"{history.folder}: {count(len(history.runs), 'run')}, {_place(first)} to {_place(last)}, "
        f"{count(len(environments), 'environment')}"
    )
    yield f"{trend.metric}: {UNITS[trend.metric]}"
    for series in trend.series[:_MOST_SERIES]:
        yield from _series_lines(series, trend.metric, len(environments) > 1)
    if len(trend.series) > _MOST_SERIES:
        more = count(len(trend.series) - _MOST_SERIES, "more series", "more series")
        yield f"and {more}; --case chooses, --json has all"
    changed = sum(bool(each.changes) for each in trend.series)
    yield f"{changed} of {count(len(trend.series), 'series', 'series')} changed"
    for note in notes_of(history, trend):
        yield f"note: {note}"


def _series_lines(series: Series, metric: TrendMetric, has_others: bool) -> Iterator[str]:
    where = f"  (environment {series.environment})" if has_others else ""
    yield f"{series.case.id}{where}"
    start, end = series.points[0].value, series.points[-1].value
    text = f"  {_bars([point.value.value for point in series.points])}  "
    if len(series.points) == 1:
        text += f"{_estimate_text(metric, end)} in the only run"
    else:
        text += (
            f"{value_text(metric, start.value)} at first, {_estimate_text(metric, end)} at last, "
            f"{count(len(series.points), 'run')}"
        )
    if series.spread is not None:
        text += f", noise between runs ±{percent_text(series.spread)}"
    if series.gaps:
        text += f", missing in {count(series.gaps, 'run')} between"
    yield text
    for change in series.changes:
        yield f"  {change_text(metric, change)}, in {change.commits}"


def _estimate_text(metric: TrendMetric, value: Estimate) -> str:
    text = value_text(metric, value.value)
    if value.low == value.high:
        return text
    return f"{text} [{value_text(metric, value.low)}, {value_text(metric, value.high)}]"


def _place(run: HistoryRun) -> str:
    return f"{(run.committed or run.started).date()} ({run.label})"


def _bars(values: Sequence[float]) -> str:
    """Return one character per value, from the lowest to the highest of the series."""
    low, high = min(values), max(values)
    if low <= 0 or log(high / low) < 0.01:  # trade-off: less than 1 % looks alike
        return _BARS[3] * len(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[round(steps * log(value / low) / log(high / low))] for value in values)


def history_as_plain(history: History, trend: Trend) -> dict[str, Any]:
    """Return a history as values that JSON can hold."""
    return {
        "folder": str(history.folder),
        "metric": str(trend.metric),
        "unit": UNITS[trend.metric],
        "change_points_searched": trend.is_searched,
        "notes": list(notes_of(history, trend)),
        "runs": [_run_as_plain(run) for run in history.runs],
        "series": [_series_as_plain(series) for series in trend.series],
    }


def _run_as_plain(run: HistoryRun) -> dict[str, Any]:
    return {
        "file": run.name,
        "commit": run.commit,
        "commit_url": run.commit_url or None,
        "committed": run.committed and run.committed.isoformat(),
        "started": run.started.isoformat(),
    }


def _series_as_plain(series: Series) -> dict[str, Any]:
    return {
        "id": series.case.id,
        "environment": series.environment,
        "spread": series.spread,
        "gaps": series.gaps,
        "points": [
            {
                "file": point.run.name,
                "value": point.value.value,
                "low": point.value.low,
                "high": point.value.high,
            }
            for point in series.points
        ],
        "changes": [
            {
                "commits": change.commits,
                "last_file_before": change.last.name,
                "first_file_after": change.first.name,
                "before": change.before,
                "after": change.after,
                "is_worse": change.is_worse,
            }
            for change in series.changes
        ],
    }
