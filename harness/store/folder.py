"""The runs in a folder: one results file each, or several in a compacted file.

A compacted file names the files that it replaces, with their checksums. A reader leaves such a
file out where it still exists, so each run is read once at any moment of a compaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import cpu_count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Environment, Record, Run
from harness.store.digest import MEMBERS_KEY
from harness.store.error import StoreError
from harness.store.parquet import (
    RUN_FIELD,
    checked_metadata,
    damage_named,
    header_in,
    records_of,
    rows_of,
)
from harness.store.plain import from_plain

__all__ = [
    "Found",
    "StoredRun",
    "Visit",
    "by_file",
    "opened",
    "read_runs",
    "replaced_files",
    "stored_runs",
]

Found = dict[Path, tuple[Record, ...]]
"""Records of runs, by the path of the run."""
Visit = Callable[[pa.NativeFile, pq.ParquetFile, Sequence["StoredRun"]], None]
"""Reads more of an open file, of which the runs are known."""

_ATTEMPTS = 20  # listings that a compaction may spoil; each compaction spoils a few


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in a folder, without its records."""

    path: Path
    """Its results file, which a compacted file may have replaced."""
    file: Path
    """The file that holds its records."""
    member: int | None
    """Its index in a compacted file."""
    version: int
    """Schema version of its results file."""
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    records: int
    """Number of records."""
    digest: str | None
    """Checksum of the contents of its results file."""


def stored_runs(
    folder: Path, visit: Visit | None = None
) -> tuple[list[StoredRun], list[StoreError]]:
    """Return the runs in the results files of a folder, and why other files cannot be read.

    Args:
        folder: its subfolders are not read.
        visit: reads more of each file while it is open, in several threads; twice where the folder
            changes meanwhile.
    """
    for _ in range(_ATTEMPTS):
        paths = _listed(folder)
        # of a folder that is being compacted, one listing may miss the old file and the new one
        if paths != _listed(folder):
            continue
        runs: list[StoredRun] = []
        errors: list[StoreError] = []
        with ThreadPoolExecutor(cpu_count()) as threads:
            for found in threads.map(partial(_runs_of, visit=visit), paths):
                if isinstance(found, StoreError):
                    errors.append(found)
                else:
                    runs += found
        if all(path.exists() for path in paths):
            return _once(runs), errors
    raise StoreError(f"{folder}: changes while it is read; wait until `compact` has ended")


def replaced_files(folder: Path) -> list[Path]:
    """Return files whose runs a compacted file holds, and which a killed compaction has left."""
    found = {path: runs for path in _listed(folder) if isinstance(runs := _runs_of(path), list)}
    used = {run.file for run in _once([run for runs in found.values() for run in runs])}
    return [path for path in found if path not in used]


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _runs_of(path: Path, visit: Visit | None = None) -> list[StoredRun] | StoreError:
    try:
        with opened(path) as (source, file):
            members = checked_metadata(path, file).get(MEMBERS_KEY)
            runs = _members(path, json.loads(members)) if members else [_single(path, file)]
            if visit is not None:
                visit(source, file, runs)
    except StoreError as error:
        return error
    return runs


@contextmanager
def opened(path: Path) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
    """Open a file, whose pages will be compared with their checksums.

    Raises:
        StoreError: in place of what reading it raises in the block.
    """
    with (
        damage_named(path),
        pa.OSFile(str(path)) as source,
        # buffers would be filled by further threads, and the system reads ahead anyway
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        yield source, file


def _single(path: Path, file: pq.ParquetFile) -> StoredRun:
    header = header_in(path, file)
    return StoredRun(
        path=path,
        file=path,
        member=None,
        version=header.version,
        runs=header.runs,
        environments=header.environments,
        records=header.records,
        digest=header.digest,
    )


def _members(path: Path, members: list[Any]) -> list[StoredRun]:
    return [
        StoredRun(
            path=path.with_name(member["name"]),
            file=path,
            member=index,
            version=member["version"],
            runs=tuple(from_plain(Run, run) for run in member["runs"]),
            environments={
                name: from_plain(Environment, plain)
                for name, plain in member["environments"].items()
            },
            records=member["records"],
            digest=member["digest"],
        )
        for index, member in enumerate(members)
    ]


def _once(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Leave out files that a compacted file replaces, and runs that two of them hold."""
    held: dict[tuple[Path, str | None], Path] = {}
    compacted = [run for run in runs if run.member is not None]
    for run in compacted:
        held.setdefault((run.path, run.digest), run.file)
    return [run for run in runs if held.get((run.path, run.digest), run.file) == run.file]


def read_runs(
    runs: Sequence[StoredRun], *, samples: bool = False
) -> tuple[dict[Path, tuple[Record, ...]], list[StoreError]]:
    """Return all records of runs by the path of the run, and why some files cannot be read.

    Args:
        runs: of one folder.
        samples: whether the raw samples are needed.
    """
    return by_file(runs, lambda file, own: _all_records(file, own, samples))


def by_file(
    runs: Sequence[StoredRun], read: Callable[[Path, Sequence[StoredRun]], Found]
) -> tuple[Found, list[StoreError]]:
    """Read each file in a thread, with the runs of it that are wanted."""
    files: dict[Path, list[StoredRun]] = {}
    for run in runs:
        files.setdefault(run.file, []).append(run)

    def read_or_refusal(file: Path) -> Found | StoreError:
        try:
            with damage_named(file):
                return read(file, files[file])
        except StoreError as error:
            return error

    records: Found = {}
    errors: list[StoreError] = []
    with ThreadPoolExecutor(cpu_count()) as threads:
        for found in threads.map(read_or_refusal, files):
            if isinstance(found, StoreError):
                errors.append(found)
            else:
                records |= found
    return records, errors


def _all_records(file: Path, runs: Sequence[StoredRun], samples: bool) -> Found:
    if runs[0].member is None:
        return {runs[0].path: tuple(records_of(file, samples=samples))}
    found: dict[int | None, list[Record]] = {run.member: [] for run in runs}
    for row in rows_of(file, samples=samples):
        if (own := found.get(row[RUN_FIELD.name])) is not None:
            own.append(from_plain(Record, row))
    return {run.path: tuple(found[run.member]) for run in runs}
