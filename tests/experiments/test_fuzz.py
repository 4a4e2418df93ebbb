"""A handful of the mutated files and random command lines of experiments/fuzz."""

from __future__ import annotations

from random import Random

import pytest
from fuzz import fuzz


def test_damaged_files_and_random_command_lines_are_handled() -> None:
    assert fuzz.findings(files=12, lines=40, seed=3) == []


def test_a_finding_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: str) -> tuple[int, str, str]:
        return 1, "", "ValueError()"

    monkeypatch.setattr(fuzz, "make_inputs", lambda folder: None)
    monkeypatch.setattr(fuzz, "invoke", fails)
    assert [why for _, why in fuzz.fuzz_lines(1, Random(1))] == ["raised ValueError()"]
