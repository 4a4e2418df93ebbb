"""A journal is written by one run at a time."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from factories.stored import BARE, FULL, RESULTS, same

from harness.store import Journal, StoreError, read, read_journal, write, writing
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
        assert file.note is not None
        assert "files cannot be locked here" in file.note
    assert read_journal(journal).records == (BARE,)


def test_where_files_can_be_locked_there_is_nothing_to_note(journal: Path) -> None:
    with Journal(journal) as file:
        assert file.note is None


def test_a_results_file_is_written_by_one_process_at_a_time(path: Path) -> None:
    with writing(path, RESULTS.runs, RESULTS.environments) as first:
        with pytest.raises(StoreError, match="another run is writing it"):
            write(RESULTS, path)
        first.add(BARE)
    assert read(path).records == (BARE,)
    write(RESULTS, path)
    assert same(read(path), RESULTS)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
