"""Runs of a folder: trends with change points, and a baseline made of the last runs."""

from harness.regression.history.gate import (
    FEW_RUNS,
    baseline_of_history,
    history_name,
)
from harness.regression.history.runs import (
    History,
    HistoryError,
    HistoryRun,
    read_history,
)
from harness.regression.history.trend import (
    LEAST_RUNS,
    MISSING_DETECTOR,
    TREND_METRICS,
    Series,
    Trend,
    TrendChange,
    change_points,
    is_of,
    query_history,
    series_of,
    spread_between,
)

__all__ = [
    "FEW_RUNS",
    "LEAST_RUNS",
    "MISSING_DETECTOR",
    "TREND_METRICS",
    "History",
    "HistoryError",
    "HistoryRun",
    "Series",
    "Trend",
    "TrendChange",
    "baseline_of_history",
    "change_points",
    "history_name",
    "is_of",
    "query_history",
    "read_history",
    "series_of",
    "spread_between",
]
