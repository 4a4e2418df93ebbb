"""Did it get worse? One run against another, a baseline, a history, or another revision.

The import of another revision beside this one needs torch, so it is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.regression.ab import (
    BASE,
    Bench,
    ab,
    missing_in_base,
    pair_up,
    repository_of_sweep,
    run_base_case,
    time_against_base,
)
from harness.regression.baseline import (
    CONFIRMING,
    condensed,
    confirm_here,
    passes_left,
    record_baseline,
    refuse_unacceptable,
    time_again,
)
from harness.regression.changes import (
    Change,
    ChangeKind,
    Comparison,
)
from harness.regression.compare import (
    RECORD_BASELINE,
    compare,
    compare_as_stored,
    refuse_duplicates,
)
from harness.regression.history import (
    FEW_RUNS,
    LEAST_RUNS,
    MISSING_DETECTOR,
    TREND_METRICS,
    History,
    HistoryRun,
    Series,
    Trend,
    TrendChange,
    baseline_of_history,
    history_name,
    is_of,
    query_history,
    read_history,
    series_of,
)
from harness.regression.latency_judge import (
    AGAINST_BASELINE,
    BASELINE_PROCESSES,
    CONFIRMING_PROCESSES,
    IN_TURN,
    LONG_IN_TURN,
    SCREENING_IN_TURN,
    UNEVEN_IN_TURN_RATIO,
    Confirm,
    Shift,
    is_steady,
    judge,
    noise_of,
    process_ratios,
    ratio_between,
    screen_in_turn,
    spread_of,
)
from harness.regression.revision import (
    Checkout,
    checked_out,
    file_of,
    is_unchanged,
    repository_of,
)

if TYPE_CHECKING:
    from harness.regression.side_by_side import SideBySideImport

__all__ = [
    "AGAINST_BASELINE",
    "BASE",
    "BASELINE_PROCESSES",
    "CONFIRMING",
    "CONFIRMING_PROCESSES",
    "FEW_RUNS",
    "IN_TURN",
    "LEAST_RUNS",
    "LONG_IN_TURN",
    "MISSING_DETECTOR",
    "RECORD_BASELINE",
    "SCREENING_IN_TURN",
    "TREND_METRICS",
    "UNEVEN_IN_TURN_RATIO",
    "Bench",
    "Change",
    "ChangeKind",
    "Checkout",
    "Comparison",
    "Confirm",
    "History",
    "HistoryRun",
    "Series",
    "Shift",
    "SideBySideImport",
    "Trend",
    "TrendChange",
    "ab",
    "baseline_of_history",
    "checked_out",
    "compare",
    "compare_as_stored",
    "condensed",
    "confirm_here",
    "file_of",
    "history_name",
    "is_of",
    "is_steady",
    "is_unchanged",
    "judge",
    "missing_in_base",
    "noise_of",
    "pair_up",
    "passes_left",
    "process_ratios",
    "query_history",
    "ratio_between",
    "read_history",
    "record_baseline",
    "refuse_duplicates",
    "refuse_unacceptable",
    "repository_of",
    "repository_of_sweep",
    "run_base_case",
    "screen_in_turn",
    "series_of",
    "spread_of",
    "time_again",
    "time_against_base",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.regression import side_by_side

    return getattr(side_by_side, name)
