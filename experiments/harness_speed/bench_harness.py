"""How long the harness's own parts take; `tox run -e bench` prints the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from factories import results_factory
from pytest_benchmark.fixture import BenchmarkFixture

from harness.store import read, write

ROWS = 5000
MANY_ROWS = 100_000


@pytest.fixture(scope="module")
def results_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(ROWS, tmp_path_factory.mktemp("results"))


def synthetic(rows: int, folder: Path) -> Path:
    path = folder / "synthetic.parquet"
    write(results_factory.make_results(rows), path)
    return path


def command(*arguments: str | Path) -> None:
    cli = "from harness.cli import main; main()"
    subprocess.run([sys.executable, "-c", cli, *arguments], check=True, capture_output=True)


def test_help(benchmark: BenchmarkFixture) -> None:
    """Mark: 0.15 s."""
    benchmark.pedantic(command, args=("--help",), rounds=10)


def test_page_of_5000_rows(benchmark: BenchmarkFixture, results_file: Path, tmp_path: Path) -> None:
    """Marks: 6 s, 2 MB."""
    page = tmp_path / "page.html"
    benchmark.pedantic(command, args=("report", results_file, "--out", page), rounds=3)
    benchmark.extra_info["page_bytes"] = page.stat().st_size


def test_page_of_100000_rows(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Marks: 30 s, 6 MB."""
    results_file, page = synthetic(MANY_ROWS, tmp_path), tmp_path / "page.html"
    benchmark.pedantic(command, args=("report", results_file, "--out", page), rounds=1)
    benchmark.extra_info["page_bytes"] = page.stat().st_size


def test_read_5000_rows(benchmark: BenchmarkFixture, results_file: Path) -> None:
    benchmark.pedantic(read, args=(results_file,), kwargs={"samples": False}, rounds=3)
