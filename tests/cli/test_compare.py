"""What changed between two runs: ``compare`` as Markdown, ``report --baseline`` on a page."""

from dataclasses import replace
from pathlib import Path

import pytest
from choice_records import ran, results_of
from commanding import call

from harness.records import Status
from harness.store import write


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """A run, and a later one in which the case is wrong."""
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    record = ran("one_pass", 0.5)
    write(results_of([record]), before)
    write(results_of([replace(record, status=Status.WRONG, reason="y is off")]), after)
    return str(before), str(after)


def test_the_page_has_the_verdicts(runs: tuple[str, str], tmp_path: Path) -> None:
    before, after = runs
    page = tmp_path / "page.html"
    done = call("report", after, "--baseline", before, "--out", str(page))
    assert done.exit_code == 0
    assert f"1 case got worse from {before} to {after}" in page.read_text()


@pytest.mark.parametrize("several", ["after and before", "a folder"])
def test_a_baseline_is_for_one_run(runs: tuple[str, str], tmp_path: Path, several: str) -> None:
    given = [str(tmp_path)] if several == "a folder" else runs
    done = call("report", *given, "--baseline", runs[0])
    assert done.exit_code == 2
    assert "--baseline is for one RUN" in done.stderr


def test_markdown_names_what_got_worse(runs: tuple[str, str]) -> None:
    done = call("compare", *runs, "--format", "markdown")
    assert done.exit_code == 0
    assert done.stdout.startswith("## layernorm-bench: ❌ 1 case got worse")
    assert "| one_pass/forward/64x768/float32/normal |" in done.stdout
