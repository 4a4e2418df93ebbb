"""The command history: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commanding import call, complaint
from compared_runs import make_case
from histories import runs_of, stored_history

CASE = make_case("c_recentred")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    values = [0.7 + 0.001 * (i % 3) + 0.05 * (i >= 6) for i in range(12)]
    return str(stored_history(tmp_path_factory.mktemp("history"), *runs_of(CASE, values)))


def test_the_change_is_printed(folder: str) -> None:
    found = call("history", folder)
    assert found.exit_code == 0
    assert "1 of 1 series changed" in found.stdout


def test_json_has_runs_series_and_changes(folder: str) -> None:
    found = json.loads(call("history", folder, "--metric", "time", "--json").stdout)
    assert len(found["runs"]) == 12
    (series,) = found["series"]
    assert len(series["points"]) == 12
    speed = json.loads(call("history", folder, "--json").stdout)
    assert [change["is_worse"] for change in speed["series"][0]["changes"]] == [True]


def test_the_metrics_are_those_of_the_trends() -> None:
    from harness.cli.history import METRICS
    from harness.regression.history.series import TrendMetric

    assert tuple(TrendMetric) == METRICS


def test_what_cannot_be_shown_is_refused(folder: str, tmp_path: Path) -> None:
    assert "no such folder" in complaint("history", str(tmp_path / "none"))
    assert "no case that matches nobody" in complaint("history", folder, "--case", "nobody", code=3)
