"""The plugin writes a pytest-benchmark file, which is imported again."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from harness.records import Status
from harness.report.pytest_benchmark import import_benchmarks
from harness.store import Results

SWEEP = """
[[grids]]
implementations = ["native", "one_pass"]
shapes = ["4x8"]
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the records of a pytest session with the plugin, in a process of its own."""
    folder = tmp_path_factory.mktemp("round")
    (folder / "tiny.toml").write_text(SWEEP)
    (folder / "pytest.ini").write_text("[pytest]\n")
    installed = "layernorm_bench" in {
        entry_point.name for entry_point in entry_points(group="pytest11")
    }
    arguments = [
        *([] if installed else ["-p", "layernorm_bench"]),
        "--layernorm-sweep=tiny.toml",
        "--benchmark-json=found.json",
        "--benchmark-max-time=0.01",
        "--benchmark-min-rounds=2",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return import_benchmarks(folder / "found.json", "import found.json")


def test_every_case_has_its_status_and_its_timer(imported: Results) -> None:
    assert {record.case.implementation for record in imported.records} == {"native", "one_pass"}
    for record in imported.records:
        assert record.status is Status.OK
        assert record.errors is not None
        assert record.latency is not None
        assert record.latency.timer == "pytest-benchmark:perf_counter"
        assert record.latency.model_bytes == 4 * (2 * 4 * 8 + 2 * 8)
