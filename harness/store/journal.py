"""The journal: every finished case as one line of JSON, on disk before the next case starts.

A process killed at any point leaves complete lines and at most one torn last line, which readers
skip.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.records import Environment, Record, Run
from harness.store.error import StoreError
from harness.store.lock import lock
from harness.store.parquet import Results
from harness.store.plain import from_plain, to_plain

__all__ = ["Journal", "entries_of", "located_entries", "read_journal", "records_at"]

_BLOCK = 1 << 16


class Journal:
    """A journal opened for appending and locked against other processes."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending.

        Raises:
            StoreError: the file or its folder cannot be written, or another run writes it.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            try:
                self.is_locked = lock(self._file, path)
            except StoreError:
                self._file.close()
                raise
            _cut_torn_line(path)
            self._file.seek(0, os.SEEK_END)  # where the line was cut
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error

    @property
    def note(self) -> str | None:
        """What the user must know about the file, in one line; else None."""
        if self.is_locked:
            return None
        return (
            f"{self.path}: files cannot be locked here (a network file system?); start no second "
            "run that writes it"
        )

    def add(self, entry: Run | Environment | Record) -> int:
        """Append one line, wait until it is on disk, and return its offset in bytes.

        Raises:
            StoreError: the disk is full, or the file cannot be written any more.
        """
        line = json.dumps({type(entry).__name__: to_plain(entry)}) + "\n"
        try:
            offset = self._file.tell()
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be written: {error.strerror}; what was measured before is "
                "kept there, free some space and continue with --resume"
            ) from error
        return offset

    def drop_if_empty(self) -> None:
        """Remove the file if it is empty; it may not exist any more."""
        with suppress(OSError):
            if not self.path.stat().st_size:
                self.path.unlink()

    def close(self) -> None:
        """Close the file. This never fails, because every line is on disk already."""
        try:
            self._file.close()
        except OSError:  # closing tries again to write the line that add() could not write
            return

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_journal(path: Path) -> Results:
    """Read what a run has measured so far; the last entry counts.

    A case may have a record in each of several environments.

    Raises:
        StoreError: the file cannot be read, or a line other than the last is damaged.
    """
    runs: list[Run] = []
    environments: dict[str, Environment] = {}
    records: dict[tuple[str, str], Record] = {}
    for entry in entries_of(path):
        if isinstance(entry, Run):
            runs.append(entry)
        elif isinstance(entry, Environment):
            environments[entry.fingerprint] = entry
        else:
            records[entry.case.id, entry.environment] = entry
    return Results(records=tuple(records.values()), runs=tuple(runs), environments=environments)


def entries_of(path: Path) -> Iterator[Run | Environment | Record]:
    """Yield the entries of a journal one by one; a torn last line is skipped.

    Raises:
        StoreError: the file cannot be read, or a line other than the last is damaged.
    """
    return (entry for _, entry in located_entries(path))


def located_entries(path: Path) -> Iterator[tuple[int, Run | Environment | Record]]:
    """Yield the entries of a journal, each after the offset of its line in bytes.

    Raises:
        StoreError: as :func:`entries_of`.
    """
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield offset, _parse(path, f"line {number}", line)
                offset += len(line)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def records_at(path: Path, offsets: Iterable[int]) -> Iterator[Record]:
    """Yield the records of a journal whose lines begin at these offsets, in this order.

    Raises:
        StoreError: the file cannot be read, or is damaged there.
    """
    try:
        with path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                entry = _parse(path, f"the line at byte {offset}", file.readline())
                if not isinstance(entry, Record):
                    raise StoreError(f"{path}: no record at byte {offset}")
                yield entry
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(path: Path, where: str, line: bytes) -> Run | Environment | Record:
    try:
        ((name, content),) = json.loads(line).items()
        kinds: dict[str, Any] = {kind.__name__: kind for kind in (Run, Environment, Record)}
        entry: Run | Environment | Record = from_plain(kinds[name], content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: {where} is damaged: {error!r}") from error
    return entry


def _cut_torn_line(path: Path) -> None:
    """Remove what follows the last newline, so that the next line starts on its own."""
    with path.open("rb+") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            place = file.read(end - start).rfind(b"\n")
            if place >= 0:
                end = start + place + 1
                break
            end = start
        if end < size:
            file.truncate(end)
