"""Series of one metric of one case, with a value per run, and the changes in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import pairwise
from math import inf, log
from statistics import median

from harness.records import Case, Estimate, Latency, Mode, Record
from harness.regression.history.change_points import (
    LEAST_RUNS,
    change_points,
    has_detector,
    spread_between,
)
from harness.regression.history.runs import History, HistoryRun
from harness.regression.latency_test import why_not_comparable

__all__ = [
    "Point",
    "Series",
    "Trend",
    "TrendChange",
    "TrendMetric",
    "is_comparable",
    "is_of",
    "series_of",
]


# what a latency must have, and what makes two of them comparable
_LATENCY_COLUMNS = tuple(
    f"latency.{each.name}"
    for each in fields(Latency)
    if each.default is MISSING or each.name in {"timer", "reference", "is_valid"}
)


class TrendMetric(StrEnum):
    """A metric whose trend can be shown."""

    SPEED = "speed"
    """Time of the reference divided by the time of the case: above 1, the case is faster."""
    TIME = "time"
    """Seconds per call."""
    ERROR = "error"
    """Largest error of any output, in scaled ulp."""
    PEAK_MEMORY = "peak-memory"
    """Most memory held at once, beyond the inputs."""
    SAVED_MEMORY = "saved-memory"
    """Memory kept for the backward."""
    OPERATORS = "operators"
    """Number of PyTorch operators that one call runs."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of a record that its value is made of."""
        if self.is_latency:
            return _LATENCY_COLUMNS
        if self is TrendMetric.ERROR:
            return ("errors",)
        return ("operators",) if self is TrendMetric.OPERATORS else ("memory",)

    @property
    def is_latency(self) -> bool:
        """Whether the metric varies between runs of the same code."""
        return self in {TrendMetric.SPEED, TrendMetric.TIME}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a series."""

    run: HistoryRun
    value: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendChange:
    """A change point of a series."""

    place: int
    """Index of the first point after the change."""
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
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Index of the first point of each segment, and index after its last point."""
        edges = [0, *(change.place for change in self.changes), len(self.points)]
        return tuple(pairwise(edges))

    def level(self, first: int, end: int) -> float:
        """Return the median of the values from ``first`` to before ``end``."""
        return median(point.value.value for point in self.points[first:end])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """All series of one metric in a history."""

    metric: TrendMetric
    series: tuple[Series, ...]
    """The series with the largest changes first."""
    is_searched: bool
    """Whether change points were searched for; the detector may not be installed."""


def series_of(
    history: History, metric: TrendMetric, is_wanted: Callable[[Case], bool] = lambda case: True
) -> Trend:
    """Return the series of a metric: one for each case and each set of comparable runs.

    Runs of a case that are not comparable, such as runs on two machines, are in separate series.
    """
    can_search = not metric.is_latency or has_detector()
    cases: dict[Case, list[list[tuple[HistoryRun, Record]]]] = {}
    for run in history.runs:
        for record in run.results.records:
            if not is_wanted(record.case) or _value_of(record, metric) is None:
                continue
            sets = cases.setdefault(record.case, [])
            alike = next(
                (each for each in sets if is_comparable(each[-1][1], record, metric)), None
            )
            if alike is None:
                sets.append([(run, record)])
            else:
                alike.append((run, record))
    found = [
        _series(history, alike, metric, can_search) for sets in cases.values() for alike in sets
    ]
    found.sort(key=lambda each: -_largest(each))  # stable: equal changes keep the order of the runs
    return Trend(metric=metric, series=tuple(found), is_searched=can_search)


def is_of(pattern: str | None) -> Callable[[Case], bool]:
    """Return a predicate: whether the id of a case matches a pattern, or contains a plain text.

    Without a pattern, it is true of every case.

    Args:
        pattern: as a shell writes it, with ``*``, ``?`` or ``[``; else a plain text.
    """
    if pattern is None:
        return lambda case: True
    wild = pattern if any(each in pattern for each in "*?[") else f"*{pattern}*"
    return lambda case: fnmatchcase(case.id, wild)


def _series(
    history: History,
    alike: Sequence[tuple[HistoryRun, Record]],
    metric: TrendMetric,
    can_search: bool,
) -> Series:
    points = tuple(Point(run=run, value=value) for run, value in _values(alike, metric))
    values = [point.value.value for point in points]
    record = alike[-1][1]
    is_exact = not metric.is_latency and record.case.device == "cpu"  # a GPU sums in any order
    spread = None
    if is_exact:
        places = tuple(i for i, (old, new) in enumerate(pairwise(values), 1) if old != new)
    elif all(0 < value < inf for value in values):
        logarithms = [log(value) for value in values]
        spread = spread_between(logarithms) if len(values) >= LEAST_RUNS else None
        places = change_points(logarithms) if can_search and has_detector() else ()
    else:
        places = ()
    bare = Series(
        case=record.case,
        environment=record.environment,
        points=points,
        gaps=_gaps(history, points, record),
        changes=(),
        spread=spread,
    )
    edges = [0, *places, len(points)]
    levels = [bare.level(first, end) for first, end in pairwise(edges)]
    changes = (
        TrendChange(
            place=place,
            before=before,
            after=after,
            is_worse=(after < before) == (metric is TrendMetric.SPEED),
            last=points[place - 1].run,
            first=points[place].run,
        )
        for place, (before, after) in zip(places, pairwise(levels), strict=True)
    )
    return Series(
        case=bare.case,
        environment=bare.environment,
        points=points,
        gaps=bare.gaps,
        changes=tuple(changes),
        spread=spread,
    )


def _values(
    alike: Sequence[tuple[HistoryRun, Record]], metric: TrendMetric
) -> Iterator[tuple[HistoryRun, Estimate]]:
    for run, record in alike:
        if (value := _value_of(record, metric)) is not None:
            yield run, value


def _value_of(record: Record, metric: TrendMetric) -> Estimate | None:
    """Return the value of a metric; None if it was not measured, or is not valid."""
    if not record.status.is_measured:
        return None
    if metric.is_latency:
        latency = record.latency
        if latency is None or not latency.is_valid or latency.reference_ratio is None:
            return None
        if metric is TrendMetric.TIME:
            return latency.per_call_s if 0 < latency.per_call_s.value < inf else None
        ratio = latency.reference_ratio
        if latency.reference == record.case.implementation and record.case.mode is Mode.EAGER:
            return None  # the reference has no speed relative to itself
        if not (0 < ratio.value < inf and ratio.low > 0):
            return None
        return Estimate(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
    figure = _exact_figure(record, metric)
    if figure is None or not figure < inf:
        return None
    return Estimate(value=figure, low=figure, high=figure, confidence=1.0)


def _exact_figure(record: Record, metric: TrendMetric) -> float | None:
    if metric is TrendMetric.ERROR:
        return record.worst_ulp
    if metric is TrendMetric.OPERATORS:
        return record.operators
    if record.memory is None:
        return None
    if metric is TrendMetric.SAVED_MEMORY:
        return record.memory.saved_bytes
    return record.memory.peak_extra_bytes


def is_comparable(before: Record, after: Record, metric: TrendMetric) -> bool:
    """Whether two records of a case may be in one series; ``check`` uses the same rules."""
    is_same = before.environment == after.environment
    if metric.is_latency:
        # the times of a wrong and of a right result are not comparable
        return (
            is_same
            and before.status is after.status
            and before.latency is not None
            and after.latency is not None
            and why_not_comparable(before.latency, after.latency) is None
        )
    if metric is TrendMetric.OPERATORS:
        return is_same or before.case.mode is Mode.EAGER
    return is_same or (metric is not TrendMetric.ERROR and before.case.device == "cpu")


def _gaps(history: History, points: Sequence[Point], record: Record) -> int:
    with_value = {id(point.run) for point in points}
    inside = False
    gaps = 0
    waiting = 0
    for run in history.runs:
        if id(run) in with_value:
            gaps, waiting, inside = gaps + waiting, 0, True
        elif inside and record.environment in run.results.environments:
            waiting += 1
    return gaps


def _largest(series: Series) -> float:
    """Return the size of the largest change of a series, for sorting."""
    sizes = (
        abs(log(change.after / change.before)) if change.before and change.after else inf
        for change in series.changes
    )
    return max(sizes, default=0.0)
