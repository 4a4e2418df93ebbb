"""The command history: what it prints, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from factories.commanding import call, complaint
from factories.compared_runs import make_case, make_record
from factories.histories import results_of_commit, runs_of, stored_history

from harness.regression import history as runs

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


def test_what_cannot_be_shown_is_refused(folder: str, tmp_path: Path) -> None:
    assert "no such folder" in complaint("history", str(tmp_path / "none"))
    assert "no case that matches nobody" in complaint("history", folder, "--case", "nobody", code=3)


SLOW, FAST = make_case("two_pass"), make_case("one_pass")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs of three cases, every second one of the preset "full"."""
    made_runs = []
    for number in range(5):
        records = [
            make_record(case, (ratio,)) for case, ratio in ((CASE, 0.7), (SLOW, 2.1), (FAST, 0.4))
        ]
        made = results_of_commit(number, *records)
        preset = "full" if number % 2 else "ci"
        run = replace(made.runs[0], command=f"layernorm-bench run --preset {preset}")
        made_runs.append(replace(made, runs=(run,)))
    return stored_history(tmp_path_factory.mktemp("several"), *made_runs)


def asked(folder: Path, *options: str) -> tuple[list[str], list[str]]:
    """Return the runs and the cases of a history."""
    found = json.loads(call("history", str(folder), *options, "--json").stdout)
    return [run["file"] for run in found["runs"]], [series["id"] for series in found["series"]]


def test_the_last_runs_of_a_preset_are_chosen(several: Path) -> None:
    files, cases = asked(several, "--run", "preset ci", "--last", "2")
    assert files == ["run002.parquet", "run004.parquet"]
    assert len(cases) == 3
    assert "no run has 'preset gone'" in complaint("history", str(several), "--run", "preset gone")


def test_the_worst_cases_of_the_last_run_come_first(several: Path) -> None:
    assert asked(several, "--worst", "2")[1] == [SLOW.id, CASE.id]
    files, cases = asked(several, "--worst", "1")
    assert (len(files), cases) == (5, [SLOW.id])
    assert asked(several, "--worst", "9", "--case", "one_pass")[1] == [FAST.id]


def test_too_many_records_are_refused(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_MOST_RECORDS", 14)
    assert "15 records of 5 runs are too many" in complaint("history", str(several))
    assert asked(several, "--case", "one_pass")[1] == [FAST.id]
    assert len(asked(several, "--last", "3")[1]) == 3
    assert len(asked(several, "--worst", "3")[1]) == 3
