"""A catalogue of small cases, and the state of the process after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from factories.small_catalogue import Plan, use_small_catalogue

from harness.run import process_state_restored


@pytest.fixture(scope="module")
def small_catalogue() -> Iterator[Plan]:
    """Leave out the largest cases; they take most of the time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield use_small_catalogue(monkeypatch, largest=2000, one_in=8, source=False)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Undo what targets that change the process have changed."""
    with process_state_restored():
        yield
