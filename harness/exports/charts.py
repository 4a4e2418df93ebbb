"""Charts over commits: github-action-benchmark's ``customSmallerIsBetter`` and Bencher's metrics.

A value in a chart must mean the same on every machine that a hosted runner uses. So the first
format charts time as the ratio to the reference timed in turn with it; seconds are in the remark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

from harness.records import Estimate, Latency, Record, Status
from harness.records.text import count, seconds_text
from harness.store import Results

__all__ = ["bencher_metrics", "charted_latency", "smaller_is_better"]

_NANOSECONDS = 1e9  # in a second


def smaller_is_better(results: Results) -> str | None:
    """Return time, error and memory of each case as JSON; None if there are none.

    The format is a list of names, units and values.
    """
    entries = [entry for record in results.records for entry in _entries(record)]
    return json.dumps(entries, indent=1, allow_nan=False) + "\n" if entries else None


def bencher_metrics(results: Results) -> str | None:
    """Return the measures of each case in Bencher Metric Format; None if there are none.

    ``latency`` (ns), ``latency-ratio`` (to the reference), ``error`` (scaled ulp of the worst
    output), ``peak-memory`` (bytes beyond the inputs). Bencher has a measure for the first by
    default, and creates the others on first use.
    """
    cases = {record.case.id: dict(_measures(record)) for record in results.records}
    cases = {name: measures for name, measures in cases.items() if measures}
    return json.dumps(cases, indent=1, allow_nan=False) + "\n" if cases else None


def charted_latency(record: Record) -> Latency | None:
    """Return the latency; None if the result is wrong or the time is invalid or not positive."""
    latency = record.latency
    if latency is None or record.status is Status.WRONG or not latency.is_valid:
        return None
    time_s = latency.per_call_s.value
    return latency if isfinite(time_s) and time_s > 0 else None


def _ratio(latency: Latency) -> Estimate | None:
    """Return the time over the reference's time; None if there is none or it is not finite."""
    ratio = latency.reference_ratio
    return ratio if ratio is not None and isfinite(ratio.value) else None


def _error_and_memory(record: Record) -> tuple[float | None, int | None]:
    """Return the error in ulp, if finite, and the peak memory in bytes; neither if wrong."""
    if record.status is Status.WRONG:
        return None, None
    error = record.worst_ulp
    peak_bytes = record.memory.peak_extra_bytes if record.memory else None
    return (error if error is not None and isfinite(error) else None), peak_bytes


def _entries(record: Record) -> Iterator[dict[str, Any]]:
    name = record.case.id
    if latency := charted_latency(record):
        unit, time = "s", latency.per_call_s
        if ratio := _ratio(latency):
            unit, time = f"x {latency.reference}", ratio
        # the wider half of the interval, in the one notation that the action can parse
        half = max(time.high - time.value, time.value - time.low)
        interval = {"range": f"± {half:.3g}"} if isfinite(half) else {}
        yield {
            "name": f"{name}: time",
            "unit": unit,
            "value": time.value,
            **interval,
            "extra": _remark(record, latency),
        }
    error, peak_bytes = _error_and_memory(record)
    if error is not None:
        yield {"name": f"{name}: error", "unit": "ulp", "value": error, "extra": str(record.status)}
    if peak_bytes is not None:
        yield {"name": f"{name}: memory", "unit": "bytes", "value": peak_bytes}


def _remark(record: Record, latency: Latency) -> str:
    time, low, high = map(seconds_text, _ends(latency.per_call_s))
    parts = [
        f"{time} per call ({low} to {high})",
        f"timed by {latency.timer} in {count(latency.processes, 'process', 'processes')}",
        *(f"warning: {warning.kind.replace('_', ' ')}" for warning in record.warnings),
    ]
    return "\n".join(parts)


def _measures(record: Record) -> Iterator[tuple[str, dict[str, float]]]:
    if latency := charted_latency(record):
        yield "latency", _metric(latency.per_call_s, _NANOSECONDS)
        if ratio := _ratio(latency):
            yield "latency-ratio", _metric(ratio)
    error, peak_bytes = _error_and_memory(record)
    if error is not None:
        yield "error", {"value": error}
    if peak_bytes is not None:
        yield "peak-memory", {"value": peak_bytes}


def _metric(estimate: Estimate, factor: float = 1.0) -> dict[str, float]:
    """Return a value and the ends of its interval that are finite."""
    named = zip(("value", "lower_value", "upper_value"), _ends(estimate), strict=True)
    return {name: value * factor for name, value in named if isfinite(value)}


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high
