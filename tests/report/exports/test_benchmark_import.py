"""A pytest-benchmark file becomes records that name their timer; any other file is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from factories.compared_runs import ELSEWHERE, HERE, failed, make_case, make_record
from factories.exported import benchmark_file, benchmark_of

from harness.cli import main
from harness.records import Arm, ArmRole, Clock, Latency, Record
from harness.report.pytest_benchmark import KEY, import_benchmarks
from harness.store import read

RECORD = make_record()
SAMPLES = [2e-5 + number * 1e-7 for number in range(30)]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["import", *arguments])


def imported(*benchmarks: dict[str, Any], **changes: Any) -> tuple[Record, ...]:
    """Write a file, and return the records of it."""
    path = Path("benchmark.json")
    path.write_text(json.dumps(benchmark_file(*benchmarks, **changes)))
    return import_benchmarks(path, "import benchmark.json").records


def latency_of(**changes: Any) -> Latency:
    (record,) = imported(benchmark_of(RECORD, SAMPLES, **changes))
    assert record.latency is not None
    return record.latency


def refused(content: str | bytes, code: int = 2) -> str:
    """Try to import a file of this content; return the line on standard error."""
    raw = content if isinstance(content, bytes) else content.encode()
    Path("benchmark.json").write_bytes(raw)
    done = call("benchmark.json", "--out", "run.parquet")
    assert done.exit_code == code, done.output
    assert not Path("run.parquet").exists()
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("layernorm-bench: benchmark.json: ")


def with_changed(change: Callable[[dict[str, Any]], object]) -> str:
    """Return a file whose one benchmark was changed."""
    benchmark = benchmark_of(RECORD, SAMPLES)
    change(benchmark)
    return json.dumps(benchmark_file(benchmark))


def test_a_file_becomes_a_results_file_with_all_but_the_times_as_they_were() -> None:
    second = failed(make_case(rows=1))
    benchmarks = [benchmark_of(item, SAMPLES) for item in (RECORD, second)]
    Path("benchmark.json").write_text(json.dumps(benchmark_file(*benchmarks)))
    found = call("benchmark.json", "--out", "made/run.parquet")
    assert found.exit_code == 0, found.output
    results = read(Path("made/run.parquet"))
    assert [replace(record, latency=None) for record in results.records] == [RECORD, second]
    assert results.environments == {HERE.fingerprint: HERE}
    assert results.why_unfinished is None
    (run,) = results.runs
    assert run.started_utc == "2001-02-03T04:05:06+00:00"
    assert run.wall_s == pytest.approx(2 * 3 * sum(SAMPLES))


def test_existing_results_are_not_overwritten() -> None:
    Path("benchmark.json").write_text(json.dumps(benchmark_file(benchmark_of(RECORD, SAMPLES))))
    Path("run.parquet").write_text("of an earlier run")
    assert call("benchmark.json", "--out", "run.parquet").exit_code == 2
    assert Path("run.parquet").read_text() == "of an earlier run"


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
    latency = latency_of(options={"timer": timer})
    assert (latency.timer, latency.clock) == (f"pytest-benchmark:{timer}", clock)
    assert latency.arms[0].cpu_s == (tuple(SAMPLES) if clock.is_cpu else None)
    assert latency.model_bytes == 4096
    assert latency.reference is None
    assert latency.reference_ratio is None
    assert latency.ceiling_ratio is None
    assert latency.minor_faults_ratio is None


def test_rounds_are_kept_and_consecutive_rounds_are_an_epoch() -> None:
    latency = latency_of()
    time, (arm,) = latency.per_call_s, latency.arms
    assert SAMPLES[0] < time.low < time.value < time.high < SAMPLES[-1]
    assert time.value == pytest.approx(sorted(SAMPLES)[14], rel=0.02)
    epochs = tuple(place * 12 // 30 for place in range(30))
    assert arm == Arm(
        role=ArmRole.SUBJECT,
        name="two_pass",
        calls_per_sample=3,
        wall_s=tuple(SAMPLES),
        cpu_s=None,
        epochs=epochs,
    )
    assert len(set(epochs)) == 12


def test_one_round_has_an_infinite_interval() -> None:
    (record,) = imported(benchmark_of(RECORD, [2e-5]))
    assert record.latency is not None
    assert (record.latency.per_call_s.low, record.latency.per_call_s.high) == (0.0, inf)
    assert not record.latency.converged


# --- bad input -----------------------------------------------------------------------------------


def test_a_missing_file_and_another_suffix_are_refused() -> None:
    done = call("gone.json", "--out", "run.parquet")
    assert done.exit_code == 2
    assert "gone.json" in done.stderr
    assert "--layernorm-sweep" in done.stderr
    done = call("gone.json", "--out", "run.json")
    assert done.exit_code == 2
    assert "run.json" in done.stderr


def test_a_file_of_no_machine_or_of_two_machines_is_refused() -> None:
    benchmark = benchmark_of(RECORD, SAMPLES)
    assert KEY in refused(json.dumps(benchmark_file(benchmark, machine_info={"node": "here"})))
    other = benchmark_of(make_record(make_case(rows=1), environment=ELSEWHERE), SAMPLES)
    assert ELSEWHERE.fingerprint in refused(json.dumps(benchmark_file(benchmark, other)))
    refused(json.dumps(benchmark_file()), code=3)  # it holds no benchmark


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"PAR1", b"\xff\xfe", b'{"benchmarks": [', b"[" * 99999),  # no JSON
        *(b"[]", b"3", b"{}", b'{"benchmarks": 3, "machine_info": {}}'),  # JSON of something else
    ],
)
def test_any_other_file_is_refused(content: bytes) -> None:
    assert "JSON" in refused(content)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda each: each.update(extra_info={}), "--layernorm-sweep"),
        (lambda each: each["stats"].pop("data"), "--benchmark-save-data"),
        (lambda each: each["options"].update(timer="sundial"), "sundial"),
        (lambda each: each["extra_info"][KEY].pop("status"), "status: Field required"),
        (lambda each: each["extra_info"][KEY].pop("model_bytes"), "'model_bytes'"),
        (lambda each: each["extra_info"][KEY].update(status="splendid"), "splendid"),
        (lambda each: each["extra_info"][KEY].update(case="native"), "damaged"),
        (lambda each: each.update(extra_info=None), "damaged"),
        (lambda each: each.pop("options"), "'options'"),
        (lambda each: each["stats"].update(data=["fast"]), "fast"),
        (lambda each: each["stats"].update(data=[1.0, 0.0]), "positive"),
        (lambda each: each["stats"].update(data=[1.0, inf]), "positive"),
        (lambda each: each["stats"].update(data=[1.0, nan]), "positive"),
    ],
)
def test_a_damaged_benchmark_is_refused(
    change: Callable[[dict[str, Any]], object], fact: str
) -> None:
    assert fact in refused(with_changed(change))
