"""What is exported and imported, as the tests want it. NOTHING IN HERE WAS MEASURED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compared_runs import HERE, make_case
from pytest_benchmark.stats import Stats

from harness.exports.benchmark_json import extra_info_of, machine_info_of
from harness.records import Estimate, Record
from harness.regression.changes import Change, ChangeKind, Comparison

RATIO = Estimate(value=1.25, low=1.2, high=1.3)


def change_of(kind: ChangeKind, reason: str = "why", number: int = 0, **more: object) -> Change:
    case = more.pop("case", None) or make_case(rows=number)
    return Change(case=case, kind=kind, reason=reason, **more)  # type: ignore[arg-type]


def comparison_of(*changes: Change, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(changes=changes, baseline="old.parquet", head="new.parquet", notes=notes)


def one_of_each() -> Comparison:
    """A change of each kind, the worst first, each of a case of its own."""
    kinds = enumerate(ChangeKind)
    return comparison_of(
        *(change_of(kind, f"because {number}", number) for number, kind in kinds),
        notes=("it rains",),
    )


def stats_from(samples: Sequence[float]) -> dict[str, Any]:
    """Return what pytest-benchmark itself tells of some samples."""
    stats: Any = Stats()  # type: ignore[no-untyped-call]
    for each in samples:
        stats.update(each)
    found: dict[str, Any] = stats.as_dict()
    return found


def benchmark_of(record: Record, samples: Sequence[float], **changes: Any) -> dict[str, Any]:
    """A benchmark as pytest-benchmark writes it of a test of our plugin."""
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
    """A file of pytest-benchmark's, of the machine that the compared runs are of."""
    return {
        "machine_info": {"node": "here", **machine_info_of(HERE)},
        "commit_info": {"id": "unversioned", "dirty": False},
        "benchmarks": list(benchmarks),
        "datetime": "2001-02-03T04:05:06+00:00",
        "version": "5.3.1",
        **changes,
    }
