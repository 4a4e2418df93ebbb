"""What changed between two runs: ``compare`` as text and Markdown, ``report --baseline``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from factories.checked_runs import BASELINE, ONE, counts, run_of, store
from factories.choice_records import ran
from factories.commanding import call, write_journal
from factories.compared_runs import STEADY, make_record, results_of

from harness.records import Status
from harness.store import write

pytestmark = pytest.mark.usefixtures("install")  # timing fails the test


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """A run, and a later one in which the case is wrong."""
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    record = ran("one_pass", 0.5)
    write(results_of(record), before)
    write(results_of(replace(record, status=Status.WRONG, reason="y is off")), after)
    return str(before), str(after)


@pytest.mark.parametrize("several", ["after and before", "a folder"])
def test_a_baseline_is_for_one_run(runs: tuple[str, str], tmp_path: Path, several: str) -> None:
    given = [str(tmp_path)] if several == "a folder" else runs
    done = call("report", *given, "--baseline", runs[0])
    assert done.exit_code == 2
    assert "--baseline is for one RUN" in done.stderr


def seen(*more: str) -> Result:
    return call("compare", "base.parquet", "run.parquet", *more)


def test_compare_fails_nothing_and_times_nothing() -> None:
    wrong = replace(run_of(1.0).records[0], status=Status.WRONG)
    store(results_of(wrong, *run_of(1.0, 1.5, 1.0).records[1:]))
    result = seen()
    assert (result.exit_code, counts(result)) == (0, "1 regressed, 1 inconclusive, 1 unchanged")


def test_compare_needs_five_processes_on_each_side() -> None:
    five = results_of(make_record(ONE, [1.2] * 5))
    store(five, results_of(make_record(ONE, STEADY[:5])))
    assert counts(seen()) == "1 slower"
    store(five, results_of(make_record(ONE, STEADY[:4])))
    assert counts(seen()) == "1 inconclusive"
    store(run_of(1.0, 1.5, 1.0), run_of(1.0, 1.0, 1.0))
    result = seen()
    assert counts(result) == "3 inconclusive"
    assert "50 % slower" in result.stdout


def test_compare_accepts_a_run_that_was_cut_short_with_a_note() -> None:
    write(BASELINE, Path("base.parquet"))
    write_journal(Path("run.jsonl"), make_record(ONE, (1.0,)), planned=3)
    result = seen()
    assert result.exit_code == 0
    assert "note: run.parquet" in result.stdout
