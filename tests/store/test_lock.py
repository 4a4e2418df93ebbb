"""A journal is written by one run at a time."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from stored import BARE, FULL

from harness.store import Journal, StoreError, read_journal
from harness.store import journal as journal_module


def test_a_journal_is_written_by_one_run_at_a_time(journal: Path) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        with pytest.raises(StoreError) as caught:
            Journal(journal)
        assert str(caught.value) == (
            f"{journal}: another run is writing it; wait for its end, or choose another --out"
        )
        file.add(FULL)
    Journal(journal).close()
    assert len(read_journal(journal).records) == 2


def test_a_journal_that_is_removed_as_it_is_opened_is_not_written(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = journal_module.fcntl.flock

    def end_of_another(*arguments: object) -> None:
        journal.unlink()
        lock(*arguments)

    monkeypatch.setattr(journal_module.fcntl, "flock", end_of_another)
    with pytest.raises(StoreError, match="another run is writing it"):
        Journal(journal)


def test_where_files_cannot_be_locked_a_run_goes_on(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(journal_module.fcntl, "flock", unknown)
    with Journal(journal) as file:
        file.add(BARE)
    assert read_journal(journal).records == (BARE,)
