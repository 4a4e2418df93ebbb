"""The command export: each format from a results file, and runs that it refuses."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from compared_runs import HERE, STEADY, failed, make_case, make_record, results_of

from harness.cli import main
from harness.cli.exit_code import CommandGroup
from harness.cli.export import FORMATS, export
from harness.exports.formats import AS_TEXT
from harness.records import Status
from harness.store import SCHEMA_VERSION, Journal, write

PROGRAM = CommandGroup(commands={"export": export})
ONE, TWO = make_record(make_case("native"), STEADY), make_record(make_case("two_pass"), (2.0,))
BAD = failed(make_case(rows=1), Status.WRONG)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def _run() -> None:
    write(results_of(ONE, TWO, BAD), Path("run.parquet"))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(PROGRAM, ["export", *arguments])


def refused(code: int, *arguments: str) -> str:
    found = call(*arguments)
    assert found.exit_code == code, found.output
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    return line.removeprefix("layernorm-bench: ")


def test_each_format_that_can_be_named_can_be_made() -> None:
    assert set(FORMATS) == set(AS_TEXT)


CHECKS: dict[str, Callable[[str], bool]] = {
    "csv": lambda text: len(list(csv.reader(text.splitlines()))) == 4,
    "junit": lambda text: ElementTree.fromstring(text.encode()).attrib["tests"] == "3",
    "summary": lambda text: text.startswith("## layernorm-bench: ❌ 1 wrong, 2 ok"),
    "pytest-benchmark": lambda text: len(json.loads(text)["benchmarks"]) == 2,
    "smaller-is-better": lambda text: {"name", "unit", "value"} <= set(json.loads(text)[0]),
    "bencher": lambda text: set(json.loads(text)) == {ONE.case.id, TWO.case.id},
}


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("form", FORMATS)
def test_a_run_is_exported_to_standard_output_or_to_a_file(form: str) -> None:
    found = call("run.parquet", "--format", form)
    assert found.exit_code == 0, found.output
    assert found.stderr == ""
    assert CHECKS[form](found.stdout)
    quiet = call("run.parquet", "--format", form, "--out", "folder/out")
    assert quiet.exit_code == 0
    assert quiet.output == ""
    assert Path("folder/out").read_text() == found.stdout


@pytest.mark.usefixtures("_run")
def test_a_file_is_replaced() -> None:
    Path("out.csv").write_text("something longer\n" * 1000)
    assert call("run.parquet", "--format", "csv", "--out", "out.csv").exit_code == 0
    assert "something longer" not in Path("out.csv").read_text()


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("form", ["csv", "summary"])
def test_no_text_is_written_over_results(form: str) -> None:
    before = Path("run.parquet").read_bytes()
    for name in ("run.parquet", "other.parquet"):
        found = call("run.parquet", "--format", form, "--out", name)
        assert found.exit_code == 2
        assert name in found.stderr
    Path("linked").symlink_to("run.parquet")
    assert refused(2, "run.parquet", "--format", form, "--out", "linked").startswith("linked: ")
    assert Path("run.parquet").read_bytes() == before
    assert not Path("other.parquet").exists()


@pytest.mark.usefixtures("_run")
def test_a_summary_joins_what_is_in_githubs_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(Path.cwd() / "summary.md"))
    Path("summary.md").write_text("built")
    assert call("run.parquet", "--format", "summary", "--out", "summary.md").exit_code == 0
    assert Path("summary.md").read_text().startswith("built\n## layernorm-bench: ")


def test_a_journal_is_exported_and_told_to_be_unfinished() -> None:
    (run,) = results_of(ONE, planned=5, wall_s=None).runs
    with Journal(Path("run.jsonl")) as lines:
        for each in (run, HERE, ONE):
            lines.add(each)
    found = call("run.jsonl", "--format", "csv")
    assert found.exit_code == 0
    assert len(found.stdout.splitlines()) == 2
    assert found.stderr == "note: run.jsonl was cut short, 1 of its 5 cases are there\n"


# --- bad input -----------------------------------------------------------------------------------


def test_a_format_that_is_none_is_refused_with_those_there_are() -> None:
    found = call("run.parquet", "--format", "xml")
    assert found.exit_code == 2
    assert "'xml' is not one of 'csv', 'junit'" in " ".join(found.stderr.split())


def test_a_missing_file_is_refused() -> None:
    assert refused(2, "gone.parquet", "--format", "csv").startswith("gone.parquet: no such file")


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1"])
def test_a_file_that_holds_no_results_is_refused(content: bytes) -> None:
    Path("run.parquet").write_bytes(content)
    assert "not a readable results file" in refused(2, "run.parquet", "--format", "junit")


@pytest.mark.usefixtures("_run")
def test_a_damaged_file_is_refused() -> None:
    content = bytearray(Path("run.parquet").read_bytes())
    content[len(content) // 2] ^= 0xFF
    Path("run.parquet").write_bytes(content)
    assert refused(2, "run.parquet", "--format", "csv").startswith("run.parquet: ")


@pytest.mark.usefixtures("_run")
def test_a_run_of_a_newer_version_is_refused() -> None:
    table = pq.read_table("run.parquet")
    newer = {b"layernorm_bench_schema": str(SCHEMA_VERSION + 1).encode()}
    kept = {**table.schema.metadata, **newer}
    pq.write_table(table.replace_schema_metadata(kept), "run.parquet")
    assert refused(2, "run.parquet", "--format", "csv").endswith("update layernorm-bench")


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_without_a_case_is_not_measured(form: str) -> None:
    write(results_of(), Path("run.parquet"))
    assert refused(3, "run.parquet", "--format", form).startswith("run.parquet: holds no cases")


@pytest.mark.parametrize("form", ["pytest-benchmark", "smaller-is-better", "bencher"])
def test_a_run_without_a_figure_has_no_chart(form: str) -> None:
    write(results_of(failed()), Path("run.parquet"))
    assert f"has a figure for {form}" in refused(3, "run.parquet", "--format", form)


@pytest.mark.parametrize("form", ["csv", "junit", "summary"])
def test_a_run_without_a_figure_has_verdicts(form: str) -> None:
    write(results_of(failed()), Path("run.parquet"))
    assert call("run.parquet", "--format", form).exit_code == 0


def test_a_case_held_twice_is_refused() -> None:
    write(results_of(ONE, replace(ONE, status=Status.WRONG), TWO), Path("run.parquet"))
    assert f"1 case more than once, such as {ONE.case.id}" in (
        refused(2, "run.parquet", "--format", "bencher")
    )


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize(("name", "why"), [("", "file name is empty"), (".", "is a directory")])
def test_what_is_no_file_is_not_written(name: str, why: str) -> None:
    found = call("run.parquet", "--format", "csv", "--out", name)
    assert found.exit_code == 2
    assert why in found.stderr


@pytest.mark.usefixtures("_run")
@pytest.mark.parametrize("form", ["csv", "summary"])
def test_a_file_that_cannot_be_written_is_refused(form: str) -> None:
    Path("file").write_text("")
    found = refused(2, "run.parquet", "--format", form, "--out", "file/out")
    assert found.startswith("file/out: cannot be written: ")


def test_help_imports_nothing_that_takes_long() -> None:
    program = (
        "import sys; from harness.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "print([each for each in ('torch', 'pandas', 'pyarrow', 'numpy') if each in sys.modules])"
    )
    for command in ("export", "import", "check"):
        done = subprocess.run(
            [sys.executable, "-c", program, command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]"
    assert {"export", "import"} <= set(main.commands)
