"""Fixtures for tests of cases and sessions, and implementations made for one test."""

from __future__ import annotations

import pytest
from factories.known_functions import Known, known

from harness.records import Allocation
from harness.run import CaseRunner


@pytest.fixture
def runner() -> CaseRunner:
    # the allocator of the process that runs the tests stays as it is
    return CaseRunner("here", Allocation.DEFAULT)


@pytest.fixture
def implementation(monkeypatch: pytest.MonkeyPatch) -> Known:
    return known(monkeypatch)
