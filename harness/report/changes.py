"""What changed, against a baseline or run by run: for the terminal, the page, and JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import isfinite, log
from typing import TYPE_CHECKING, Any

from harness.records.metrics import Metric
from harness.records.text import as_speed, count, grouped, interval_text, percent_text, speed_text
from harness.regression import (
    LEAST_RUNS,
    MISSING_DETECTOR,
    TREND_METRICS,
    Change,
    ChangeKind,
    Comparison,
    History,
    Series,
    Trend,
    TrendChange,
    series_of,
)
from harness.report.document import (
    DASH,
    Block,
    Cell,
    Document,
    FigureBlock,
    Panel,
    Table,
    Text,
    case_cell,
    columns,
    name_of,
    number,
)
from harness.report.run import run_again
from harness.store import to_plain

if TYPE_CHECKING:
    from harness.report.frame import PageData

MOST_ROWS = 20
"""What a reader goes through in a terminal; --json has every case."""


def verdict(comparison: Comparison) -> tuple[str, str]:
    """Return a sign and the verdict of the gate in words."""
    if bad := sum(change.kind.is_failure for change in comparison.changes):
        return "❌", f"{count(bad, 'case')} got worse"
    if not any(kind.is_judged for kind in comparison.counts):
        return "⚠️", "no case could be judged in full"
    return "✅", "no case got worse"


def document_of_comparison(
    comparison: Comparison, *, most_rows: int = sys.maxsize
) -> Iterator[Block]:
    """Yield how many cases changed in which way, the notes, and a table of each kind of change.

    Unchanged cases are only counted, and so are others that do not fail for the same reason.
    """
    counts = ", ".join(f"{cases:,} {kind}" for kind, cases in comparison.counts.items())
    yield Text(f"{comparison.head} against {comparison.baseline}")
    yield Text(f"{count(len(comparison.changes), 'case')}: {counts}")
    yield from (Text(note, "note") for note in comparison.notes)
    for kind, changes in grouped((change.kind, change) for change in comparison.changes).items():
        if kind is ChangeKind.UNCHANGED:
            continue
        alike = grouped((one.case.id if kind.is_failure else one.reason, one) for one in changes)
        rows = tuple(_row(*same) for same in alike.values())
        left = max(len(rows) - most_rows, 0)
        yield Table(
            name=name_of("gate", kind),
            title=str(kind),
            caption=f"and {left:,} more: --json has every case" if left else "",
            columns=columns("case", "speed now against before#", "why"),
            rows=rows[:most_rows],
            is_folded=not kind.is_failure,
        )
        most_rows = max(most_rows - len(rows), 0)


def end_of_comparison(comparison: Comparison) -> Document:
    """Return the verdict, and what to do about the worst case."""
    _, words = verdict(comparison)
    worst = next((change for change in comparison.changes if change.kind.is_failure), None)
    if worst is None:
        left = sum(cases for kind, cases in comparison.counts.items() if not kind.is_judged)
        is_partly = 0 < left < len(comparison.changes)
        rest = f"; {count(left, 'case')} could not be judged in full" if is_partly else ""
        return (Text(""), Text(f"{words}{rest}"))
    step = run_again(worst.case)
    return (Text(""), Text(f"{words}; to {step.purpose}:"), Text(step.command, "code"))


def _row(change: Change, *alike: Change) -> tuple[Cell, ...]:
    more = f" (and {count(len(alike), 'more case')})" if alike else ""
    speed = DASH
    if change.ratio is not None:
        found = as_speed(change.ratio)
        is_known = isfinite(found.high)  # not of a single process or epoch
        speed = interval_text(found) if is_known else speed_text(found.value)
    return (case_cell(change.case), number(speed), Cell(f"{change.reason}{more}", is_long=True))


def gate_verdicts(data: PageData) -> Iterator[Block]:
    """Show what changed since the baseline, if one was given, the worst first."""
    if data.comparison is None:
        return
    _, words = verdict(data.comparison)
    yield Text(f"{words[0].upper()}{words[1:]}.", "title")
    yield from document_of_comparison(data.comparison, most_rows=_MOST_ON_PAGE)
    yield Text(
        "Speeds are relative to native; above 1 is faster now. Nothing was timed again for "
        "this page; `layernorm-bench compare --json` has every case."
    )


def comparison_as_plain(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values."""
    return {
        **to_plain(comparison),
        "failed": comparison.failed,
        "counts": {str(kind): cases for kind, cases in comparison.counts.items()},
        "changes": [{"id": one.case.id, **to_plain(one)} for one in comparison.changes],
    }


# --- how cases changed over the runs of a folder --------------------------------------------------

_MOST_SERIES = 20  # trade-off: the changes below stay on the screen; --json and the page have more
_MOST_ON_PAGE = 200  # trade-off: each takes 0.3 kB, and more are read by a program
_MOST_PANELS = 12  # trade-off: each takes 10 kB
_BARS = "▁▂▃▄▅▆▇█"


def document_of_history(history: History, trend: Trend) -> Document:
    """Return the trend of each series, those with changes first, and the changes of a metric."""
    changed = sum(bool(series.changes) for series in trend.series)
    worse = sum(change.is_worse for series in trend.series for change in series.changes)
    environments = {series.environment for series in trend.series}
    summary = f"{changed} of {count(len(trend.series), 'series', 'series')} changed: "
    summary = f"{summary}{count(worse, 'change')} for the worse; " if changed else ""
    return (
        Text(f"{history.folder}: {_span(history)}, {count(len(environments), 'environment')}"),
        *(Text(note, "note") for note in _notes(history, trend)),
        _series_table(trend, _MOST_SERIES),
        _change_table([trend], MOST_ROWS),
        Text(""),
        Text(f"{summary}to see all as charts:"),
        Text(f"layernorm-bench report {shlex.quote(str(history.folder))}", "code"),
    )


def how_it_changed(data: PageData) -> Iterator[Block]:
    """Show the changes in a folder of runs, and the trend of each case's speed."""
    history = data.history
    if history is None:
        return
    trends = {
        name: series_of(history, metric) for name, metric in TREND_METRICS.items() if name != "time"
    }
    speeds = trends["speed"]
    yield Text(
        f"{_span(history)}, in the order of their commits. The other sections are of the latest "
        "run of each environment. Speeds are relative to native, which is timed in turn with each "
        "case."
    )
    yield from (Text(note[0].upper() + note[1:]) for note in _notes(history, speeds))
    yield _change_table(trends.values(), _MOST_ON_PAGE)
    yield from _figures(history, speeds)
    none = Text("No case has a speed relative to a reference.")
    yield _series_table(speeds, _MOST_ON_PAGE) if speeds.series else none


def _span(history: History) -> str:
    first, last = (
        f"{(run.committed or run.started).date()} ({run.label})"
        for run in (history.runs[0], history.runs[-1])
    )
    return f"{count(len(history.runs), 'run')}, {first} to {last}"


def _notes(history: History, trend: Trend) -> Iterator[str]:
    """Yield what a reader must know: of the folder, and of how changes were searched."""
    yield from history.notes
    if not trend.is_searched:
        yield MISSING_DETECTOR
    short = sum(len(series.runs) < LEAST_RUNS for series in trend.series)
    if not trend.metric.exact and short and trend.is_searched:
        yield (
            f"{count(short, 'series', 'series')} of fewer than {LEAST_RUNS} comparable runs: no "
            "change points are searched there"
        )


def _value_text(metric: Metric, value: float) -> str:
    # gates judge changes of a few percent, so a speed has three decimals
    return speed_text(value, decimals=3) if metric.unit == "speed" else metric.write(value)


def _change_text(metric: Metric, change: TrendChange) -> str:
    """Return "worse by 5.1 %: 1.38 before, 1.31 after"."""
    size = ""
    if change.before > 0 and change.after > 0:
        factor = max(change.after / change.before, change.before / change.after)
        size = f" by {percent_text(factor - 1)}"
    before, after = (_value_text(metric, value) for value in (change.before, change.after))
    return f"{'worse' if change.is_worse else 'better'}{size}: {before} before, {after} after"


# --- tables and figures --------------------------------------------------------------------------


def _series_table(trend: Trend, most_rows: int) -> Table:
    metric, write = trend.metric, partial(_value_text, trend.metric)
    has_others = len({series.environment for series in trend.series}) > 1
    rows = []
    for series in trend.series[:most_rows]:
        values, last = series.values, series.values[-1]
        rows.append((
            case_cell(series.case, series.environment if has_others else ""),
            number(interval_text(last, write) if last.low < last.high else write(last.value)),
            number(write(values[0].value)),
            Cell(_bars([value.value for value in values]), is_long=True),
            number(f"{len(values)}"),
            number(DASH if series.spread is None else f"±{percent_text(series.spread)}"),
            number(f"{len(series.changes)}"),
        ))
    left = len(trend.series) - len(rows)
    more = f" {count(left, 'more series', 'more series')}: --case chooses, --json has all."
    return Table(
        name="series",
        title=f"Every series of {metric.heading('trend')}: {len(trend.series):,}",
        caption="Noise is between runs. Runs that cannot be compared, such as of another "
        f"machine, have a series of their own.{more if left else ''}",
        columns=columns("case", "last#", "first#", "trend", "runs#", "noise#", "changes#"),
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


def _change_table(trends: Iterable[Trend], most_rows: int) -> Block:
    found = [
        (trend.metric, series, change)
        for trend in trends
        for series in trend.series
        for change in series.changes
        if _value_text(trend.metric, change.before) != _value_text(trend.metric, change.after)
    ]
    if not found:
        return Text("No change was found in any series.")
    left = max(len(found) - most_rows, 0)
    return Table(
        name="changes",
        title=f"{count(len(found), 'change')}",
        caption="The cause is one of the commits after the first named, up to and including the "
        "second. Where a change is hardly larger than the noise, it may be one or two runs away. "
        "Changes of speed are found by PELT (Killick et al. 2012, as ruptures implements it); "
        f"other metrics repeat exactly, to the digits shown.{f' {left:,} more.' * bool(left)}",
        columns=columns("Case", "Metric", "Change", "Commits", "Files"),
        rows=tuple(
            (
                case_cell(series.case),
                Cell(metric.heading("trend").replace("-", " ")),
                Cell(_change_text(metric, change), is_long=True, is_strong=change.is_worse),
                Cell(change.commits, link=change.first.commit_url),
                Cell(f"{change.last.path.name} to {change.first.path.name}", is_long=True),
            )
            for metric, series, change in found[:most_rows]
        ),
    )


def _figures(history: History, trend: Trend) -> Iterator[Block]:
    from harness.report.figures import BAND_SPREADS, history_figure  # slow to import

    panels = tuple(
        Panel(
            name_of("history", series.case.id, series.environment),
            f"History of {series.case.id}",
            partial(history_figure, title=series.case.id, history=history, series=series),
        )
        for series in [series for series in trend.series if len(series.runs) > 1][:_MOST_PANELS]
    )
    if panels:
        yield FigureBlock(
            title="Speed relative to native, run by run",
            caption="Each point is a run, with the interval of its measurement. The line is the "
            f"median between changes, and the band {BAND_SPREADS:g} standard deviations of the "
            "noise between runs. A dashed line is a change point. The interval of a run of one "
            "process does not include the differences between processes. Series with less change "
            "are in the table below.",
            panels=panels,
            width="narrow",
        )


# --- JSON ----------------------------------------------------------------------------------------


def history_as_plain(history: History, trend: Trend) -> dict[str, Any]:
    """Return a history as plain values."""
    return {
        "folder": str(history.folder),
        "metric": trend.metric.heading("trend"),
        "unit": trend.metric.unit,
        "change_points_searched": trend.is_searched,
        "notes": list(_notes(history, trend)),
        "runs": [
            {
                "file": run.path.name,
                "commit": run.run.git_commit,
                "commit_url": run.commit_url or None,
                "committed": run.committed and run.committed.isoformat(),
                "started": run.started.isoformat(),
            }
            for run in history.runs
        ],
        "series": [_series_as_plain(series) for series in trend.series],
    }


def _series_as_plain(series: Series) -> dict[str, Any]:
    return {
        "id": series.case.id,
        "environment": series.environment,
        "spread": series.spread,
        "points": [
            {"file": run.path.name, **to_plain(value)}
            for run, value in zip(series.runs, series.values, strict=True)
        ],
        "changes": [
            {
                "commits": change.commits,
                "last_file_before": change.last.path.name,
                "first_file_after": change.first.path.name,
                **{name: getattr(change, name) for name in ("before", "after", "is_worse")},
            }
            for change in series.changes
        ],
    }
