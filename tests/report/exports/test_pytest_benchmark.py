"""pytest-benchmark reads the exported JSON, and its own statistics are equal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_runs import (
    HERE,
    STEADY,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
    with_error,
)
from exported import stats_from
from hypothesis import given
from hypothesis import strategies as st
from results_factory import make_run

from harness.records import Arm, ArmRole, Clock, Mode, Record, Status
from harness.report.exports.pytest_benchmark import KEY, pytest_benchmark_json, stats_of
from harness.store import Results, to_plain

ONE, TWO = make_record(make_case("native"), STEADY), make_record(make_case("two_pass"), (2.0,))
# pytest-benchmark counts or interpolates these by rules of its own
OWN_RULES = {
    "q1", "q3", "iqr", "iqr_outliers", "stddev_outliers", "outliers", "ld15iqr", "hd15iqr",
}  # fmt: skip


def exported(*records: Record) -> dict[str, Any]:
    text = pytest_benchmark_json(results_of(*records))
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


def ask(folder: Path, *arguments: str) -> str:
    """Run pytest-benchmark's own command and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Failed to load" not in done.stderr
    return done.stdout


def test_the_compare_command_of_pytest_benchmark_reads_two_runs(tmp_path: Path) -> None:
    for name, ratio in (("0001_before", 2.0), ("0002_after", 4.0)):
        two = replace(TWO, latency=make_latency((ratio,)))
        text = pytest_benchmark_json(results_of(ONE, two))
        assert text is not None
        (tmp_path / f"{name}.json").write_text(text)
    found = ask(
        tmp_path, "compare", "0001_before.json", "0002_after.json", "--columns=median,rounds"
    )
    assert "benchmark 'forward/64x768/float32/normal': 4 tests" in found
    rows = {line.split(" (")[0]: line for line in found.splitlines() if "/forward/" in line}
    assert set(rows) == {ONE.case.id, TWO.case.id}
    assert "400.0000" in found  # microseconds, of the second
    between = ask(tmp_path, "compare", "0001_before.json", "0002_after.json", "--between=median")
    assert "+100.0%" in between


@given(st.lists(st.floats(min_value=1e-9, max_value=1e3, allow_nan=False), min_size=1, max_size=40))
def test_statistics_equal_those_of_pytest_benchmark(samples: list[float]) -> None:
    theirs, ours = stats_from(samples), stats_of(samples)
    assert set(ours) == {*theirs, "data"}
    for name in set(theirs) - OWN_RULES:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-9, abs=1e-18)
    assert ours["min"] <= ours["q1"] <= ours["median"] <= ours["q3"] <= ours["max"]
    assert ours["min"] <= ours["ld15iqr"] <= ours["hd15iqr"] <= ours["max"]
    assert ours["outliers"] == f"{ours['stddev_outliers']};{ours['iqr_outliers']}"


def test_outliers_are_counted_and_one_sample_has_none() -> None:
    stats = stats_of([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 9.0])
    assert (stats["outliers"], stats["hd15iqr"]) == ("1;1", 1.1)
    stats = stats_of([2.0])
    assert (stats["stddev"], stats["iqr"], stats["outliers"]) == (0.0, 0.0, "0;0")


def test_the_estimate_and_its_timer_are_in_extra_info() -> None:
    (benchmark,) = exported(with_error(ONE, scaled_max_ulp=float("inf")))["benchmarks"]
    info = benchmark["extra_info"][KEY]
    assert info["errors"]["outputs"][0]["scaled_max_ulp"] is None
    assert ONE.latency is not None
    assert info["reference_ratio"] == to_plain(ONE.latency.reference_ratio)
    assert info["case"] == to_plain(ONE.case)
    assert (info["status"], info["timer"]) == ("ok", "layernorm-bench")
    assert benchmark["options"]["timer"] == "layernorm-bench:thread_cpu"
    assert benchmark["params"]["shape"] == "64x768"


def test_eager_and_compiled_are_two_groups() -> None:
    compiled = make_record(replace(ONE.case, mode=Mode.COMPILED), STEADY)
    groups = [benchmark["group"] for benchmark in exported(ONE, compiled)["benchmarks"]]
    assert groups == ["forward/64x768/float32/normal", "forward/64x768/float32/normal/compiled"]


def test_samples_are_those_of_the_clock_of_the_estimates() -> None:
    subject = Arm(
        role=ArmRole.SUBJECT,
        name="native",
        calls_per_sample=7,
        wall_s=(3.0, 4.0),
        cpu_s=(1.0, 2.0),
        epochs=(0, 1),
    )
    for clock, samples in ((Clock.THREAD_CPU, [1.0, 2.0]), (Clock.WALL, [3.0, 4.0])):
        latency = make_latency(arms=(subject,), clock=clock)
        stats = exported(replace(ONE, latency=latency))["benchmarks"][0]["stats"]
        assert stats["data"] == samples
        assert stats["iterations"] == 7


def test_machine_and_commit_are_in_the_fields_of_pytest_benchmark() -> None:
    run = make_run(planned=1, git_commit="abc")
    text = pytest_benchmark_json(
        Results(records=(ONE,), runs=(run,), environments={HERE.fingerprint: HERE})
    )
    found = json.loads(text or "")
    assert found["machine_info"]["cpu"]["brand_raw"] == "Imaginary CPU 9000"
    assert found["machine_info"][KEY] == to_plain(HERE)
    assert found["commit_info"] == {"id": "abc", "dirty": None, "project": "layernorm-bench"}
    assert found["datetime"] == run.started_utc


def test_a_wrong_case_or_one_without_samples_is_not_a_benchmark() -> None:
    bare = replace(ONE, latency=make_latency(arms=()))
    negative = replace(ONE, latency=make_latency((-1.0,)))
    wrong = replace(ONE, status=Status.WRONG)
    for record in (bare, negative, wrong, failed(ONE.case), replace(ONE, latency=None)):
        assert pytest_benchmark_json(results_of(record)) is None
        assert len(exported(TWO, record)["benchmarks"]) == 1
