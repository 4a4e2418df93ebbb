"""Write a results file in one step, in memory that does not grow with the number of records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Environment, Record, Run
from harness.store.digest import (
    DIGEST_KEY,
    ENVIRONMENTS_KEY,
    MEMBERS_KEY,
    RUNS_KEY,
    VERSION_KEY,
    Digest,
    bare_row,
)
from harness.store.error import StoreError
from harness.store.lock import lock
from harness.store.parquet import BATCH, COMPACTED_VERSION, RUN_FIELD, SCHEMA_VERSION, Results
from harness.store.plain import to_plain
from harness.store.schema import record_schema

__all__ = ["ResultsWriter", "write"]

_GROUP_BYTES = 64 << 20  # of a row group in memory; a reader holds one at a time


class ResultsWriter:
    """Writes a results file record by record, in one step: no reader ever sees a partial file.

    Use as a context manager; if its block raises, nothing is written. The memory that it takes
    does not grow with the number of records. The target of a symbolic link is replaced, not the
    link. Only regular files are replaced.
    """

    def __init__(
        self,
        path: Path,
        runs: Sequence[Run] = (),
        environments: dict[str, Environment] | None = None,
        members: str | None = None,
    ) -> None:
        """Start a file beside ``path`` that will replace it.

        Args:
            path: the file.
            runs: the invocations that made the records.
            environments: by fingerprint.
            members: of a compacted file, instead: the runs that it will hold, as JSON.

        Raises:
            StoreError: the file cannot be written, or another process writes it.
        """
        self._path = path
        self._target = Path(os.path.realpath(path))
        if self._target.exists() and not self._target.is_file():
            # as root it could replace a device
            raise StoreError(f"{path}: cannot be written: it exists and is not a regular file")
        metadata = {
            VERSION_KEY: str(SCHEMA_VERSION if members is None else COMPACTED_VERSION).encode(),
            RUNS_KEY: json.dumps(to_plain(tuple(runs))).encode(),
            ENVIRONMENTS_KEY: json.dumps({
                name: to_plain(environment) for name, environment in (environments or {}).items()
            }).encode(),
        }
        bare_schema = record_schema()
        if members is not None:
            metadata[MEMBERS_KEY] = members.encode()
            bare_schema = bare_schema.append(RUN_FIELD)
        self._digest = Digest(metadata)
        self._schema = bare_schema.with_metadata(metadata)
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._partial = self._target.with_name(self._target.name + ".partial")
        try:
            self._file = self._partial.open("ab")  # "wb" would empty the file of another process
        except OSError as error:
            raise self._refusal(error) from error
        try:
            self.is_locked = lock(self._file, self._partial)
        except StoreError:
            self._file.close()
            raise
        self._file.truncate(0)  # what a killed process has left
        self._writer = pq.ParquetWriter(
            self._file, self._schema, compression="zstd", write_page_checksum=True
        )

    def add(self, record: Record, member: int | None = None) -> None:
        """Add a record; in a compacted file, of the member of this index.

        Raises:
            StoreError: the disk is full, or the file cannot be written any more.
        """
        self._rows.append(to_plain(record) | ({} if member is None else {RUN_FIELD.name: member}))
        if len(self._rows) == BATCH:
            with self._refusals():
                self._convert()

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abandon()
            return
        with self._refusals():
            self._convert()
            self._flush()
            self._writer.add_key_value_metadata({DIGEST_KEY: self._digest.hex()})
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._partial.replace(self._target)
            self._file.close()
            _sync_folder(self._target.parent)

    def _convert(self) -> None:
        rows, self._rows = self._rows, []
        # digest of the rows as they will be read: an integer in a float column is read as a float
        bare = pa.Table.from_pylist([bare_row(row, ()) for row in rows], schema=self._schema)
        self._digest.add(bare.to_pylist())
        self._tables.append(pa.Table.from_pylist(rows, schema=self._schema))
        if sum(each.nbytes for each in self._tables) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._tables:
            table = pa.concat_tables(self._tables)
            self._tables.clear()
            self._writer.write_table(table, row_group_size=max(1, len(table)))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._abandon()
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> StoreError:
        return StoreError(f"{self._path}: cannot be written: {error.strerror or error}")

    def _abandon(self) -> None:
        """Remove the unfinished file; its lock ends when it is closed."""
        with suppress(OSError):
            self._partial.unlink()
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError):
            self._file.close()


def write(results: Results, path: Path) -> None:
    """Write ``results`` to ``path`` in one step, as :class:`ResultsWriter` does.

    Raises:
        StoreError: the file cannot be written.
    """
    with ResultsWriter(path, results.runs, results.environments) as writer:
        for record in results.records:
            writer.add(record)


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable; only POSIX can sync folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
