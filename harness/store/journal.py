"""The journal: every finished case as one line of JSON, on disk before the next case starts.

A process killed at any point leaves complete lines and at most one torn last line, which readers
skip.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.records import Environment, Record, Run
from harness.store.error import StoreError
from harness.store.lock import lock
from harness.store.parquet import Results
from harness.store.plain import from_plain, to_plain

__all__ = ["Journal", "entries_of", "read_journal"]

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

    def add(self, entry: Run | Environment | Record) -> None:
        """Append one line and wait until it is on disk.

        Raises:
            StoreError: the disk is full, or the file cannot be written any more.
        """
        line = json.dumps({type(entry).__name__: to_plain(entry)}) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be written: {error.strerror}; what was measured before is "
                "kept there, free some space and continue with --resume"
            ) from error

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
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _parse(path, number, line)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(path: Path, number: int, line: bytes) -> Run | Environment | Record:
    try:
        ((name, content),) = json.loads(line).items()
        kinds: dict[str, Any] = {kind.__name__: kind for kind in (Run, Environment, Record)}
        entry: Run | Environment | Record = from_plain(kinds[name], content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: line {number} is damaged: {error!r}") from error
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
