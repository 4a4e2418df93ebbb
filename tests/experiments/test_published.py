"""Every published result can be read, and its tables can be made again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.store import read

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").glob("*/*.parquet"))
MADE_BY = {
    "gates.parquet": "gates/live_gates.py",
    "timers.parquet": "timers/compare_timers.py",
    "coverage.parquet": "estimates/interval_coverage.py",
    "uneven_calls.parquet": "estimates/uneven_calls.py",
    "detection_limits.parquet": "detection_limits/detection_limits.py",
    "compare_fail.parquet": "gates/compare_fail.py",
    "driver_kills.parquet": "faults/kill_driver.py",
    "history_detection.parquet": "history/detection.py",
    "many_files.parquet": "sizes/many_files.py",
    "red_team.parquet": "red_team/red_team.py",
    "sizes.parquet": "sizes/sizes.py",
}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_published_result_is_read(path: Path) -> None:
    if path.name not in MADE_BY:
        assert read(path).records
        return
    script = ROOT / "experiments" / MADE_BY[path.name]
    report = subprocess.run(
        [sys.executable, script, "--report", "--out", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.returncode == 0, report.stderr
    assert "| --- |" in report.stdout


@pytest.mark.parametrize(
    ("program", "row"),
    [("peers/peer_findings.py", "| native |"), ("peer_tests", "| float32, of ")],
)
def test_a_page_is_made_from_the_published_results(program: str, row: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "experiments" / program, "--report"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "experiments")},
    )
    assert done.returncode == 0, done.stderr
    assert row in done.stdout
