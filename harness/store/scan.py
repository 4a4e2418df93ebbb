"""Some fields of some records of many results files: a question to a long history.

Most runs of a folder have the cases of an earlier run. Their pages are then equal byte for byte,
and are not decoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import compress, takewhile
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.records import Case, Record
from harness.store.error import StoreError
from harness.store.folder import Found, StoredRun, by_file, opened, stored_runs
from harness.store.parquet import RUN_FIELD
from harness.store.plain import from_plain

__all__ = ["scan_folder", "scan_runs"]


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
        with opened(path) as (source, file):
            return _some_records(source, file, own, columns, wanted)

    return by_file(runs, read)


def scan_folder(
    folder: Path,
    columns: Sequence[str],
    is_wanted: Callable[[Case], bool],
    is_needed: Callable[[StoredRun], bool],
) -> tuple[list[StoredRun], Found, list[StoreError]]:
    """Return what :func:`harness.store.stored_runs` and :func:`scan_runs` do, opening files once.

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
            members = pa.array(found, RUN_FIELD.type)
            is_own = pc.is_in(table.column(RUN_FIELD.name), members)
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
            fields = [_as_text(cases.field(place)) for place in range(cases.type.num_fields)]
            keys = pc.binary_join_element_wise(*fields, "/")
            mask = self._mask(keys, cases)
            found = [self._cases[key] for key in keys.filter(mask).to_pylist()]
            self._groups[pages] = mask, [case for case in found if case is not None]
        return self._groups[pages]

    def _mask(self, keys: pa.StringArray, cases: pa.StructArray) -> pa.BooleanArray:
        known, wanted = self._state
        is_new = pc.invert(pc.is_in(keys, known))
        if pc.any(is_new).as_py():
            wanted = self._learn(keys.filter(is_new), cases.filter(is_new))
        return pc.is_in(keys, wanted)

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
    columns = (group.column(place) for place in range(group.num_columns))
    own = [*takewhile(lambda column: column.path_in_schema.startswith("case."), columns)]
    if not own:
        raise KeyError("case")
    start, last = (
        each.dictionary_page_offset or each.data_page_offset for each in (own[0], own[-1])
    )
    size = last + own[-1].total_compressed_size - start
    return sha256(f"{len(own)}/{size}/".encode() + source.read_at(size, start)).digest()


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_list(values.type):
        return pc.binary_join(pc.cast(values, pa.list_(pa.string())), "x")
    return pc.cast(values, pa.string())
