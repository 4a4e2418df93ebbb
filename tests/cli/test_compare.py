"""The command ``compare``: Markdown for a pull request."""

from dataclasses import replace
from pathlib import Path

from choice_records import ran, results_of
from commanding import call

from harness.records import Status
from harness.store import write


def test_markdown_names_what_got_worse(tmp_path: Path) -> None:
    before = ran("one_pass", 0.5)
    write(results_of([before]), tmp_path / "before.parquet")
    after = replace(before, status=Status.WRONG, reason="y is off")
    write(results_of([after]), tmp_path / "after.parquet")
    done = call(
        "compare", str(tmp_path / "before.parquet"), str(tmp_path / "after.parquet"),
        "--format", "markdown",
    )  # fmt: skip
    assert done.exit_code == 0
    assert done.stdout.startswith("## layernorm-bench: ❌ 1 case got worse")
    assert "| one_pass/forward/64x768/float32/normal |" in done.stdout
