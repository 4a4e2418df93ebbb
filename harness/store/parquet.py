"""One parquet file per run: one nested row per case, environments and runs in the metadata.

A file is written in one step, and read and written in memory that does not grow with the number of
records. Page checksums cover the pages; the checksum in the metadata covers the rest. A scan reads
some fields of some records of many files: a question to a long history.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import compress, takewhile
from os import cpu_count
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Case, Environment, Record, Run
from harness.records.refusal import StoreError, refusing
from harness.store.journal import lock
from harness.store.schema import (
    DIGEST_KEY,
    ENVIRONMENTS_KEY,
    RUNS_KEY,
    SAMPLED,
    SCHEMA_VERSION,
    VERSION_KEY,
    Results,
    from_plain,
    record_schema,
    to_plain,
)

_BATCH = 1000  # records converted at once: few enough to bound the memory, enough to be fast
_GROUP_BYTES = 64 << 20  # of a row group in memory; a reader holds one at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What a results file says of its records, without them."""

    path: Path
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    records: int
    """Number of records."""
    digest: str
    """Checksum of the contents."""


def read(path: Path | str, *, samples: bool = True) -> Results:
    """Read a results file; without ``samples``, latencies come without their raw timings.

    Raises:
        StoreError: no such file, not a results file, damaged, or of another schema.
    """
    header = header_of(path := Path(path))
    return Results(
        records=tuple(records_of(path, samples=samples)),
        runs=header.runs,
        environments=header.environments,
    )


def header_of(path: Path) -> StoredRun:
    """Read what a results file says of its records, without reading them.

    Raises:
        StoreError: as :func:`read`.
    """
    with damage_named(path), pq.ParquetFile(path) as file:
        return _header(path, file)


def _header(path: Path, file: pq.ParquetFile) -> StoredRun:
    metadata = _checked_metadata(path, file)
    return StoredRun(
        path=path,
        runs=from_plain(tuple[Run, ...], json.loads(metadata[RUNS_KEY])),
        environments=from_plain(dict[str, Environment], json.loads(metadata[ENVIRONMENTS_KEY])),
        records=file.metadata.num_rows,
        digest=metadata[DIGEST_KEY].decode(),
    )


def records_of(path: Path, *, samples: bool = True) -> Iterator[Record]:
    """Yield the records of a results file, in memory that does not grow with their number.

    The checksum of the file is known at its end: records of a damaged file may be yielded before
    the error is raised.

    Raises:
        StoreError: as :func:`read`.
    """
    with damage_named(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = _checked_metadata(path, file)
        digest = _Digest(metadata)
        columns = None if samples else _columns_without_samples(file.schema_arrow)
        for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
            rows = batch.to_pylist()
            digest.add(rows)
            yield from (from_plain(Record, row) for row in rows)
        if metadata.get(DIGEST_KEY) != digest.hex():
            raise StoreError(f"{path}: damaged: its contents do not match their checksum")


def _columns_without_samples(schema: pa.Schema) -> list[str]:
    names: list[str] = []
    for column in schema:
        if column.name in SAMPLED:
            names += [f"{column.name}.{part.name}" for part in column.type if part.name != "arms"]
        else:
            names.append(column.name)
    return names


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into a refusal that names the file.

    Raises:
        StoreError: in place of what was raised.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; make one with `layernorm-bench run`") from error
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise StoreError(f"{path}: not a readable results file, or damaged: {why}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: not records of this schema: {error!r}") from error


def _checked_metadata(path: Path, file: pq.ParquetFile) -> dict[bytes, bytes]:
    """Return the metadata of a results file, refusing other tables and schemas."""
    metadata: dict[bytes, bytes] = file.metadata.metadata or {}
    found = metadata.get(VERSION_KEY)
    if found is None:
        raise StoreError(f"{path}: not the records of a run; read it with `pandas.read_parquet`")
    version = found.decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise StoreError(
            f"{path}: has schema version {version}, this layernorm-bench reads {SCHEMA_VERSION} "
            "alone; measure it again, or read it with the version that made it"
        )
    return metadata


# --- many files ----------------------------------------------------------------------------------


def scan(
    paths: Sequence[Path],
    *,
    is_needed: Callable[[StoredRun], bool] = lambda run: True,
    columns: Sequence[str] | None = None,
    is_wanted: Callable[[Case], bool] = lambda case: True,
    samples: bool = False,
) -> tuple[list[tuple[StoredRun, tuple[Record, ...]]], list[StoreError]]:
    """Read several files, in threads; return their records, and why some cannot be read.

    With ``columns``, a row group is read at a time. Of those that hold a wanted case, the pages of
    the columns are read and compared with their checksums. The checksum of the whole file is not.
    Most runs of a folder have the cases of an earlier run. Their pages are then equal byte for
    byte, and are decoded once.

    Args:
        paths: the files.
        is_needed: whether records of a run are returned; of others there are none.
        columns: columns and parts of them, such as "latency.clock"; not those with raw samples.
            Other fields have their default. None reads whole records.
        is_wanted: whether the records of a case are returned, with ``columns``.
        samples: whether whole records have their raw samples.
    """
    known: dict[bytes, tuple[list[bool], list[Case]]] = {}

    def read_one(path: Path) -> tuple[StoredRun, tuple[Record, ...]] | StoreError:
        try:
            with (
                damage_named(path),
                pa.OSFile(str(path)) as source,
                # buffers would be filled by further threads, and the system reads ahead anyway
                pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
            ):
                run = _header(path, file)
                if not is_needed(run):
                    return run, ()
                if columns is None:
                    return run, tuple(records_of(path, samples=samples))
                return run, tuple(_some_records(run, source, file, columns, is_wanted, known))
        except StoreError as error:
            return error

    with ThreadPoolExecutor(cpu_count()) as threads:
        found = [*threads.map(read_one, paths)]
    errors = [one for one in found if isinstance(one, StoreError)]
    return [one for one in found if not isinstance(one, StoreError)], errors


def _some_records(
    run: StoredRun,
    source: pa.NativeFile,
    file: pq.ParquetFile,
    columns: Sequence[str],
    is_wanted: Callable[[Case], bool],
    known: dict[bytes, tuple[list[bool], list[Case]]],
) -> Iterator[Record]:
    """Yield some fields of the wanted records; ``known`` keeps the cases of equal pages.

    Raises:
        StoreError: rows are missing.
    """
    number = 0
    for group in range(file.num_row_groups):
        pages = _checksum_of_cases(source, file.metadata.row_group(group))
        if pages not in known:
            plain = file.read_row_group(group, columns=["case"], use_threads=False).column("case")
            cases = [from_plain(Case, case) for case in plain.to_pylist()]
            mask = [is_wanted(case) for case in cases]
            known[pages] = mask, [*compress(cases, mask)]
        mask, cases = known[pages]
        number += len(mask)
        if cases:
            names = ["environment", "status", *columns]
            table = file.read_row_group(group, columns=names, use_threads=False).filter(mask)
            for row, case in zip(table.to_pylist(), cases, strict=True):
                yield from_plain(Record, row | {"case": case})
    if number != run.records:
        raise StoreError(f"{run.path}: damaged: {number} of its {run.records} rows are there")


def _checksum_of_cases(source: pa.NativeFile, group: pq.RowGroupMetaData) -> bytes:
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


# --- writing -------------------------------------------------------------------------------------


class _Digest:
    """Checksum of everything except the raw samples, which page checksums cover.

    Page checksums do not cover the footer, where one flipped bit can empty a column.
    """

    def __init__(self, metadata: dict[bytes, bytes]) -> None:
        keys = (VERSION_KEY, RUNS_KEY, ENVIRONMENTS_KEY)
        self._sum = sha256(b"".join(metadata.get(key, b"") for key in keys))

    def add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._sum.update(json.dumps(_bare(row, None)).encode())

    def hex(self) -> bytes:
        return self._sum.hexdigest().encode()


def _bare(row: dict[str, Any], samples: object) -> dict[str, Any]:
    """Return a row with ``samples`` in place of its raw samples."""
    return row | {name: row[name] | {"arms": samples} for name in SAMPLED if row.get(name)}


class ResultsWriter:
    """Adds records to a results file, in memory that does not grow with their number."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._schema = schema
        self._digest = _Digest(schema.metadata)
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)

    def add(self, record: Record) -> None:
        """Add a record.

        Raises:
            OSError: the disk is full, or the file cannot be written any more.
        """
        self._rows.append(to_plain(record))
        if len(self._rows) == _BATCH:
            self._convert(_GROUP_BYTES)

    def finish(self) -> None:
        """Write what is left, and the checksum."""
        self._convert(0)
        self._writer.add_key_value_metadata({DIGEST_KEY: self._digest.hex()})
        self._writer.close()

    def close(self) -> None:
        """Give up what is not written yet."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _convert(self, least_bytes: int) -> None:
        """Convert the rows, and write a row group once it has so many bytes."""
        rows, self._rows = self._rows, []
        # digest of the rows as they will be read: an integer in a float column is read as a float
        bare = pa.Table.from_pylist([_bare(row, ()) for row in rows], schema=self._schema)
        self._digest.add(bare.to_pylist())
        self._tables.append(pa.Table.from_pylist(rows, schema=self._schema))
        if sum(table.nbytes for table in self._tables) >= least_bytes:
            table = pa.concat_tables(self._tables)
            self._tables.clear()
            if len(table):
                self._writer.write_table(table, row_group_size=len(table))


@contextmanager
def writing(
    path: Path, runs: Sequence[Run], environments: dict[str, Environment]
) -> Iterator[ResultsWriter]:
    """Write a results file in one step: no reader ever sees a partial file.

    Its folder is made. If the block raises, nothing is written. The target of a symbolic link is
    replaced, not the link. Only regular files are replaced.

    Args:
        path: the file.
        runs: the invocations that made the records.
        environments: by fingerprint.

    Raises:
        StoreError: the file cannot be written, or another process writes it.
    """
    metadata = {
        VERSION_KEY: str(SCHEMA_VERSION),
        RUNS_KEY: json.dumps(to_plain(tuple(runs))),
        ENVIRONMENTS_KEY: json.dumps(to_plain(environments)),
    }
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + ".partial")
    if target.exists() and not target.is_file():  # as root it could replace a device
        raise StoreError(f"{path}: cannot be written: it exists and is not a regular file")
    with refusing(path, "written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        # "wb" would empty the file of another process
        with partial.open("ab") as file, ExitStack() as undone:
            lock(file, partial)
            undone.callback(partial.unlink)
            file.truncate(0)  # what a killed process has left
            writer = ResultsWriter(file, record_schema().with_metadata(metadata))
            undone.callback(writer.close)
            yield writer
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
            partial.replace(target)
            undone.pop_all()
        if os.name == "posix":  # make the new name durable; other systems cannot sync folders
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def write(results: Results, path: Path) -> None:
    """Write ``results`` to ``path`` in one step, as :func:`writing` does.

    Raises:
        StoreError: the file cannot be written.
    """
    with writing(path, results.runs, results.environments) as writer:
        for record in results.records:
            writer.add(record)
