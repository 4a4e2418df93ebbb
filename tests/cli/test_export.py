"""The command export: every format from a results file, and the runs that it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from factories.commanding import call, complaint, write_journal
from factories.compared_runs import STEADY, failed, make_case, make_record, results_of

from harness.cli.results import FORMATS
from harness.records import Status
from harness.store import write

ONE, TWO = make_record(make_case("native"), STEADY), make_record(make_case("two_pass"), (2.0,))
WRONG = failed(make_case(rows=1), Status.WRONG)
RUN = Path("run.parquet")


@pytest.fixture(autouse=True)
def _run() -> None:
    write(results_of(ONE, TWO, WRONG), RUN)


CHECKS: dict[str, Callable[[str], bool]] = {
    "csv": lambda text: len(list(csv.reader(text.splitlines()))) == 4,
    "junit": lambda text: ElementTree.fromstring(text.encode()).attrib["tests"] == "3",
    "summary": lambda text: "1 wrong, 2 ok" in text.splitlines()[0],
    "smaller-is-better": lambda text: {"name", "unit", "value"} <= set(json.loads(text)[0]),
    "bencher": lambda text: set(json.loads(text)) == {ONE.case.id, TWO.case.id},
}


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_is_exported_to_standard_output_or_to_a_file(form: str) -> None:
    found = call("export", "run.parquet", "--format", form)
    assert (found.exit_code, found.stderr) == (0, "")
    assert CHECKS[form](found.stdout)
    out = Path("folder/out")
    for before in ("", "something longer\n" * 1000):  # a new file, then one to replace
        out.parent.mkdir(exist_ok=True)
        out.write_text(before)
        quiet = call("export", "run.parquet", "--format", form, "--out", str(out))
        assert (quiet.exit_code, quiet.output) == (0, "")
        assert out.read_text() == found.stdout


@pytest.mark.parametrize("form", ["csv", "summary"])
@pytest.mark.parametrize(
    "name", ["", ".", "run.parquet/out", "run.parquet", "other.parquet", "linked"]
)
def test_a_file_that_must_not_or_cannot_be_written_is_refused(form: str, name: str) -> None:
    Path("linked").symlink_to(RUN)
    before = RUN.read_bytes()
    assert name in complaint("export", "run.parquet", "--format", form, "--out", name)
    assert RUN.read_bytes() == before
    assert not Path("other.parquet").exists()


def test_a_summary_is_appended_to_githubs_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(Path.cwd() / "summary.md"))
    Path("summary.md").write_text("built")
    call("export", "run.parquet", "--format", "summary", "--out", "summary.md")
    assert Path("summary.md").read_text().startswith("built\n## layernorm-bench: ")


@pytest.mark.parametrize("name", ["part.jsonl", "part.parquet"])
def test_an_unfinished_run_is_exported_with_a_note(name: str) -> None:
    write_journal(Path("part.jsonl"), ONE, planned=5)
    found = call("export", name, "--format", "csv")
    assert found.exit_code == 0
    assert len(found.stdout.splitlines()) == 2
    assert "1 of its 5 cases" in found.stderr


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_without_cases_is_not_measured(form: str) -> None:
    write(results_of(), RUN)
    complaint("export", "run.parquet", "--format", form, code=3)


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_without_figures_has_only_verdicts(form: str) -> None:
    write(results_of(failed()), RUN)
    code = 0 if form in {"csv", "junit", "summary"} else 3
    found = call("export", "run.parquet", "--format", form)
    assert found.exit_code == code
    assert (form in found.stderr) == (code == 3)


def test_a_case_held_twice_is_refused() -> None:
    write(results_of(ONE, replace(ONE, status=Status.WRONG), TWO), RUN)
    line = complaint("export", "run.parquet", "--format", "bencher")
    assert f"1 case more than once, such as {ONE.case.id}" in line


# --- what the page shows -------------------------------------------------------------------------


def test_a_figure_is_exported_as_a_picture_of_its_own() -> None:
    names = call("export", "run.parquet", "--format", "svg", "--figure", "list").stdout.split()
    assert "latency-cpu-forward-float32" in names
    arguments = ("export", "run.parquet", "--figure", "latency-cpu-forward-float32", "--format")
    drawn = call(*arguments, "svg").stdout
    assert ElementTree.fromstring(drawn.encode()).tag.endswith("svg")
    assert "var(--" not in drawn  # a file of its own has no style sheet
    assert "two_pass" in drawn
    assert call(*arguments, "svg").stdout == drawn
    call(*arguments, "png", "--out", "picture.png")
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")


def test_tables_are_exported_as_markdown() -> None:
    every = call("export", "run.parquet", "--format", "markdown").stdout
    found = call(
        "export", "run.parquet", "--format", "markdown", "--figure", "speed-cpu-forward"
    ).stdout
    assert found in every
    title, rows, _ = found.split("\n\n")
    assert title.startswith("### Speed relative to native")
    assert rows.splitlines()[2].startswith("| native | float32 | 1.00")
    assert "two_pass" in rows


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("svg",), "needs --figure, one of"),
        (("png", "--figure", "nothing"), "latency-cpu-forward-float32"),
        (("csv", "--figure", "list"), "goes with --format markdown, svg, png"),
    ],
)
def test_a_missing_or_unknown_figure_is_refused_with_the_names(
    arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in complaint("export", "run.parquet", "--format", *arguments)
