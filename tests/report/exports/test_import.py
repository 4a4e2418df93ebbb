"""A pytest-benchmark file becomes records that name their timer; a damaged one is refused.

tests/cli/golden/refused.txt has files of another kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from factories.commanding import call, complaint
from factories.compared_runs import ELSEWHERE, HERE, failed, make_case, make_record

from harness.records import Clock, Latency, Record
from harness.report import extra_info_of, import_benchmarks, machine_info_of
from harness.store import read

RECORD = make_record()
SAMPLES = [2e-5 + number * 1e-7 for number in range(30)]
FILE = Path("benchmark.json")
KEY = "layernorm_bench"


pytestmark = pytest.mark.usefixtures("folder")


def benchmark_of(record: Record = RECORD) -> dict[str, Any]:
    """Return what is read of a benchmark that pytest-benchmark writes with the plugin."""
    return {
        "extra_info": extra_info_of(record, model_bytes=4096),
        "options": {"timer": "perf_counter"},
        "stats": {"data": SAMPLES, "iterations": 3},
    }


def content_of(*benchmarks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a file written on the machine ``HERE``."""
    return {
        "machine_info": machine_info_of(HERE),
        "benchmarks": benchmarks,
        "datetime": "2001-02-03T04:05:06+00:00",
        **changes,
    }


def latency_of(benchmark: dict[str, Any]) -> Latency:
    FILE.write_text(json.dumps(content_of(benchmark)))
    (record,) = import_benchmarks(FILE, "import benchmark.json").records
    assert record.latency is not None
    return record.latency


def refused(content: bytes, code: int = 2) -> str:
    """Try to import a file of this content; return why it is refused."""
    FILE.write_bytes(content)
    line = complaint("import", str(FILE), "--out", "run.parquet", code=code)
    assert not Path("run.parquet").exists()
    return line.removeprefix(f"{FILE}: ")


def test_a_file_becomes_a_results_file_with_all_but_the_times_as_they_were() -> None:
    second = failed(make_case(rows=1))
    FILE.write_text(json.dumps(content_of(*map(benchmark_of, (RECORD, second)))))
    call("import", str(FILE), "--out", "made/run.parquet", code=0)
    results = read(Path("made/run.parquet"))
    assert [replace(record, latency=None) for record in results.records] == [RECORD, second]
    assert results.environments == {HERE.fingerprint: HERE}
    assert results.runs[0].started_utc == "2001-02-03T04:05:06+00:00"


@pytest.mark.parametrize(
    ("timer", "clock"),
    [
        ("perf_counter", Clock.WALL),
        ("thread_time", Clock.THREAD_CPU),
        ("process_time", Clock.PROCESS_CPU),
    ],
)
def test_the_clock_is_that_of_the_timer_and_other_figures_are_none(
    timer: str, clock: Clock
) -> None:
    latency = latency_of(benchmark_of() | {"options": {"timer": timer}})
    assert (latency.timer, latency.clock) == (f"pytest-benchmark:{timer}", clock)
    assert latency.arms[0].cpu_s == (tuple(SAMPLES) if clock.is_cpu else None)
    assert latency.model_bytes == 4096
    assert (latency.reference, latency.reference_ratio) == (None, None)


def test_rounds_are_kept_and_consecutive_rounds_are_an_epoch() -> None:
    latency = latency_of(benchmark_of())
    time, (arm,) = latency.per_call_s, latency.arms
    assert SAMPLES[0] < time.low < time.value < time.high < SAMPLES[-1]
    assert time.value == pytest.approx(sorted(SAMPLES)[14], rel=0.02)
    assert arm.epochs == tuple(place * 12 // 30 for place in range(30))
    assert (arm.calls_per_sample, arm.wall_s, arm.cpu_s) == (3, tuple(SAMPLES), None)


# --- bad input -----------------------------------------------------------------------------------


def test_a_file_without_a_benchmark_is_refused() -> None:
    refused(json.dumps(content_of()).encode(), code=3)


OF_ANOTHER_MACHINE = benchmark_of(make_record(environment=ELSEWHERE))


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda own, file: file.update(machine_info={}), KEY),
        (lambda own, file: own.update(OF_ANOTHER_MACHINE), ELSEWHERE.fingerprint),
        (lambda own, file: own.update(extra_info={}), "--layernorm-sweep"),
        (lambda own, file: own["stats"].pop("data"), "--benchmark-save-data"),
        (lambda own, file: own["options"].update(timer="sundial"), "sundial"),
        (lambda own, file: own["extra_info"][KEY].pop("status"), "status: Field required"),
        (lambda own, file: own.pop("options"), "'options'"),
        (lambda own, file: own["stats"].update(data=[1.0, 0.0]), "positive"),
        (lambda own, file: own["stats"].update(data=[1.0, nan]), "positive"),
    ],
)
def test_a_damaged_benchmark_is_refused(change: Callable[..., object], fact: str) -> None:
    benchmark = benchmark_of()
    file = content_of(benchmark)
    change(benchmark, file)
    assert fact in refused(json.dumps(file).encode())
