"""The files that the tests of the store write."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.parquet"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"
