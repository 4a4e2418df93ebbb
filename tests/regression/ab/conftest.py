"""Fixtures for tests of two revisions in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories.git_repository import Repository
from factories.two_revisions import Open

from harness.regression.revision import Checkout, checked_out


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Return a function that makes a repository of files and then changes them."""
    known = set(sys.modules)
    found: list[object] = []

    def make(before: dict[str, str], now: dict[str, str]) -> Checkout:
        repository = Repository.at(tmp_path / "repository", before)
        monkeypatch.chdir(repository.path)
        monkeypatch.syspath_prepend(repository.path)
        context = checked_out(repository.path.resolve(), "HEAD")
        checkout = context.__enter__()
        found.append(context)
        for name in before.keys() - now.keys():
            (repository.path / name).unlink()
        repository.write(now)
        return checkout

    finders = list(sys.meta_path)
    yield make
    for context in found:
        context.__exit__(None, None, None)  # type: ignore[attr-defined]
    sys.meta_path[:] = finders
    for name in set(sys.modules) - known:
        if name.startswith(("mine", "other", "implementation", "lacks", "layernorm_")):
            del sys.modules[name]
