"""github-action-benchmark's ``customSmallerIsBetter``: a list of names, units and values.

A figure a chart, and each must mean the same on every machine that a hosted runner may be: the
time is the ratio to the reference that was timed in turn with it, and seconds are a remark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

from harness.exports.charted import error_ulp, memory_bytes, ratio_of, time_of
from harness.records import Estimate, Latency, Record
from harness.store import Results

__all__ = ["smaller_is_better"]


def smaller_is_better(results: Results) -> str | None:
    """Return time, error and memory of each case as JSON; None where there is not one figure."""
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
    held = memory_bytes(record)
    if held is not None:
        yield {"name": f"{name}: memory", "unit": "bytes", "value": held}


def _time(latency: Latency) -> dict[str, Any]:
    ratio = ratio_of(latency)
    if ratio is None:
        return {"unit": "s", "value": latency.per_call_s.value, **_range(latency.per_call_s)}
    return {"unit": f"x {latency.reference}", "value": ratio.value, **_range(ratio)}


def _range(estimate: Estimate) -> dict[str, str]:
    """The wider half of the interval, in the one notation that the action can convert."""
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return {"range": f"± {half:.3g}"} if isfinite(half) else {}


def _remark(record: Record, latency: Latency) -> str:
    time = latency.per_call_s
    where = "1 process" if latency.processes == 1 else f"{latency.processes} processes"
    parts = [
        f"{time.value * 1e6:.4g} us a call ({time.low * 1e6:.4g} to {time.high * 1e6:.4g})",
        f"timed by {latency.timer} in {where}",
        *(f"warning: {each.kind.replace('_', ' ')}" for each in record.warnings),
    ]
    return "\n".join(parts)
