"""The runs in a folder: one results file each, or several in a compacted file.

A compacted file names the files that it replaces, with their checksums. A reader leaves such a
file out where it still exists, so each run is read once at any moment of a compaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.records import Case, Environment, Record, Run
from harness.store.digest import MEMBERS_KEY
from harness.store.error import StoreError
from harness.store.parquet import (
    RUN_FIELD,
    checked_metadata,
    columns_without_samples,
    damage_named,
    header_in,
    records_of,
    rows_of,
)
from harness.store.plain import from_plain

__all__ = ["StoredRun", "read_runs", "replaced_files", "scan_runs", "stored_runs"]

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


def stored_runs(folder: Path) -> tuple[list[StoredRun], list[StoreError]]:
    """Return the runs in the results files of a folder, and why other files cannot be read."""
    for _ in range(_ATTEMPTS):
        paths = _listed(folder)
        # of a folder that is being compacted, one listing may miss the old file and the new one
        if paths != _listed(folder):
            continue
        runs: list[StoredRun] = []
        errors: list[StoreError] = []
        with ThreadPoolExecutor(cpu_count()) as threads:
            for found in threads.map(_runs_of, paths):
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


def _runs_of(path: Path) -> list[StoredRun] | StoreError:
    try:
        with damage_named(path), pq.ParquetFile(path) as file:
            members = checked_metadata(path, file).get(MEMBERS_KEY)
            return [_single(path, file)] if members is None else _members(path, json.loads(members))
    except StoreError as error:
        return error


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
    return _by_file(runs, lambda file, own: _all_records(file, own, samples))


def scan_runs(
    runs: Sequence[StoredRun], columns: Sequence[str], is_wanted: Callable[[Case], bool]
) -> tuple[dict[Path, tuple[Record, ...]], list[StoreError]]:
    """Return some fields of some records of runs, as :func:`read_runs` does.

    Of a file only the pages of ``columns`` are read, a row group at a time in each thread, and
    compared with their checksums. The checksum of the whole file is not.

    Args:
        runs: of one folder.
        columns: columns and parts of them, such as "latency.clock". Others have their default.
            The raw samples are left out.
        is_wanted: whether the records of a case are returned.
    """
    names = ("case", "environment", "status", *columns)
    wanted = _Wanted(is_wanted)
    return _by_file(runs, lambda file, own: _some_records(file, own, names, wanted))


_Found = dict[Path, tuple[Record, ...]]


def _by_file(
    runs: Sequence[StoredRun], read: Callable[[Path, Sequence[StoredRun]], _Found]
) -> tuple[_Found, list[StoreError]]:
    """Read each file in a thread, with the runs of it that are wanted."""
    files: dict[Path, list[StoredRun]] = {}
    for run in runs:
        files.setdefault(run.file, []).append(run)

    def read_or_refusal(file: Path) -> _Found | StoreError:
        try:
            with damage_named(file):
                return read(file, files[file])
        except StoreError as error:
            return error

    records: _Found = {}
    errors: list[StoreError] = []
    with ThreadPoolExecutor(cpu_count()) as threads:
        for found in threads.map(read_or_refusal, files):
            if isinstance(found, StoreError):
                errors.append(found)
            else:
                records |= found
    return records, errors


def _all_records(file: Path, runs: Sequence[StoredRun], samples: bool) -> _Found:
    if runs[0].member is None:
        return {runs[0].path: tuple(records_of(file, samples=samples))}
    found: dict[int | None, list[Record]] = {run.member: [] for run in runs}
    for row in rows_of(file, samples=samples):
        if (own := found.get(row[RUN_FIELD.name])) is not None:
            own.append(from_plain(Record, row))
    return {run.path: tuple(found[run.member]) for run in runs}


def _some_records(
    path: Path,
    runs: Sequence[StoredRun],
    columns: Sequence[str],
    wanted: _Wanted,
) -> _Found:
    found: dict[int | None, list[Record]] = {run.member: [] for run in runs}
    number = 0
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = columns_without_samples(file.schema_arrow, *columns, RUN_FIELD.name)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=names, use_threads=False)
            number += len(table)
            mask = wanted.mask(table.column("case"))
            if RUN_FIELD.name in table.column_names:
                own = pa.array([run.member for run in runs], RUN_FIELD.type)
                mask = pc.and_(mask, pc.is_in(table.column(RUN_FIELD.name), own))
            for row in table.filter(mask).to_pylist():
                found[row.get(RUN_FIELD.name)].append(from_plain(Record, row))
    if number != file.metadata.num_rows:
        raise StoreError(
            f"{path}: damaged: {number} of its {file.metadata.num_rows} rows are there"
        )
    return {run.path: tuple(found[run.member]) for run in runs}


class _Wanted:
    """Which cases are wanted; each is asked once, by the fields of the case in one text."""

    def __init__(self, is_wanted: Callable[[Case], bool]) -> None:
        self._is_wanted = is_wanted
        self._known: dict[str, bool] = {}
        self._state = pa.array([], pa.string()), pa.array([], pa.string())
        self._lock = Lock()
        self._last: dict[int, tuple[pa.StructArray, pa.BooleanArray]] = {}

    def mask(self, cases: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a mask of the rows whose case is wanted."""
        return pa.chunked_array([self._known_mask(chunk) for chunk in cases.chunks], pa.bool_())

    def _known_mask(self, cases: pa.StructArray) -> pa.BooleanArray:
        """Return the mask of equal cases, since most runs have the cases of an earlier run."""
        last = self._last.get(len(cases))
        if last is None or not last[0].equals(cases):
            last = self._last[len(cases)] = cases, self._mask(cases)
        return last[1]

    def _mask(self, cases: pa.StructArray) -> pa.BooleanArray:
        fields = [_as_text(cases.field(place)) for place in range(cases.type.num_fields)]
        keys = pc.binary_join_element_wise(*fields, "/")
        known, wanted = self._state
        is_new = pc.invert(pc.is_in(keys, known))
        if pc.any(is_new).as_py():
            wanted = self._learn(keys.filter(is_new), cases.filter(is_new))
        return pc.is_in(keys, wanted)

    def _learn(self, keys: pa.StringArray, cases: pa.StructArray) -> pa.StringArray:
        unique = keys.dictionary_encode()
        first = pc.index_in(pa.array(range(len(unique.dictionary)), pa.int32()), unique.indices)
        with self._lock:
            for key, case in zip(unique.dictionary, cases.take(first), strict=True):
                if key.as_py() not in self._known:
                    is_wanted = self._is_wanted(from_plain(Case, case.as_py()))
                    self._known[key.as_py()] = is_wanted
            wanted = [key for key, is_wanted in self._known.items() if is_wanted]
            self._state = pa.array(self._known, pa.string()), pa.array(wanted, pa.string())
            return self._state[1]


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_list(values.type):
        return pc.binary_join(pc.cast(values, pa.list_(pa.string())), "x")
    return pc.cast(values, pa.string())
