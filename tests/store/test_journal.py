"""A journal keeps every finished case, through a kill, a full disk and a second run."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from factories.stored import BARE, FULL, RESULTS, RUN, journalled, same

from harness.records import Record, Status
from harness.store import (
    Journal,
    StoreError,
    located_entries,
    read,
    read_journal,
    records_at,
    to_plain,
    write,
)

TORN = b'{"Record": {"case"'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of one record."""
    path = tmp_path / "new" / "folder" / "results.jsonl"
    journalled(path, BARE)
    return path


# --- what is kept --------------------------------------------------------------------------------


def test_the_last_entry_of_a_case_counts_as_soon_as_it_is_added(path: Path) -> None:
    assert read_journal(path).records == (BARE,)
    later = replace(BARE, status=Status.OK)
    with Journal(path) as journal:
        journal.add(later)
        assert read_journal(path).records == (later,)  # the journal is still open


def test_a_record_is_read_where_its_line_begins(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    offsets = journalled(path, RUN, FULL)
    with path.open("ab") as torn:
        torn.write(TORN)
    with Journal(path) as journal:
        offsets.append(journal.add(BARE))
        assert same([*records_at(path, reversed(offsets[1:]))], [BARE, FULL])
    assert [offset for offset, _ in located_entries(path)] == offsets
    with pytest.raises(StoreError, match=f"no record at byte {offsets[0]}"):
        list(records_at(path, [offsets[0]]))


# --- a kill --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [(BARE,), ()])
def test_a_torn_last_line_is_skipped_and_replaced_by_the_next(
    tmp_path: Path, kept: tuple[Record, ...]
) -> None:
    path = tmp_path / "results.jsonl"
    for record in (*kept, FULL):
        first = path.stat().st_size if path.exists() else 0
        journalled(path, record)
    whole = path.read_bytes()
    for length in range(first, len(whole), 97):
        path.write_bytes(whole[:length])
        assert read_journal(path).records == kept
    journalled(path, FULL)
    assert same(read_journal(path).records, (*kept, FULL))


@pytest.mark.parametrize(
    "damage",
    [
        *(TORN, b"", b"[]", b"3", b"\xff\xfe\x00", b'{"Something": {}}', b'{"Record": {}}'),
        *(
            json.dumps({"Record": to_plain(BARE) | {field: None}}).encode()
            for field in ("case", "environment", "status")  # where there must be a value
        ),
    ],
)
def test_a_damaged_line_in_the_middle_is_refused_with_its_number(path: Path, damage: bytes) -> None:
    line = path.read_bytes()
    path.write_bytes(line + damage + b"\n" + line)
    with pytest.raises(StoreError, match=r"results\.jsonl: line 2 is damaged"):
        read_journal(path)


# --- a second run --------------------------------------------------------------------------------


def test_a_journal_is_written_by_one_run_at_a_time(path: Path) -> None:
    with Journal(path) as journal:
        with pytest.raises(StoreError, match="another run is writing it"):
            Journal(path)
        journal.add(FULL)
    Journal(path).close()
    assert len(read_journal(path).records) == 2


def test_a_journal_that_is_removed_as_it_is_opened_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def end_of_another(*arguments: Any) -> None:
        path.unlink()
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", end_of_another)
    with pytest.raises(StoreError, match="another run is writing it"):
        Journal(path)


# --- a full disk ---------------------------------------------------------------------------------


class Limited(io.FileIO):
    """A file that takes ``room`` bytes in all, and then as much of a write as fits."""

    room: int | None = 0

    def write(self, data: Any, /) -> int:
        left = (self.room or 0) - os.fstat(self.fileno()).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(bytes(data)[:left])


def fill_disk_after(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    """Let no file that is opened for appending from now on grow beyond ``room`` bytes.

    None: the disk is full when everything is written.
    """
    real = Path.open

    def limited(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if mode != "ab":
            return real(path, mode, *arguments, **more)
        file = Limited(path, "a")
        file.room = room
        return io.BufferedWriter(file)

    if room is None:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    else:
        monkeypatch.setattr(Path, "open", limited)


@pytest.mark.parametrize("room", [0, 1, 1000, 5000, None])
def test_a_disk_that_fills_under_a_journal_tears_its_last_line_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    fill_disk_after(monkeypatch, None if room is None else room + path.stat().st_size)
    with Journal(path) as journal, pytest.raises(StoreError, match=r"No space .*kept.*--resume"):
        journal.add(FULL)
    monkeypatch.undo()
    assert same(read_journal(path).records, (BARE, FULL) if room is None else (BARE,))
    journalled(path, FULL)
    assert same(read_journal(path).records, (BARE, FULL))


@pytest.mark.parametrize("room", [0, 1, 1000, 20_000, None])
def test_a_disk_that_fills_under_parquet_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    path = tmp_path / "results.parquet"
    write(RESULTS, path)
    fill_disk_after(monkeypatch, room)
    with pytest.raises(StoreError, match="No space left"):
        write(replace(RESULTS, records=RESULTS.records * 2), path)
    monkeypatch.undo()
    assert same(read(path), RESULTS)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
