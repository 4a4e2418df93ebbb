"""The commands that read results files: check, compare, choose, export, history and merge."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from factories.checked_runs import BASELINE, ONE, TWO, counts, gate, run_of, store
from factories.commanding import answer, call, complaint, write_journal
from factories.compared_runs import (
    STEADY,
    ScriptedFleet,
    failed,
    make_case,
    make_record,
    results_of,
)
from factories.histories import runs_of, stored_history
from factories.results_factory import make_results

from harness.records import Status
from harness.store import read, write

pytestmark = pytest.mark.usefixtures("install")  # timing fails the test
WRONG = make_record(ONE, STEADY, status=Status.WRONG, reason="y is 99 ulp off")


# --- the gate ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "again", "processes", "code", "kind"),
    [
        (1.01, {}, 0, 0, "unchanged"),
        (1.2, {TWO.id: 1.2}, 5, 1, "slower"),
        (1.2, {TWO.id: 1.001}, 1, 0, "inconclusive"),  # slow by chance
        (1.2, {}, 5, 0, "inconclusive"),  # it crashes
        (0.7, {TWO.id: 0.7}, 5, 0, "faster"),
    ],
)
def test_a_suspect_is_timed_in_five_fresh_processes_or_until_one_refutes_it(
    install: Any, first: float, again: dict[str, float], processes: int, code: int, kind: str
) -> None:
    store(run_of(1.0, first, 1.0))
    machine = install(ScriptedFleet(ratio_of=again))
    result = gate(code=code)
    expected = {"3 unchanged"} if kind == "unchanged" else {f"1 {kind}", "2 unchanged"}
    assert set(counts(result).split(", ")) == expected
    assert [[job.case for job in jobs] for jobs in machine.asked] == [[TWO]] * processes


def test_a_run_slower_than_its_history_is_timed_again(install: Any) -> None:
    stored_history(Path("runs"), *runs_of(ONE, STEADY))
    write(run_of(1.1), Path("runs/head.parquet"))
    machine = install(ScriptedFleet({ONE.id: 1.1}))
    found = call("check", "runs/head.parquet", "--against-history", "runs")
    assert (found.exit_code, counts(found)) == (1, "1 slower")
    assert len(machine.asked) > 0


# --- a new baseline ------------------------------------------------------------------------------


def test_accept_shows_what_changed_and_makes_the_run_the_baseline() -> None:
    store(results_of(WRONG))
    result = gate("--accept")
    assert (result.exit_code, counts(result)) == (0, "1 regressed, 2 gone")
    assert read(Path("base.parquet")) == results_of(WRONG)


def test_record_baseline_measures_the_cases_of_the_run_in_ten_processes(install: Any) -> None:
    write(run_of(1.0, 1.0), Path("run.parquet"))
    machine = install(ScriptedFleet(ratio_of={ONE.id: 1.0, TWO.id: 2.0}))
    assert "2 of 2" in gate("--record-baseline", code=0).stdout  # steady cases
    assert machine.starts == 10


# --- outputs for CI ------------------------------------------------------------------------------


STALE = "of an earlier run"
OUTPUTS = ("--junit", "new/junit.xml", "--summary", "new/summary.md")


@pytest.fixture
def _stale() -> None:
    """Outputs of an earlier run, and a run with a wrong case."""
    store(results_of(WRONG))
    Path("new").mkdir()
    for name in ("junit.xml", "summary.md"):
        Path("new", name).write_text(STALE)


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The summary file of a step of a GitHub job."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(Path.cwd() / "step.md"))
    return Path("step.md")


def totals(name: str) -> str:
    """Return the number of failures or errors in the JUnit file."""
    return ElementTree.parse("new/junit.xml").getroot().attrib[name]


@pytest.mark.parametrize(
    ("run", "code", "mark"), [(WRONG, 1, "❌"), (BASELINE.records[0], 0, "✅")]
)
def test_both_files_are_written_whether_the_gate_passes_or_fails(
    run: Any, code: int, mark: str
) -> None:
    store(results_of(run), results_of(BASELINE.records[0]))
    found = gate(*OUTPUTS)
    assert (found.exit_code, totals("failures")) == (code, str(code))
    assert Path("new/summary.md").read_text().startswith(f"## layernorm-bench: {mark}")
    assert "::" not in found.stdout


@pytest.mark.usefixtures("_stale")
def test_a_summary_is_appended_to_githubs_file(github: Path) -> None:
    github.write_text("built")
    gate("--summary", str(github))
    assert github.read_text().startswith("built\n## layernorm-bench: ❌")


@pytest.mark.usefixtures("github", "_stale")
def test_annotations_are_printed_in_a_github_job_beside_the_json() -> None:
    annotation = f"::error title=regressed%3A {ONE.id}::"
    found = gate("--json")
    assert annotation in found.stderr
    assert json.loads(found.stdout)["failed"]


@pytest.mark.usefixtures("github", "_stale")
def test_a_refusal_is_in_every_output() -> None:
    Path("base.parquet").unlink()
    found = gate(*OUTPUTS)
    assert (found.exit_code, totals("errors")) == (2, "1")
    assert Path("new/summary.md").read_text().startswith("## layernorm-bench: ❌ nothing was comp")
    assert found.stdout.startswith("::error title=layernorm-bench%3A nothing was compared::base.")


@pytest.mark.usefixtures("_stale")
def test_files_of_an_earlier_run_do_not_outlast_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.regression.compare", Mock(side_effect=ZeroDivisionError))
    assert isinstance(gate(*OUTPUTS).exception, ZeroDivisionError)
    assert Path("new/junit.xml").read_text() == Path("new/summary.md").read_text() == ""


# --- export --------------------------------------------------------------------------------------


@pytest.fixture
def _exported() -> None:
    timed = make_record(make_case("native"), STEADY), make_record(make_case("two_pass"), (2.0,))
    write(results_of(*timed, failed(make_case(rows=1), Status.WRONG)), Path("run.parquet"))


@pytest.mark.usefixtures("_exported")
def test_a_run_is_exported_to_a_new_file_or_replaces_one() -> None:
    found = call("export", "run.parquet", "--format", "csv")
    assert (found.exit_code, found.stderr) == (0, "")
    for _ in range(2):
        call("export", "run.parquet", "--format", "csv", "--out", "folder/out")
        assert Path("folder/out").read_text() == found.stdout


@pytest.mark.usefixtures("_exported")
def test_an_export_that_cannot_be_written_leaves_the_earlier_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("table").write_text("earlier")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    line = complaint("export", "run.parquet", "--format", "csv", "--out", "table")
    assert line == "table: cannot be written: Input/output error"
    assert [path.read_text() for path in Path().glob("table*")] == ["earlier"]


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


def test_an_unfinished_shard_is_named() -> None:
    write_journal(Path("cut.jsonl"), *make_results(4).records, planned=6)
    found = call("merge", "cut.parquet", "--out", "new/whole.parquet", code=0)
    assert "2 cases of 6 planned have no record" in found.stdout
    assert "(cut.jsonl); continue it" in found.stdout
