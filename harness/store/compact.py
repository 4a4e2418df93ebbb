"""Put the results files of a folder into few: thousands of small files are slow to read.

A compacted file appears in one step, is read back, and only then are the files removed that it
replaces. Readers leave out files that a compacted file replaces (:mod:`harness.store.folder`), so a
kill at any moment leaves either the old files or the new one to be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from harness.records import Record
from harness.store.error import StoreError
from harness.store.folder import StoredRun, replaced_files, stored_runs
from harness.store.lock import lock
from harness.store.parquet import RUN_FIELD, rows_of
from harness.store.plain import from_plain, to_plain
from harness.store.writer import ResultsWriter

__all__ = ["Compacted", "compact"]

_PREFIX = "compacted-"
# Trade-off: a damaged file loses its runs, and a reader holds a row group of 64 MiB in memory. Of
# larger files fewer would be opened, at 2 ms each.
_LARGE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction has done."""

    runs: int
    """Runs in the new files."""
    records: int
    before: int
    """Files that were replaced."""
    after: int
    """Files that replace them."""
    left: tuple[str, ...]
    """Why files were left as they are."""
    is_locked: bool
    """Whether the folder could be locked."""


def compact(folder: Path) -> Compacted:
    """Put the runs of a folder into few files, and remove the files that they replace.

    Files that cannot be read, and those of runs with a journal, are left as they are.

    Raises:
        StoreError: there is no such folder, another process compacts it, or a file cannot be
            written. The old files are then there.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder}: no such folder; `compact` takes a folder of results files")
    with _locked(folder) as is_locked:
        for leftover in folder.glob(f"{_PREFIX}*.partial"):  # of a process that was killed
            _remove(leftover)
        for leftover in replaced_files(folder):
            _remove(leftover)
        runs, errors = stored_runs(folder)
        left = [str(error) for error in errors]
        files: dict[Path, list[StoredRun]] = {}
        for run in runs:
            if run.file.with_suffix(".jsonl").exists():
                left.append(f"{run.file}: its run is being continued")
            elif run.file.stat().st_size < _LARGE_BYTES:
                files.setdefault(run.file, []).append(run)
        groups = [group for group in _groups(list(files)) if len(group) > 1]
        for group in groups:
            members = [run for file in group for run in files[file]]
            _replace(folder, group, members)
        compacted = [run for group in groups for file in group for run in files[file]]
        return Compacted(
            runs=len(compacted),
            records=sum(run.records for run in compacted),
            before=sum(map(len, groups)),
            after=len(groups),
            left=tuple(left),
            is_locked=is_locked,
        )


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _groups(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Divide files into groups whose sum of sizes is just large enough."""
    group: list[Path] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.stat().st_size
        if size >= _LARGE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _replace(folder: Path, files: Sequence[Path], members: Sequence[StoredRun]) -> None:
    """Write the runs of some files to a new one, read it back, and remove the files."""
    described = json.dumps([_described(member) for member in members])
    new = folder / f"{_PREFIX}{sha256(described.encode()).hexdigest()[:12]}.parquet"
    places = {(member.file, member.member): place for place, member in enumerate(members)}
    with ResultsWriter(new, members=described) as writer:
        for file in files:
            for row in rows_of(file):
                place = places.get((file, row.get(RUN_FIELD.name)))
                if place is not None:  # else another compacted file holds the run too
                    writer.add(from_plain(Record, row), place)
    counts = [0] * len(members)
    for row in rows_of(new):  # what has reached the disk, before anything is removed
        counts[row[RUN_FIELD.name]] += 1
    if counts != [member.records for member in members]:
        new.unlink()
        raise StoreError(f"{new}: does not hold what was written; the old files are kept")
    for file in files:
        _remove(file)


def _remove(path: Path) -> None:
    """Remove a file that is read no more, whether it is there or not."""
    try:
        path.unlink()
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be removed: {error.strerror}; it is not read any more, remove it or "
            "compact the folder again"
        ) from error


def _described(member: StoredRun) -> dict[str, Any]:
    return {
        "name": member.path.name,
        "digest": member.digest,
        "version": member.version,
        "runs": to_plain(member.runs),
        "environments": {name: to_plain(each) for name, each in member.environments.items()},
        "records": member.records,
    }
