"""Bencher Metric Format: a value with its interval for each benchmark and measure.

``latency`` is Bencher's built-in measure, in nanoseconds; Bencher creates the others on first use.
"""

from __future__ import annotations

import json
from math import isfinite

from harness.exports.charted import error_ulp, memory_bytes, ratio_of, time_of
from harness.records import Estimate, Record
from harness.store import Results

__all__ = ["bencher_metrics"]

_NANOSECONDS = 1e9  # in a second
_Metric = dict[str, float]


def bencher_metrics(results: Results) -> str | None:
    """Return the measures of each case as JSON; None if there are none.

    ``latency`` (ns), ``latency-ratio`` (to the reference), ``error`` (scaled ulp of the worst
    output), ``peak-memory`` (bytes beyond the inputs).
    """
    cases = {
        record.case.id: measures for record in results.records if (measures := _measures(record))
    }
    return json.dumps(cases, indent=1, allow_nan=False) + "\n" if cases else None


def _measures(record: Record) -> dict[str, _Metric]:
    measures: dict[str, _Metric] = {}
    latency = time_of(record)
    if latency is not None:
        measures["latency"] = _metric(latency.per_call_s, _NANOSECONDS)
        ratio = ratio_of(latency)
        if ratio is not None:
            measures["latency-ratio"] = _metric(ratio)
    error = error_ulp(record)
    if error is not None:
        measures["error"] = {"value": error}
    peak_bytes = memory_bytes(record)
    if peak_bytes is not None:
        measures["peak-memory"] = {"value": peak_bytes}
    return measures


def _metric(estimate: Estimate, factor: float = 1.0) -> _Metric:
    """Return a value and the ends of its interval that are finite."""
    metric = {
        "value": estimate.value,
        "lower_value": estimate.low,
        "upper_value": estimate.high,
    }
    return {name: value * factor for name, value in metric.items() if isfinite(value)}
