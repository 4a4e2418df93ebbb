"""Comparisons, runs and pytest-benchmark files for the tests of exports. NOTHING WAS MEASURED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_benchmark.stats import Stats

from factories.compared_runs import (
    HERE,
    STEADY,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
)
from harness.records import Estimate, Record, Status
from harness.regression import Change, ChangeKind, Comparison
from harness.report.pytest_benchmark import extra_info_of, machine_info_of
from harness.store import Results

RATIO = Estimate(value=1.25, low=1.2, high=1.3)


def change_of(kind: ChangeKind, reason: str = "why", number: int = 0, **more: object) -> Change:
    case = more.pop("case", None) or make_case(rows=number)
    return Change(case=case, kind=kind, reason=reason, **more)  # type: ignore[arg-type]


def comparison_of(*changes: Change, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(changes=changes, baseline="old.parquet", head="new.parquet", notes=notes)


def one_of_each() -> Comparison:
    """Return one change of each kind, each of a different case, ordered from worst to best."""
    changes = [
        change_of(kind, f"because {number}", number, ratio=RATIO if number == 1 else None)
        for number, kind in enumerate(ChangeKind)
    ]
    return comparison_of(*changes, notes=("it rains",))


def one_of_each_status(**run: Any) -> Results:
    """Return a run with one case per status, and one OK case whose latency is invalid."""
    right = make_record(make_case(rows=98), STEADY)
    invalid = make_record(make_case(rows=99), latency=make_latency(is_valid=False))
    others = [status for status in Status if status is not Status.OK]
    records = [failed(make_case(rows=rows), status) for rows, status in enumerate(others)]
    return results_of(right, invalid, *records, **run)


def stats_from(samples: Sequence[float]) -> dict[str, Any]:
    """Return pytest-benchmark's own statistics of samples."""
    stats: Any = Stats()  # type: ignore[no-untyped-call]
    for sample in samples:
        stats.update(sample)
    plain: dict[str, Any] = stats.as_dict()
    return plain


def benchmark_of(record: Record, samples: Sequence[float], **changes: Any) -> dict[str, Any]:
    """Return a benchmark as pytest-benchmark writes it when the project's plugin is active."""
    stats = stats_from(samples)
    name = record.case.id
    return {
        "group": "forward",
        "name": name,
        "fullname": f"ci::{name}",
        "params": None,
        "param": None,
        "extra_info": extra_info_of(record, model_bytes=4096),
        "options": {"disable_gc": False, "timer": "perf_counter", "min_rounds": 5},
        "stats": {**stats, "data": list(samples), "iterations": 3},
        **changes,
    }


def benchmark_file(*benchmarks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a pytest-benchmark file written on the machine ``HERE``."""
    return {
        "machine_info": {"node": "here", **machine_info_of(HERE)},
        "commit_info": {"id": "unversioned", "dirty": False},
        "benchmarks": list(benchmarks),
        "datetime": "2001-02-03T04:05:06+00:00",
        "version": "5.3.1",
        **changes,
    }
