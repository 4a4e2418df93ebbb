"""Trends: one metric of each case over the runs of a history, with its change points.

Change points are found by PELT (Killick, Fearnhead, Eckley 2012) as ruptures implements it. The
cost is the sum of squares around the mean of each segment, and the penalty is that of a modified
Bayesian information criterion. Chosen by experiments/history: on twenty runs E-divisive with a
t-test (apache-otava) finds as many changes and a few more false ones. It also fixes the version of
numpy, which is part of an environment's fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import pairwise
from math import inf, log
from pathlib import Path
from statistics import median

import numpy as np

from harness.records import Case, Estimate, Latency, Mode, Record
from harness.records.metrics import Metric, metrics_in
from harness.regression.history.runs import History, HistoryRun, Selection, read_history
from harness.regression.latency_judge import why_not_comparable

TREND_METRICS = {metric.heading("trend"): metric for metric in metrics_in("trend")}
MISSING_DETECTOR = "change points need ruptures: pip install 'layernorm-bench[history]'"
LEAST_RUNS = 8  # simulated: 5 false changes per 100 unchanged series of 8 runs, 8 of 6 runs
_LEAST_SEGMENT = 2  # runs: a single run that differs is no change
# In units of the variance and of log(runs). Simulated with normal noise: 2 false changes per 100
# unchanged series of 20 runs; a penalty of 3 gives 6.
_PENALTY = 4.0
# Standard deviation of a logarithm. The steadiest recorded cases spread by as much between
# processes; smaller shifts, such as of code that was placed elsewhere, are no change.
_LEAST_SPREAD = 0.002
# what a latency must have, and what makes two of them comparable
_LATENCY_COLUMNS = tuple(
    f"latency.{field.name}"
    for field in fields(Latency)
    if field.default is MISSING or field.name in {"timer", "reference", "is_valid"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a series."""

    run: HistoryRun
    value: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendChange:
    """A change point of a series."""

    index: int
    """Of the first point after the change."""
    before: float
    """Median of the segment before the change."""
    after: float
    """Median of the segment after the change."""
    is_worse: bool
    last: HistoryRun
    """The last run before the change."""
    first: HistoryRun
    """The first run after the change."""

    @property
    def commits(self) -> str:
        """The range of commits that may be the cause, as git writes it: without the first."""
        return f"{self.last.label}..{self.first.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Comparable values of one case, in the order of the runs."""

    case: Case
    environment: str
    """Fingerprint of the environment in which the last value was measured."""
    points: tuple[Point, ...]
    gaps: int
    """Runs in the same environment without a value, between the first and the last value."""
    changes: tuple[TrendChange, ...]
    spread: float | None
    """Standard deviation between runs, as a logarithm; None for exact metrics and few runs."""

    @property
    def segments(self) -> tuple[tuple[int, int, float], ...]:
        """Index of the first point of each segment, index after its last point, and median."""
        return _segments(self.points, [change.index for change in self.changes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """All series of one metric in a history."""

    metric: Metric
    series: tuple[Series, ...]
    """The series with the largest changes first."""
    is_searched: bool
    """Whether change points were searched for; the detector may not be installed."""


# --- a part of a history -------------------------------------------------------------------------


def query_history(
    folder: Path,
    metric: Metric,
    *,
    pattern: str | None = None,
    command: str = "",
    last: int | None = None,
    worst: int | None = None,
) -> tuple[History, Trend]:
    """Read some cases of some runs, for one metric. The rest is not read.

    With ``worst``, the latest run of each environment is read first, for the cases to choose.

    Args:
        folder: of results files.
        metric: one of TREND_METRICS.
        pattern: cases whose id matches this; None for all.
        command: runs whose command has this text.
        last: number of runs, the last ones; None for all.
        worst: number of cases, the worst of the last runs; None for all.

    Raises:
        HistoryError: there is no such folder, no such run, or too many records are asked for.
        NotMeasuredError: no file in it can be used.
    """
    selection = Selection(
        is_wanted=is_of(pattern),
        columns=_LATENCY_COLUMNS if metric.part == "latency" else (metric.part,),
        is_narrow=pattern is not None,
        command=command,
        last=last,
    )
    if worst is None:
        history = read_history(folder, selection=selection)
        return history, series_of(history, metric)
    latest = read_history(folder, selection=replace(selection, only_latest=True))
    series = sorted(
        series_of(latest, metric).series,
        key=lambda series: series.points[-1].value.value,
        reverse=metric.better == "lower",
    )
    rank = {case: index for index, case in enumerate([one.case for one in series][:worst])}
    wanted = replace(selection, is_wanted=rank.__contains__, is_narrow=True)
    history = read_history(folder, selection=wanted)
    trend = series_of(history, metric)
    ordered = sorted(trend.series, key=lambda series: rank[series.case])
    return history, replace(trend, series=tuple(ordered))


def is_of(pattern: str | None) -> Callable[[Case], bool]:
    """Return a predicate: whether the id of a case matches a pattern, or contains a plain text.

    Without a pattern, it is true of every case.

    Args:
        pattern: as a shell writes it, with ``*``, ``?`` or ``[``; else a plain text.
    """
    if pattern is None:
        return lambda case: True
    wild = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return lambda case: fnmatchcase(case.id, wild)


# --- series --------------------------------------------------------------------------------------


def series_of(
    history: History, metric: Metric, is_wanted: Callable[[Case], bool] = lambda case: True
) -> Trend:
    """Return the series of a metric: one for each case and each set of comparable runs.

    Runs of a case that are not comparable, such as runs on two machines, are in separate series.
    """
    cases: dict[Case, list[list[tuple[Point, Record]]]] = {}
    for run in history.runs:
        for record in run.results.records:
            value = _value_of(record, metric) if is_wanted(record.case) else None
            if value is None:
                continue
            sets = cases.setdefault(record.case, [])
            alike = next(
                (found for found in sets if is_comparable(found[-1][1], record, metric)), None
            )
            if alike is None:
                sets.append(alike := [])
            alike.append((Point(run=run, value=value), record))
    found = [_series(history, alike, metric) for sets in cases.values() for alike in sets]
    found.sort(key=_largest, reverse=True)  # stable: equal changes keep the order of the runs
    return Trend(metric=metric, series=tuple(found), is_searched=metric.exact or has_detector())


def _series(history: History, alike: Sequence[tuple[Point, Record]], metric: Metric) -> Series:
    points = tuple(point for point, _ in alike)
    values = [point.value.value for point in points]
    record = alike[-1][1]
    spread = None
    indices: tuple[int, ...] = ()
    if metric.exact and record.case.device == "cpu":  # a GPU sums in any order
        indices = tuple(i for i, (old, new) in enumerate(pairwise(values), 1) if old != new)
    elif all(0 < value < inf for value in values):
        logarithms = [log(value) for value in values]
        spread = spread_between(logarithms) if len(values) >= LEAST_RUNS else None
        indices = change_points(logarithms) if has_detector() else ()
    levels = [level for _, _, level in _segments(points, indices)]
    changes = (
        TrendChange(
            index=index,
            before=before,
            after=after,
            is_worse=(after < before) == (metric.better == "higher"),
            last=points[index - 1].run,
            first=points[index].run,
        )
        for index, (before, after) in zip(indices, pairwise(levels), strict=True)
    )
    return Series(
        case=record.case,
        environment=record.environment,
        points=points,
        gaps=_gaps(history, points, record),
        changes=tuple(changes),
        spread=spread,
    )


def _segments(
    points: Sequence[Point], indices: Sequence[int]
) -> tuple[tuple[int, int, float], ...]:
    return tuple(
        (first, end, median(point.value.value for point in points[first:end]))
        for first, end in pairwise([0, *indices, len(points)])
    )


def _value_of(record: Record, metric: Metric) -> Estimate | None:
    """Return the value of a metric; None if it was not measured, or is not valid."""
    value = metric.get(record) if record.status.is_measured else None
    if value is None:
        return None
    if not isinstance(value, Estimate):
        is_number = value < inf  # not NaN
        return Estimate(value=value, low=value, high=value, confidence=1.0) if is_number else None
    latency = record.latency
    if latency is None or not latency.is_valid or latency.reference_ratio is None:
        return None
    if metric.unit == "speed":
        # the reference has no speed relative to itself
        is_itself = latency.reference == record.case.implementation
        if (is_itself and record.case.mode is Mode.EAGER) or not value.high < inf:
            return None
    return value if 0 < value.value < inf else None


def is_comparable(before: Record, after: Record, metric: Metric) -> bool:
    """Whether two records of a case may be in one series; ``check`` uses the same rules."""
    is_same = before.environment == after.environment
    if metric.part == "latency":
        # the times of a wrong and of a right result are not comparable
        return (
            is_same
            and before.status is after.status
            and before.latency is not None
            and after.latency is not None
            and why_not_comparable(before.latency, after.latency) is None
        )
    if metric.part == "operators":
        return is_same or before.case.mode is Mode.EAGER
    return is_same or (metric.part != "errors" and before.case.device == "cpu")


def _gaps(history: History, points: Sequence[Point], record: Record) -> int:
    with_value = {id(point.run) for point in points}
    is_inside = False
    gaps = waiting = 0
    for run in history.runs:
        if id(run) in with_value:
            gaps, waiting, is_inside = gaps + waiting, 0, True
        elif is_inside and record.environment in run.results.environments:
            waiting += 1
    return gaps


def _largest(series: Series) -> float:
    """Return the size of the largest change of a series, for sorting."""
    sizes = (
        abs(log(change.after / change.before)) if change.before and change.after else inf
        for change in series.changes
    )
    return max(sizes, default=0.0)


# --- change points -------------------------------------------------------------------------------


def has_detector() -> bool:
    """Whether change points can be searched."""
    return find_spec("ruptures") is not None


def spread_between(logarithms: Sequence[float]) -> float:
    """Return the standard deviation of a series that may have changes, from its differences.

    The root of half the mean squared successive difference (von Neumann 1941), to which a change
    adds only one term.
    """
    steps = np.diff(logarithms)
    return max(float(np.sqrt((steps**2).mean() / 2)) if len(steps) else 0.0, _LEAST_SPREAD)


def change_points(logarithms: Sequence[float]) -> tuple[int, ...]:
    """Return the indices at which new segments begin; none if there are fewer than LEAST_RUNS."""
    if len(logarithms) < LEAST_RUNS:
        return ()
    from ruptures import KernelCPD

    signal = np.asarray(logarithms).reshape(-1, 1) / spread_between(logarithms)
    # a linear kernel is the sum of squares; this is PELT in C, a hundred times as fast as Pelt
    search = KernelCPD(kernel="linear", min_size=_LEAST_SEGMENT).fit(signal)
    found = search.predict(pen=_PENALTY * log(len(signal)))
    return tuple(int(index) for index in found[:-1])  # the last is the end of the series
