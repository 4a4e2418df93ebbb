"""A part of a history: some cases of some runs, for one metric. The rest is not read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness.regression.history.runs import History, Selection, read_history
from harness.regression.history.series import Series, Trend, TrendMetric, is_of, series_of

__all__ = ["HistoryQuery", "query_history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """The part of a history that is asked for."""

    metric: TrendMetric
    pattern: str | None = None
    """Cases whose id matches this; None for all."""
    command: str = ""
    """Runs whose command has this text."""
    last: int | None = None
    """Number of runs, the last ones; None for all."""
    worst: int | None = None
    """Number of cases, the worst of the last runs; None for all."""


def query_history(folder: Path, query: HistoryQuery) -> tuple[History, Trend]:
    """Read what a query asks for.

    With ``worst``, the latest run of each environment is read first, for the cases to choose.

    Raises:
        HistoryError: there is no such folder, no such run, or too many records are asked for.
        NotMeasuredError: no file in it can be used.
    """
    selection = Selection(
        is_wanted=is_of(query.pattern),
        columns=query.metric.columns,
        is_narrow=query.pattern is not None,
        command=query.command,
        last=query.last,
    )
    if query.worst is None:
        history = read_history(folder, selection=selection)
        return history, series_of(history, query.metric)
    latest = read_history(folder, selection=replace(selection, only_latest=True))
    series = sorted(series_of(latest, query.metric).series, key=_last_value)
    if query.metric is not TrendMetric.SPEED:  # for the others, more is worse
        series.reverse()
    chosen = [each.case for each in series][: query.worst]
    wanted = replace(selection, is_wanted=set(chosen).__contains__, is_narrow=True)
    history = read_history(folder, selection=wanted)
    trend = series_of(history, query.metric)
    place = {case: place for place, case in enumerate(chosen)}
    ordered = sorted(trend.series, key=lambda each: place[each.case])
    return history, replace(trend, series=tuple(ordered))


def _last_value(series: Series) -> float:
    return series.points[-1].value.value
