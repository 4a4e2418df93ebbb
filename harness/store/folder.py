"""The runs in a folder: one results file per run, or several runs in a compacted file.

A compacted file names the files that it replaces, with their checksums. A reader leaves such a
file out where it still exists, so each run is read once at any moment of a compaction.

A scan reads some fields of some records: a question to a long history. Most runs of a folder have
the cases of an earlier run. Their pages are then equal byte for byte, and are not decoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import compress, takewhile
from os import cpu_count
from pathlib import Path
from threading import Lock
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.records import Case, Record
from harness.store.parquet import StoredRun, damage_named, records_of, rows_of, runs_in
from harness.store.schema import RUN_FIELD, StoreError, from_plain

Found = dict[Path, tuple[Record, ...]]
"""Records of runs, by the path of the run."""
_Visit = Callable[[pa.NativeFile, pq.ParquetFile, Sequence[StoredRun]], None]
"""Reads more of an open file, of which the runs are known."""

_T = TypeVar("_T")

_ATTEMPTS = 20  # listings that a compaction may spoil; each compaction spoils a few


def stored_runs(
    folder: Path, visit: _Visit | None = None
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
        found, errors = _in_threads(partial(_runs_of, visit=visit), paths)
        if all(path.exists() for path in paths):
            return _once([run for runs in found for run in runs]), errors
    raise StoreError(f"{folder}: changes while it is read; wait until `compact` has ended")


def replaced_files(folder: Path) -> list[Path]:
    """Return files whose runs a compacted file holds, and which a killed compaction has left."""
    found, _ = _in_threads(_runs_of, _listed(folder))
    runs = [run for own in found for run in own]
    used = {run.file for run in _once(runs)}
    return sorted({run.file for run in runs} - used)


def read_runs(
    runs: Sequence[StoredRun], *, samples: bool = False
) -> tuple[Found, list[StoreError]]:
    """Return all records of runs by the path of the run, and why some files cannot be read.

    Args:
        runs: of one folder.
        samples: whether the raw samples are needed.
    """

    def read(file: Path, own: Sequence[StoredRun]) -> Found:
        if own[0].member is None:
            return {own[0].path: tuple(records_of(file, samples=samples))}
        found: dict[int | None, list[Record]] = {run.member: [] for run in own}
        for row in rows_of(file, samples=samples):
            if (records := found.get(row[RUN_FIELD.name])) is not None:
                records.append(from_plain(Record, row))
        return {run.path: tuple(found[run.member]) for run in own}

    return _by_file(runs, read)


def scan_runs(
    runs: Sequence[StoredRun], columns: Sequence[str], is_wanted: Callable[[Case], bool]
) -> tuple[Found, list[StoreError]]:
    """Return some fields of some records of runs, as :func:`harness.store.read_runs` does.

    A row group is read at a time in each thread. Of those that hold a wanted case, the pages of
    ``columns`` are read and compared with their checksums. The checksum of the whole file is not.

    Args:
        runs: of one folder.
        columns: columns and parts of them, such as "latency.clock"; not those with raw samples.
            Others have their default.
        is_wanted: whether the records of a case are returned.
    """
    wanted = _Wanted(is_wanted)

    def read(path: Path, own: Sequence[StoredRun]) -> Found:
        with _opened(path) as (source, file):
            return _some_records(source, file, own, columns, wanted)

    return _by_file(runs, read)


def scan_folder(
    folder: Path,
    columns: Sequence[str],
    is_wanted: Callable[[Case], bool],
    is_needed: Callable[[StoredRun], bool],
) -> tuple[list[StoredRun], Found, list[StoreError]]:
    """Return what :func:`stored_runs` and :func:`scan_runs` do, opening files once.

    Args:
        folder: its subfolders are not read.
        columns: as for :func:`scan_runs`.
        is_wanted: as for :func:`scan_runs`.
        is_needed: whether records of a run are returned.
    """
    wanted = _Wanted(is_wanted)
    records: Found = {}

    def read(source: pa.NativeFile, file: pq.ParquetFile, runs: Sequence[StoredRun]) -> None:
        if own := [run for run in runs if is_needed(run)]:
            records.update(_some_records(source, file, own, columns, wanted))

    runs, errors = stored_runs(folder, read)
    return runs, records, errors


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _in_threads(
    read: Callable[[Path], _T], paths: Sequence[Path]
) -> tuple[list[_T], list[StoreError]]:
    """Return what is read of files, and why others cannot be read."""

    def read_or_refusal(path: Path) -> _T | StoreError:
        try:
            with damage_named(path):
                return read(path)
        except StoreError as error:
            return error

    with ThreadPoolExecutor(cpu_count()) as threads:
        found = [*threads.map(read_or_refusal, paths)]
    return (
        [one for one in found if not isinstance(one, StoreError)],
        [one for one in found if isinstance(one, StoreError)],
    )


def _by_file(
    runs: Sequence[StoredRun], read: Callable[[Path, Sequence[StoredRun]], Found]
) -> tuple[Found, list[StoreError]]:
    """Read files with the runs of them that are wanted."""
    files: dict[Path, list[StoredRun]] = {}
    for run in runs:
        files.setdefault(run.file, []).append(run)
    found, errors = _in_threads(lambda file: read(file, files[file]), [*files])
    return {path: records for part in found for path, records in part.items()}, errors


@contextmanager
def _opened(path: Path) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
    """Open a file, whose pages will be compared with their checksums."""
    with (
        pa.OSFile(str(path)) as source,
        # buffers would be filled by further threads, and the system reads ahead anyway
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        yield source, file


def _runs_of(path: Path, visit: _Visit | None = None) -> list[StoredRun]:
    with _opened(path) as (source, file):
        runs = runs_in(path, file)
        if visit is not None:
            visit(source, file, runs)
    return runs


def _once(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Leave out files that a compacted file replaces, and runs that two of them hold."""
    held: dict[tuple[Path, str], Path] = {}
    for run in runs:
        if run.member is not None:
            held.setdefault((run.path, run.digest), run.file)
    return [run for run in runs if held.get((run.path, run.digest), run.file) == run.file]


def _some_records(
    source: pa.NativeFile,
    file: pq.ParquetFile,
    runs: Sequence[StoredRun],
    columns: Sequence[str],
    wanted: _Wanted,
) -> Found:
    found: dict[int | None, list[Record]] = {run.member: [] for run in runs}
    is_compacted = None not in found
    names = ["environment", "status", *columns, *([RUN_FIELD.name] if is_compacted else [])]
    number = 0
    for group in range(file.num_row_groups):
        mask, cases = wanted.rows(source, file, group)
        number += len(mask)
        if not cases:
            continue
        table = file.read_row_group(group, columns=names, use_threads=False).filter(mask)
        if is_compacted:
            is_own = pc.is_in(table.column(RUN_FIELD.name), pa.array(found, RUN_FIELD.type))
            table, cases = table.filter(is_own), [*compress(cases, is_own.to_pylist())]
        for row, case in zip(table.to_pylist(), cases, strict=True):
            found[row.get(RUN_FIELD.name)].append(from_plain(Record, row | {"case": case}))
    if number != file.metadata.num_rows:
        raise StoreError(
            f"{runs[0].file}: damaged: {number} of its {file.metadata.num_rows} rows are there"
        )
    return {run.path: tuple(found[run.member]) for run in runs}


class _Wanted:
    """Which rows have a wanted case; each case is asked once, by its fields in one text."""

    def __init__(self, is_wanted: Callable[[Case], bool]) -> None:
        self._is_wanted = is_wanted
        self._cases: dict[str, Case | None] = {}
        """By its fields; None if it is not wanted."""
        self._state = pa.array([], pa.string()), pa.array([], pa.string())
        """Fields of the known cases, and of the wanted ones."""
        self._lock = Lock()
        self._groups: dict[bytes, tuple[pa.BooleanArray, Sequence[Case]]] = {}

    def rows(
        self, source: pa.NativeFile, file: pq.ParquetFile, group: int
    ) -> tuple[pa.BooleanArray, Sequence[Case]]:
        """Return the mask of the rows of a row group whose case is wanted, and these cases."""
        pages = _checksum(source, file.metadata.row_group(group))
        if pages not in self._groups:
            table = file.read_row_group(group, columns=["case"], use_threads=False)
            cases = table.column("case").combine_chunks()
            fields = [_as_text(cases.field(index)) for index in range(cases.type.num_fields)]
            keys = pc.binary_join_element_wise(*fields, "/")
            known, wanted = self._state
            is_new = pc.invert(pc.is_in(keys, known))
            if pc.any(is_new).as_py():
                wanted = self._learn(keys.filter(is_new), cases.filter(is_new))
            mask = pc.is_in(keys, wanted)
            found = [self._cases[key] for key in keys.filter(mask).to_pylist()]
            self._groups[pages] = mask, [case for case in found if case is not None]
        return self._groups[pages]

    def _learn(self, keys: pa.StringArray, cases: pa.StructArray) -> pa.StringArray:
        unique = keys.dictionary_encode()
        first = pc.index_in(pa.array(range(len(unique.dictionary)), pa.int32()), unique.indices)
        with self._lock:
            for text, plain in zip(unique.dictionary, cases.take(first), strict=True):
                if (key := text.as_py()) not in self._cases:
                    case: Case = from_plain(Case, plain.as_py())
                    self._cases[key] = case if self._is_wanted(case) else None
            wanted = [key for key, case in self._cases.items() if case is not None]
            self._state = pa.array(self._cases, pa.string()), pa.array(wanted, pa.string())
            return self._state[1]


def _checksum(source: pa.NativeFile, group: pq.RowGroupMetaData) -> bytes:
    """Return a checksum of the pages of the cases in a row group, as they are in the file.

    Raises:
        KeyError: its first column is not the case.
    """
    columns = (group.column(index) for index in range(group.num_columns))
    own = [*takewhile(lambda column: column.path_in_schema.startswith("case."), columns)]
    if not own:
        raise KeyError("case")
    start, last = (
        column.dictionary_page_offset or column.data_page_offset for column in (own[0], own[-1])
    )
    size = last + own[-1].total_compressed_size - start
    return sha256(f"{len(own)}/{size}/".encode() + source.read_at(size, start)).digest()


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_list(values.type):
        return pc.binary_join(pc.cast(values, pa.list_(pa.string())), "x")
    return pc.cast(values, pa.string())
