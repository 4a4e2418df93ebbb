"""The values of a record that a chart over commits, or a table of times, may show."""

from __future__ import annotations

from math import isfinite

from harness.records import Estimate, Latency, Record, Status

__all__ = ["error_ulp", "memory_bytes", "ratio_of", "time_of"]


def time_of(record: Record) -> Latency | None:
    """Return the latency; None if the result is wrong or the time is invalid or not positive."""
    latency = record.latency
    if latency is None or record.status is Status.WRONG or not latency.is_valid:
        return None
    time_s = latency.per_call_s.value
    return latency if isfinite(time_s) and time_s > 0 else None


def ratio_of(latency: Latency) -> Estimate | None:
    """Return the time over the reference's time; None if there is none or it is not finite."""
    ratio = latency.reference_ratio
    return ratio if ratio is not None and isfinite(ratio.value) else None


def error_ulp(record: Record) -> float | None:
    """Return the scaled error of the worst output; None if wrong or not finite."""
    error = record.worst_ulp
    if error is None or record.status is Status.WRONG:
        return None
    return error if isfinite(error) else None


def memory_bytes(record: Record) -> int | None:
    """Return the peak memory of a call beyond its inputs; None if the result is wrong."""
    if record.memory is None or record.status is Status.WRONG:
        return None
    return record.memory.peak_extra_bytes
