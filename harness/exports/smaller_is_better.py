"""github-action-benchmark's ``customSmallerIsBetter``: a list of names, units and values.

Each value is one chart, and must mean the same on every machine that a hosted runner may be. So the
time is the ratio to the reference timed in turn with it; seconds are only in the remark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

from harness.exports.charted import error_ulp, memory_bytes, ratio_of, time_of
from harness.records import Estimate, Latency, Record
from harness.records.text import count, seconds_text
from harness.store import Results

__all__ = ["smaller_is_better"]


def smaller_is_better(results: Results) -> str | None:
    """Return time, error and memory of each case as JSON; None if there are none."""
    entries = [entry for record in results.records for entry in _entries(record)]
    return json.dumps(entries, indent=1, allow_nan=False) + "\n" if entries else None


def _entries(record: Record) -> Iterator[dict[str, Any]]:
    name = record.case.id
    latency = time_of(record)
    if latency is not None:
        yield {"name": f"{name}: time", **_time(latency), "extra": _remark(record, latency)}
    error = error_ulp(record)
    if error is not None:
        yield {"name": f"{name}: error", "unit": "ulp", "value": error, "extra": str(record.status)}
    peak_bytes = memory_bytes(record)
    if peak_bytes is not None:
        yield {"name": f"{name}: memory", "unit": "bytes", "value": peak_bytes}


def _time(latency: Latency) -> dict[str, Any]:
    ratio = ratio_of(latency)
    if ratio is None:
        return {"unit": "s", "value": latency.per_call_s.value, **_range(latency.per_call_s)}
    return {"unit": f"x {latency.reference}", "value": ratio.value, **_range(ratio)}


def _range(estimate: Estimate) -> dict[str, str]:
    """Return the wider half of the interval, in the one notation that the action can parse."""
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return {"range": f"± {half:.3g}"} if isfinite(half) else {}


def _remark(record: Record, latency: Latency) -> str:
    time = latency.per_call_s
    parts = [
        f"{seconds_text(time.value)} per call "
        f"({seconds_text(time.low)} to {seconds_text(time.high)})",
        f"timed by {latency.timer} in {count(latency.processes, 'process', 'processes')}",
        *(f"warning: {warning.kind.replace('_', ' ')}" for warning in record.warnings),
    ]
    return "\n".join(parts)
