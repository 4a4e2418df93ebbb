"""The command merge: shards of a run become one file, which other commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories.commanding import call, complaint, write_journal
from factories.results_factory import make_results

SWEEP = (
    "-i", "native,two_pass", "--shape", "2x8,3x8", "--dtype", "float32,float64",
    "--measure", "errors",
)  # fmt: skip


@pytest.fixture
def _shards() -> None:
    for number in (1, 2, 3):
        shard = ("--shard", f"{number}/3", "--out", f"part{number}.parquet")
        assert call("run", *SWEEP, *shard, "--quiet").exit_code == 0


@pytest.mark.usefixtures("_shards")
def test_shards_become_one_file_that_a_run_continues() -> None:
    found = call("merge", "part1.parquet", "part3.parquet", "--out", "most.parquet", "--json")
    outcome = json.loads(found.stdout)
    assert (found.exit_code, outcome["missing"], outcome["unfinished"]) == (0, 0, [])
    resumed = ("run", *SWEEP, "--out", "most.parquet", "--resume", "--json")
    assert len(json.loads(call(*resumed).stdout)["cases"]) == 8
    # the cases of part2, measured again
    assert "with different results" in complaint(
        "merge", "most.parquet", "part2.parquet", "--out", "whole.parquet"
    )
    text = call("merge", *(f"part{n}.parquet" for n in (1, 2, 3)), "--out", "whole.parquet").stdout
    assert text == "results: whole.parquet, 8 cases in 1 environment\n"
    assert call("export", "whole.parquet", "--format", "csv").stdout.count("\n") == 9


def test_an_unfinished_shard_is_named() -> None:
    write_journal(Path("cut.jsonl"), *make_results(4).records, planned=6)
    found = call("merge", "cut.parquet", "--out", "new/whole.parquet")
    assert found.exit_code == 0
    assert " ".join(found.stdout.split("\n", 1)[1].split()) == (
        "2 cases of 6 planned have no record, because a run was cut short (cut.jsonl); continue it "
        "with --resume, and merge again"
    )


@pytest.mark.usefixtures("_shards")
def test_what_cannot_be_merged_is_refused() -> None:
    assert "no such file" in complaint("merge", "gone.parquet", "--out", "whole.parquet")
    assert "ends in .parquet" in complaint("merge", "part1.parquet", "--out", "whole.csv")
    assert "exists" in complaint("merge", "part1.parquet", "--out", "part2.parquet")
    Path("file").write_text("no folder")
    assert "cannot be written" in complaint("merge", "part1.parquet", "--out", "file/a.parquet")
