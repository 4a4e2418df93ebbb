"""pytest-benchmark's JSON, in the layout that its commands ``compare`` and ``list`` read.

The statistics are over the raw samples of all epochs and processes; the estimates, such as the
ratio to the reference, are under ``extra_info``. Quartiles are interpolated by the "inclusive"
method of Python's statistics, which differs a little from pytest-benchmark's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean, median, quantiles, stdev
from typing import Any

from harness.exports.benchmark_json import EXPORTED_BY, KEY, extra_info_of, machine_info_of
from harness.exports.charts import charted_latency
from harness.records import ArmRole, Case, Latency, Record
from harness.store import Results
from harness.store.plain import to_plain

__all__ = ["pytest_benchmark_json", "stats_of"]

_LAYOUT = "5.0.0"  # the version of pytest-benchmark with this layout; unchanged since 3.1
_ESTIMATES = ("timer", "per_call_s", "reference", "reference_ratio", "processes", "converged")
_FENCE_IQR = 1.5  # Tukey's fences, in interquartile ranges


def pytest_benchmark_json(results: Results) -> str | None:
    """Return the cases that are not wrong and have samples as JSON; None if there are none.

    Cases that differ only in the implementation form a group.
    """
    timed = [
        (record, latency, samples)
        for record in results.records
        if (latency := charted_latency(record)) and (samples := _samples(latency))
    ]
    if not timed:
        return None
    plain = {
        "machine_info": _machine(results, timed[0][0].environment),
        "commit_info": _commit(results),
        "benchmarks": [_benchmark(*each) for each in timed],
        "datetime": results.runs[-1].started_utc if results.runs else None,
        "version": _LAYOUT,
    }
    return json.dumps(_finite(plain), indent=1, allow_nan=False) + "\n"


def stats_of(samples: Sequence[float]) -> dict[str, Any]:
    """Return pytest-benchmark's statistics of a benchmark.

    Args:
        samples: seconds per call; one or more, in the order measured.
    """
    ordered = sorted(samples)
    mean, spread = fmean(samples), stdev(samples) if len(samples) > 1 else 0.0
    q1, q3 = ordered[0], ordered[-1]
    if len(samples) > 1:
        q1, _, q3 = quantiles(samples, n=4, method="inclusive")
    reach = _FENCE_IQR * (q3 - q1)
    within = [time_s for time_s in ordered if q1 - reach <= time_s <= q3 + reach]
    far = sum(not mean - spread <= time_s <= mean + spread for time_s in samples)
    outside = len(samples) - len(within)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": spread,
        "rounds": len(samples),
        "median": median(samples),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": within[0],
        "hd15iqr": within[-1],
        "ops": 1 / mean,
        "total": sum(samples),
        "data": list(samples),
    }


def _samples(latency: Latency) -> tuple[float, ...]:
    """Return seconds per call by the clock of the estimates; empty if one is not positive."""
    subject = next((arm for arm in latency.arms if arm.role is ArmRole.SUBJECT), None)
    if subject is None:
        return ()
    samples = (subject.cpu_s if latency.clock.is_cpu else subject.wall_s) or ()
    return samples if all(isfinite(time_s) and time_s > 0 for time_s in samples) else ()


def _benchmark(record: Record, latency: Latency, samples: Sequence[float]) -> dict[str, Any]:
    name = record.case.id
    carried = extra_info_of(record, model_bytes=latency.model_bytes)[KEY]
    estimates = {field: to_plain(getattr(latency, field)) for field in _ESTIMATES}
    subject = next(arm for arm in latency.arms if arm.role is ArmRole.SUBJECT)
    return {
        "group": replace(record.case, implementation="").id.lstrip("/"),
        "name": name,
        "fullname": f"layernorm-bench::{name}",
        "params": _params(record.case),
        "param": name,
        "extra_info": {KEY: {**carried, **estimates, EXPORTED_BY: latency.timer}},
        "options": {"timer": f"{latency.timer}:{latency.clock}"},
        "stats": {**stats_of(samples), "iterations": subject.calls_per_sample},
    }


def _params(case: Case) -> dict[str, Any]:
    """Return the axes of a case; lists as text, since a table has one cell for each."""
    return {
        name: "x".join(map(str, value)) if isinstance(value, list) else value
        for name, value in to_plain(case).items()
    }


def _machine(results: Results, fingerprint: str) -> dict[str, Any]:
    """Return the machine in pytest-benchmark's fields, and the environment under KEY."""
    environment = results.environments.get(fingerprint)
    if environment is None:
        return {}
    return {
        "processor": environment.cpu,
        "python_version": environment.python,
        "release": environment.platform,
        "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        **machine_info_of(environment),
    }


def _commit(results: Results) -> dict[str, Any]:
    run = results.runs[-1] if results.runs else None
    return {
        "id": run.git_commit if run else None,
        "dirty": run.git_dirty if run else None,
        "project": "layernorm-bench",
    }


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
