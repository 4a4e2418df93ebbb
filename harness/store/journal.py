"""The journal: every finished case as one line of JSON, on disk before the next case starts.

A process killed at any point leaves complete lines and at most one torn last line, which readers
skip.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

from harness.records import Environment, Record, Run
from harness.store.parquet import Results, StoreError
from harness.store.plain import from_plain, to_plain

__all__ = ["Journal", "read_journal"]


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
            if not _lock(self._file, path):
                self._file.close()
                raise StoreError(
                    f"{path}: another run is writing it; wait for its end, or choose another --out"
                )
            _cut_torn_line(path)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error

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
    """Read what a run has measured so far; the last entry of a case or environment counts.

    Raises:
        StoreError: the file cannot be read, or a line other than the last is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    runs: list[Run] = []
    environments: dict[str, Environment] = {}
    records: dict[str, Record] = {}
    for number, line in enumerate(lines[:-1], start=1):  # the rest is empty or torn
        entry = _parse(path, number, line)
        if isinstance(entry, Run):
            runs.append(entry)
        elif isinstance(entry, Environment):
            environments[entry.fingerprint] = entry
        else:
            records[entry.case.id] = entry
    return Results(records=tuple(records.values()), runs=tuple(runs), environments=environments)


def _lock(file: BinaryIO, path: Path) -> bool:
    """Lock a file until it is closed or its process ends; return whether this succeeded.

    It fails if another process holds the lock, or if ``path`` has been removed or replaced.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # the file system does not support locks
            return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:  # removed by a run that has just ended
        return False


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
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
