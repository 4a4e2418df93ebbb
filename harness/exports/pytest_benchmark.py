"""pytest-benchmark's JSON, in the layout that its ``compare`` and ``list`` read.

Its statistics are over our raw samples, all epochs and processes together; what we conclude from
them, the ratio to the reference above all, is under ``extra_info``. Its quartiles are interpolated
(the "inclusive" method of Python's statistics), which differs a little from its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean, median, quantiles, stdev
from typing import Any

from harness.exports.benchmark_json import EXPORTED_BY, KEY, extra_info_of, machine_info_of
from harness.exports.charted import time_of
from harness.records import ArmRole, Case, Latency, Record
from harness.store import Results
from harness.store.plain import to_plain

__all__ = ["pytest_benchmark_json", "stats_of"]

_LAYOUT = "5.0.0"  # the version of pytest-benchmark whose layout this is; the same since 3.1
_TELLING = ("timer", "per_call_s", "reference", "reference_ratio", "processes", "converged")
_REACH = 1.5  # Tukey's fences, in interquartile ranges


def pytest_benchmark_json(results: Results) -> str | None:
    """Return the right cases that have samples as JSON; None where there is not one.

    Cases that differ in the implementation alone are a group.
    """
    timed = [
        (record, latency, samples)
        for record in results.records
        if (latency := time_of(record)) and (samples := _samples(latency))
    ]
    if not timed:
        return None
    found = {
        "machine_info": _machine(results, timed[0][0].environment),
        "commit_info": _commit(results),
        "benchmarks": [_benchmark(*each) for each in timed],
        "datetime": results.runs[-1].started_utc if results.runs else None,
        "version": _LAYOUT,
    }
    return json.dumps(_finite(found), indent=1, allow_nan=False) + "\n"


def stats_of(samples: Sequence[float]) -> dict[str, Any]:
    """Return what pytest-benchmark tells of a benchmark, seconds per round of one call.

    Args:
        samples: one or more, in the order measured.
    """
    ordered = sorted(samples)
    mean, spread = fmean(samples), stdev(samples) if len(samples) > 1 else 0.0
    q1, q3 = ordered[0], ordered[-1]
    if len(samples) > 1:
        q1, _, q3 = quantiles(samples, n=4, method="inclusive")
    reach = _REACH * (q3 - q1)
    within = [each for each in ordered if q1 - reach <= each <= q3 + reach]
    far = sum(not mean - spread <= each <= mean + spread for each in samples)
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
    """Seconds per call by the clock of the estimates; empty where there are none to be used."""
    subject = next((each for each in latency.arms if each.role is ArmRole.SUBJECT), None)
    if subject is None:
        return ()
    found = subject.cpu_s if latency.clock.is_cpu else subject.wall_s
    usable = found and all(isfinite(each) and each > 0 for each in found)
    return found if found and usable else ()


def _benchmark(record: Record, latency: Latency, samples: Sequence[float]) -> dict[str, Any]:
    name = record.case.id
    carried = extra_info_of(record, model_bytes=latency.model_bytes)[KEY]
    told = {each: to_plain(getattr(latency, each)) for each in _TELLING}
    subject = next(each for each in latency.arms if each.role is ArmRole.SUBJECT)
    return {
        "group": replace(record.case, implementation="").id.lstrip("/"),
        "name": name,
        "fullname": f"layernorm-bench::{name}",
        "params": _params(record.case),
        "param": name,
        "extra_info": {KEY: {**carried, **told, EXPORTED_BY: latency.timer}},
        "options": {"timer": f"{latency.timer}:{latency.clock}"},
        "stats": {**stats_of(samples), "iterations": subject.calls_per_sample},
    }


def _params(case: Case) -> dict[str, Any]:
    """The axes of a case; those that are lists as text, since a table has a cell for each."""
    return {
        name: "x".join(map(str, value)) if isinstance(value, list) else value
        for name, value in to_plain(case).items()
    }


def _machine(results: Results, fingerprint: str) -> dict[str, Any]:
    """The machine in pytest-benchmark's words, and in ours."""
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
    """The same with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
