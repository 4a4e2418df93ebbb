"""Fixtures for tests of cases and sessions, and implementations made for one test."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.known_functions import Known, known
from factories.sessions import SUBJECTS, Make, maker

from harness.records import Allocation
from harness.run.case import CaseRunner


@pytest.fixture
def runner() -> CaseRunner:
    # the allocator of the process that runs the tests stays as it is
    return CaseRunner("here", Allocation.DEFAULT)


@pytest.fixture
def implementation(monkeypatch: pytest.MonkeyPatch) -> Known:
    return known(monkeypatch)


@pytest.fixture
def subjects(tmp_path: Path) -> Path:
    """The file of the implementations of a session."""
    path = tmp_path / "implementation.py"
    path.write_text(SUBJECTS)
    return path


@pytest.fixture
def make(subjects: Path) -> Make:
    """Make a session of five cases of the implementation."""
    return maker(subjects)
