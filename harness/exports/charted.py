"""What a chart over commits may show of a record, and a table of times."""

from __future__ import annotations

from math import isfinite

from harness.records import Estimate, Latency, Record, Status

__all__ = ["error_ulp", "memory_bytes", "ratio_of", "time_of"]


def time_of(record: Record) -> Latency | None:
    """Return the latency of a right result; a wrong one has no time worth telling, however short.

    None too where the time is not to be believed, or is no positive number.
    """
    latency = record.latency
    if latency is None or record.status is Status.WRONG or not latency.is_valid:
        return None
    time_s = latency.per_call_s.value
    return latency if isfinite(time_s) and time_s > 0 else None


def ratio_of(latency: Latency) -> Estimate | None:
    """Return the time over that of the reference; None where there is none, or it is no number."""
    ratio = latency.reference_ratio
    return ratio if ratio is not None and isfinite(ratio.value) else None


def error_ulp(record: Record) -> float | None:
    """Return the error of the worst output, scaled; None of a wrong one, or if it is no number."""
    error = record.worst_ulp
    if error is None or record.status is Status.WRONG:
        return None
    return error if isfinite(error) else None


def memory_bytes(record: Record) -> int | None:
    """Return the most that a call held at once beyond its inputs; None of a wrong one."""
    if record.memory is None or record.status is Status.WRONG:
        return None
    return record.memory.peak_extra_bytes
