"""A catalogue of small cases, for tests that are not about the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from small_catalogue import use_small_catalogue

from harness.verify.cases.group import Group


@pytest.fixture(scope="module")
def small_catalogue() -> Iterator[Sequence[Group]]:
    """Leave the largest cases out of the quick catalogue; they take most of its time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield use_small_catalogue(monkeypatch, largest=4100)
