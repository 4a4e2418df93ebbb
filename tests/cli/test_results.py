"""The commands that read results files: choose, report, export, history and merge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from factories.choice_records import ran
from factories.commanding import answer, call, write_journal
from factories.compared_runs import STEADY, failed, make_case, make_record, results_of
from factories.histories import runs_of, stored_history
from factories.results_factory import make_results

from harness.records import Status
from harness.store import write

RUN = Path("run.parquet")


# --- export and choose ---------------------------------------------------------------------------


def test_choosing_needs_no_torch() -> None:
    write(results_of(ran("native", 1.0), ran("one_pass", 0.5)), RUN)
    code = (
        "import sys; from harness.cli import main; "
        "main(['choose', 'run.parquet'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture
def _exported() -> None:
    timed = make_record(make_case("native"), STEADY), make_record(make_case("two_pass"), (2.0,))
    write(results_of(*timed, failed(make_case(rows=1), Status.WRONG)), RUN)


@pytest.mark.usefixtures("_exported")
def test_a_run_is_exported_to_a_new_file_or_replaces_one() -> None:
    found = call("export", "run.parquet", "--format", "csv")
    assert (found.exit_code, found.stderr) == (0, "")
    for _ in range(2):
        call("export", "run.parquet", "--format", "csv", "--out", "folder/out")
        assert Path("folder/out").read_text() == found.stdout


@pytest.mark.usefixtures("_exported")
def test_a_figure_of_the_page_is_exported() -> None:
    arguments = ("export", "run.parquet", "--figure", "latency-cpu-forward-float32", "--format")
    drawn = call(*arguments, "svg").stdout
    assert ElementTree.fromstring(drawn.encode()).tag.endswith("svg")
    assert "var(--" not in drawn  # a file of its own has no style sheet
    assert "two_pass" in drawn
    call(*arguments, "png", "--out", "picture.png")
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")


# --- history -------------------------------------------------------------------------------------


def test_the_json_of_a_history_has_each_series_with_its_changes() -> None:
    ratios = [0.7 + 0.001 * (number % 3) + 0.05 * (number >= 6) for number in range(12)]
    stored_history(Path("runs"), *runs_of(make_case("c_recentred"), ratios))
    found = answer("history", "runs")
    (series,) = found["series"]
    assert len(found["runs"]) == len(series["points"]) == 12
    assert [change["is_worse"] for change in series["changes"]] == [True]


# --- merge ---------------------------------------------------------------------------------------


SWEEP = (
    "-i", "native,two_pass", "--shape", "2x8,3x8", "--dtype", "float32,float64",
    "--measure", "errors",
)  # fmt: skip


def test_shards_become_one_file_that_a_run_continues() -> None:
    shards = [f"part{number}.parquet" for number in (1, 2, 3)]
    for number, shard in enumerate(shards, 1):
        options = ("--shard", f"{number}/3", "--out", shard, "--quiet")
        assert call("run", *SWEEP, *options).exit_code == 0
    outcome = answer("merge", shards[0], shards[2], "--out", "most.parquet")
    assert (outcome["missing"], outcome["unfinished"]) == (0, [])
    assert len(answer("run", *SWEEP, "--out", "most.parquet", "--resume")["cases"]) == 8
    text = call("merge", *shards, "--out", "whole.parquet").stdout
    assert text == "results: whole.parquet, 8 cases in 1 environment\n"
    assert call("export", "whole.parquet", "--format", "csv").stdout.count("\n") == 9


def test_an_unfinished_shard_is_named() -> None:
    write_journal(Path("cut.jsonl"), *make_results(4).records, planned=6)
    found = call("merge", "cut.parquet", "--out", "new/whole.parquet")
    assert found.exit_code == 0
    assert "2 cases of 6 planned have no record" in found.stdout
    assert "(cut.jsonl); continue it" in found.stdout
