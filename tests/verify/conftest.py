"""A catalogue of small cases, for tests that are not about the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from factories.small_catalogue import Plan, use_small_catalogue


@pytest.fixture(scope="module")
def small_catalogue() -> Iterator[Plan]:
    """Leave out the largest cases; they take most of the time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield use_small_catalogue(monkeypatch, largest=4100)
