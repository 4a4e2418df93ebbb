"""Published results can be read and tabulated again; a handful of damaged files is handled."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.python_process import python
from fuzz import fuzz

from harness.store import read

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").glob("*/*.parquet"))
MADE_BY = {
    "gates.parquet": "gates/live_gates.py",
    "counts.parquet": "gates/counts.py",
    "timers.parquet": "timers/compare_timers.py",
    "coverage.parquet": "estimates/interval_coverage.py",
    "uneven_calls.parquet": "estimates/uneven_calls.py",
    "detection_limits.parquet": "detection_limits/detection_limits.py",
    "compare_fail.parquet": "gates/compare_fail.py",
    "faults.parquet": "faults/inject.py",
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
    assert "| --- |" in python(script, "--report", "--out", path, code=0).stdout


@pytest.mark.parametrize(
    ("program", "page"),
    [
        ("peers/peer_findings.py", "peers.md"),
        ("peer_tests", "peer-tests.md"),
        ("bug_reports", "bug-reports.md"),
        ("findings/findings.py", "findings.md"),
    ],
)
def test_a_published_page_is_that_of_the_published_results(program: str, page: str) -> None:
    path, experiments = ROOT / "reports" / "published" / page, ROOT / "experiments"
    published = path.read_text()
    try:
        python(experiments / program, "--report", code=0, PYTHONPATH=str(experiments))
        assert path.read_text() == published
    finally:
        path.write_text(published)


# === A handful of the mutated files and random command lines of experiments/fuzz


def test_damaged_files_and_random_command_lines_are_handled() -> None:
    assert fuzz.findings(files=12, lines=40, seed=3) == []
