"""Bencher Metric Format: by benchmark and measure a value with its interval.

``latency`` is Bencher's own measure, in nanoseconds; the others it makes at their first sight.
"""

from __future__ import annotations

import json
from math import isfinite

from harness.exports.charted import error_ulp, memory_bytes, ratio_of, time_of
from harness.records import Estimate, Record
from harness.store import Results

__all__ = ["bencher_metrics"]

_NANOSECONDS = 1e9  # in a second
Metric = dict[str, float]


def bencher_metrics(results: Results) -> str | None:
    """Return measures of each case as JSON; None where there is not one.

    ``latency`` (ns), ``latency-ratio`` (to the reference), ``error`` (scaled ulp of the worst
    output), ``peak-memory`` (bytes beyond the inputs).
    """
    found = {record.case.id: measures for record in results.records if (measures := _of(record))}
    return json.dumps(found, indent=1, allow_nan=False) + "\n" if found else None


def _of(record: Record) -> dict[str, Metric]:
    measures: dict[str, Metric] = {}
    latency = time_of(record)
    if latency is not None:
        measures["latency"] = _metric(latency.per_call_s, _NANOSECONDS)
        ratio = ratio_of(latency)
        if ratio is not None:
            measures["latency-ratio"] = _metric(ratio)
    error = error_ulp(record)
    if error is not None:
        measures["error"] = {"value": error}
    held = memory_bytes(record)
    if held is not None:
        measures["peak-memory"] = {"value": held}
    return measures


def _metric(estimate: Estimate, factor: float = 1.0) -> Metric:
    """A value and those ends of its interval that are known."""
    ends = {
        "value": estimate.value,
        "lower_value": estimate.low,
        "upper_value": estimate.high,
    }
    return {name: value * factor for name, value in ends.items() if isfinite(value)}
