"""CI outputs of a gate: files of its own, GitHub's files, and nothing stale."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import Result
from factories.commanding import call
from factories.compared_runs import STEADY, make_case, make_record, results_of

from harness.records import Status
from harness.report.ci import LIMIT_BYTES
from harness.store import write

CASE = make_case()
STALE = "of an earlier run"


@pytest.fixture(autouse=True)
def _runs() -> None:
    write(results_of(make_record(CASE, STEADY)), Path("base.parquet"))
    write(results_of(make_record(CASE, (1.0,), status=Status.WRONG)), Path("bad.parquet"))
    write(results_of(make_record(CASE, (1.001,))), Path("good.parquet"))


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The summary file of a step of a GitHub job."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(Path.cwd() / "step.md"))
    return Path("step.md")


def gate(run: str, *more: str) -> Result:
    return call("check", run, "--baseline", "base.parquet", *more)


def failures(path: str) -> int:
    return int(ElementTree.parse(path).getroot().attrib["failures"])


def test_both_files_are_written_whether_the_gate_passes_or_fails() -> None:
    for run, code, mark in (("bad.parquet", 1, "❌"), ("good.parquet", 0, "✅")):
        found = gate(run, "--junit", "new/junit.xml", "--summary", "new/summary.md")
        assert found.exit_code == code, found.output
        assert failures("new/junit.xml") == code
        assert Path("new/summary.md").read_text().startswith(f"## layernorm-bench: {mark}")
        assert found.stdout.startswith(f"{run} against base.parquet\n1 case: 1 ")
        assert "::" not in found.stdout


def test_a_summary_is_appended_to_githubs_file_and_replaces_any_other(github: Path) -> None:
    Path("own.md").write_text(STALE)
    github.write_text("built")
    gate("bad.parquet", "--summary", "own.md")
    assert STALE not in Path("own.md").read_text()
    gate("bad.parquet", "--summary", str(github))
    gate("good.parquet", "--summary", f"./{github}")  # however it is spelled
    text = github.read_text()
    assert text.startswith("built\n## layernorm-bench: ❌")
    assert text.count("## layernorm-bench: ") == 2


def test_the_limit_includes_what_githubs_file_holds(github: Path) -> None:
    github.write_text("x" * (LIMIT_BYTES - 100))
    found = gate("bad.parquet", "--summary", str(github))
    assert found.exit_code == 1
    assert github.stat().st_size == LIMIT_BYTES - 100
    assert f"has no room for a summary, with {LIMIT_BYTES - 100} bytes" in found.stderr


def test_annotations_are_printed_in_a_github_job(
    github: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotation = f"::error title=regressed%3A {CASE.id}::"
    assert annotation in gate("bad.parquet").stdout
    assert "::" not in gate("good.parquet").stdout
    found = gate("bad.parquet", "--json")
    assert json.loads(found.stdout)["failed"] is True
    assert "::error" in found.stderr
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert "::error" not in gate("bad.parquet").stdout
    assert not github.exists()


@pytest.mark.usefixtures("github")
def test_a_refusal_is_in_every_output() -> None:
    Path("base.parquet").unlink()
    for name in ("junit.xml", "summary.md"):
        Path(name).write_text(STALE)
    found = gate("good.parquet", "--junit", "junit.xml", "--summary", "summary.md")
    assert found.exit_code == 2
    assert ElementTree.parse("junit.xml").getroot().attrib["errors"] == "1"
    assert Path("summary.md").read_text().startswith("## layernorm-bench: ❌ nothing was compared")
    assert "base.parquet: no such file" in Path("summary.md").read_text()
    assert found.stdout.startswith("::error title=layernorm-bench%3A nothing was compared::base.")
    assert found.stderr.startswith("layernorm-bench: base.parquet: no such file")


def test_files_of_an_earlier_run_do_not_outlast_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("harness.regression.compare", crash)
    for name in ("junit.xml", "summary.md"):
        Path(name).write_text(STALE)
    found = gate("good.parquet", "--junit", "junit.xml", "--summary", "summary.md")
    assert isinstance(found.exception, ZeroDivisionError)
    assert Path("junit.xml").read_text() == Path("summary.md").read_text() == ""


@pytest.mark.parametrize("option", ["--junit", "--summary"])
@pytest.mark.parametrize("name", ["", ".", "base.parquet/out", "other.parquet", "linked.xml"])
def test_a_file_that_must_not_or_cannot_be_written_is_refused_before_the_comparison(
    option: str, name: str
) -> None:
    os.link("good.parquet", "linked.xml")  # the same file by another name
    before = Path("good.parquet").read_bytes()
    found = gate("good.parquet", option, name)
    assert (found.exit_code, found.stdout) == (2, "")
    assert name in found.stderr
    assert Path("good.parquet").read_bytes() == before
    assert not Path("other.parquet").exists()
