"""The journal: every finished case as one line of JSON, on disk before the next case starts.

A process killed at any point leaves complete lines and at most one torn last line, which readers
skip. A file is written by one process at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

from harness.records import Environment, Record, Run
from harness.records.refusal import StoreError, refusing
from harness.store.schema import Results, from_plain, to_plain

Entry = Run | Environment | Record

_ADVICE = "; what was measured before is kept there, free some space and continue with --resume"
_KINDS: dict[str, Any] = {"Run": Run, "Environment": Environment, "Record": Record}


class Journal:
    """A journal opened for appending and locked against other processes."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending.

        Raises:
            StoreError: the file or its folder cannot be written, or another run writes it.
        """
        self.path = path
        with refusing(path, "written"), ExitStack() as undone:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = undone.enter_context(path.open("ab"))
            is_locked = lock(self._file, path)
            with path.open("rb+") as file:  # a torn line is cut: the next one starts on its own
                file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
            self._file.seek(0, os.SEEK_END)
            undone.pop_all()
        self.note = (
            None
            if is_locked
            else f"{path}: files cannot be locked here (a network file system?); start no second "
            "run that writes it"
        )
        """What the user must know about the file, in one line; else None."""

    def add(self, entry: Entry) -> int:
        """Append one line, wait until it is on disk, and return its offset in bytes.

        Raises:
            StoreError: the disk is full, or the file cannot be written any more.
        """
        line = json.dumps({type(entry).__name__: to_plain(entry)}) + "\n"
        with refusing(self.path, "written", _ADVICE):
            offset = self._file.tell()
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        return offset

    def drop_if_empty(self) -> None:
        """Remove the file if it is empty; it may not exist any more."""
        with suppress(OSError):
            if not self.path.stat().st_size:
                self.path.unlink()

    def close(self) -> None:
        """Close the file. This never fails, because every line is on disk already."""
        with suppress(OSError):  # closing tries again to write the line that add() could not write
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path) -> Results:
    """Read what a run has measured so far; the last entry of a case and environment counts.

    Raises:
        StoreError: the file cannot be read, or a line other than the last is damaged.
    """
    entries = [entry for _, entry in located_entries(path)]
    records = {(one.case.id, one.environment): one for one in entries if isinstance(one, Record)}
    return Results(
        records=tuple(records.values()),
        runs=tuple(one for one in entries if isinstance(one, Run)),
        environments={one.fingerprint: one for one in entries if isinstance(one, Environment)},
    )


def located_entries(path: Path) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of a journal, each after the offset of its line; a torn line is skipped.

    Raises:
        StoreError: the file cannot be read, or a line other than the last is damaged.
    """
    offset = 0
    with refusing(path, "read"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield offset, _parse(path, f"line {number}", line)
            offset += len(line)


def records_at(path: Path, offsets: Iterable[int]) -> Iterator[Record]:
    """Yield the records of a journal whose lines begin at these offsets, in this order.

    Raises:
        StoreError: the file cannot be read, or is damaged there.
    """
    with refusing(path, "read"), path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            entry = _parse(path, f"the line at byte {offset}", file.readline())
            if not isinstance(entry, Record):
                raise StoreError(f"{path}: no record at byte {offset}")
            yield entry


def _parse(path: Path, where: str, line: bytes) -> Entry:
    try:
        ((name, content),) = json.loads(line).items()
        entry: Entry = from_plain(_KINDS[name], content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: {where} is damaged: {error!r}") from error
    return entry


def lock(file: BinaryIO, path: Path) -> bool:
    """Lock an open file until it is closed or its process ends.

    Returns:
        Whether locks work on its file system.

    Raises:
        StoreError: another process holds the lock, or ``path`` has been removed or replaced.
    """
    works = fcntl is not None
    in_use = StoreError(
        f"{path}: another run is writing it; wait for its end, or choose another --out"
    )
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise in_use from None
    except OSError:
        works = False  # the file system does not support locks
    with suppress(FileNotFoundError):  # removed by a process that has just ended
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return works
    raise in_use
