"""A handful of the mutated files and random command lines of experiments/fuzz."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from factories.commanding import complaint
from fuzz import fuzz


def test_damaged_files_and_random_command_lines_are_handled() -> None:
    assert fuzz.findings(files=12, lines=40, seed=3) == []


def test_a_finding_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: str) -> tuple[int, str, str]:
        return 1, "", "ValueError()"

    monkeypatch.setattr(fuzz, "make_inputs", lambda folder: None)
    monkeypatch.setattr(fuzz, "invoke", fails)
    assert [why for _, why in fuzz.fuzz_lines(1, Random(1))] == ["raised ValueError()"]


@pytest.mark.parametrize("name", ["a" * 5000, "a" * 5000 + ".parquet"])
def test_a_name_that_is_too_long_is_refused(name: str) -> None:
    assert "File name too long" in complaint("report", name)


def test_the_root_is_no_results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint("choose", "/").startswith("/: not a readable results file")
