"""If nothing can be written, the old file stays and the message says what to do."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from factories.full_disk import full_disk_after
from factories.stored import BARE, FULL, RESULTS, same

from harness.store import Journal, StoreError, read, read_journal, write


@pytest.fixture
def not_a_folder(tmp_path: Path) -> Path:
    """A path below a file: nobody can write there, not even root."""
    (tmp_path / "file").write_text("a file, no folder", encoding="utf-8")
    return tmp_path / "file" / "results"


def test_where_nothing_can_be_written_is_refused(not_a_folder: Path) -> None:
    for open_file in (Journal, partial(write, RESULTS)):
        with pytest.raises(StoreError) as caught:
            open_file(not_a_folder)
        assert str(caught.value).startswith(f"{not_a_folder}: cannot be written: ")


def test_a_results_file_makes_its_folder(tmp_path: Path) -> None:
    write(RESULTS, tmp_path / "new" / "folder" / "results.parquet")
    assert same(read(tmp_path / "new" / "folder" / "results.parquet"), RESULTS)


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe.parquet", tmp_path / "folder.parquet"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(StoreError) as caught:
            write(RESULTS, path)
        assert "not a regular file" in str(caught.value)
    assert pipe.is_fifo()
    assert set(tmp_path.iterdir()) == {pipe, folder}


def test_results_behind_a_link_are_replaced_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.parquet").symlink_to("elsewhere/first.parquet")
    for _ in range(2):
        write(RESULTS, tmp_path / "mine.parquet")
    assert (tmp_path / "mine.parquet").is_symlink()
    assert [file.name for file in (tmp_path / "elsewhere").iterdir()] == ["first.parquet"]
    assert same(read(tmp_path / "elsewhere/first.parquet"), RESULTS)


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_under_a_journal_names_the_next_step(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(StoreError, match=r"No space left.*kept.*--resume"):
            file.add(FULL)
        monkeypatch.undo()
    assert BARE in read_journal(journal).records


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_device_that_is_always_full_is_refused_and_closed_quietly() -> None:
    journal = Journal.__new__(Journal)  # opening would look for a torn line in it, without end
    journal.path = Path("/dev/full")
    journal._file = journal.path.open("ab")
    with journal, pytest.raises(StoreError, match="/dev/full: cannot be written: No space left"):
        journal.add(FULL)


def test_a_full_disk_under_parquet_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(RESULTS, path)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreError, match="No space left"):
        write(replace(RESULTS, records=()), path)
    monkeypatch.undo()
    assert same(read(path), RESULTS)


@pytest.mark.parametrize("room", [0, 1, 1000, 20_000, 40_000])
def test_a_disk_that_fills_while_parquet_is_written_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    write(RESULTS, path)
    full_disk_after(monkeypatch, room)
    with pytest.raises(StoreError, match="No space left"):
        write(replace(RESULTS, records=RESULTS.records * 2), path)
    monkeypatch.undo()
    assert same(read(path), RESULTS)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("room", [0, 1, 5000])
def test_a_disk_that_fills_under_a_journal_tears_its_last_line_only(
    journal: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    with Journal(journal) as file:
        file.add(BARE)
        room += journal.stat().st_size
    full_disk_after(monkeypatch, room)
    with Journal(journal) as file, pytest.raises(StoreError, match=r"No space left.*--resume"):
        file.add(FULL)
    monkeypatch.undo()
    assert read_journal(journal).records == (BARE,)
    with Journal(journal) as file:
        file.add(FULL)
    assert same(read_journal(journal).records, (BARE, FULL))


def test_a_reason_that_is_not_valid_text_does_not_lose_the_run(path: Path) -> None:
    # a message may hold the lone surrogates that Python makes of undecodable file names
    wanted = replace(RESULTS, records=(replace(BARE, reason="no file \udcff.py"),))
    write(wanted, path)
    assert read(path).records[0].reason.startswith("no file ")
