"""One parquet file per run: one nested row per case, environments and runs in the metadata.

A file is written in one step, and both are done in memory that does not grow with the number of
records. Page checksums cover the pages; the checksum in the metadata covers the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Environment, Record, Run
from harness.records.text import count
from harness.store.journal import lock
from harness.store.schema import (
    DIGEST_KEY,
    ENVIRONMENTS_KEY,
    MEMBERS_KEY,
    RUN_FIELD,
    RUNS_KEY,
    SAMPLE_FIELDS,
    SCHEMA_VERSION,
    VERSION_KEY,
    Results,
    StoreError,
    from_plain,
    record_schema,
    to_plain,
)

_NAMED_COLUMNS = 6  # enough to recognise a table in one line
_BATCH = 1000  # records converted at once: few enough to bound the memory, enough to be fast
_GROUP_BYTES = 64 << 20  # of a row group in memory; a reader holds one at a time

_EXPERIMENTS = {
    "condition run case": ("pytest", "how often --benchmark-compare-fail fails unchanged code"),
    "question rule condition": ("timing", "how often intervals hold the value of other processes"),
    "distribution grad_output rows": (
        "detection-limits",
        "the smallest wrong results that the checks detect",
    ),
    "condition gate planted": ("gates", "how often the gates fail unchanged and changed code"),
    "detector condition runs": ("history", "which planted changes are found in a history"),
    "phase acknowledged is_torn": (
        "many-machines",
        "what is left after the driver of a run is killed",
    ),
    "question files time_s": ("sizes", "how long questions to ten million records take"),
    "stage cases time_s": ("sizes", "how the cost of storing grows"),
    "strength dtype subject": ("verification", "which planted mistakes verify detects"),
    "experiment condition timer": ("timing", "the sampler against other timers"),
    "question condition measurements": ("timing", "times of functions whose calls are uneven"),
}
"""The tables of experiments, by their first columns: the page in docs/, and what they measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in a file, without its records."""

    path: Path
    """Its results file, which a compacted file may have replaced."""
    file: Path
    """The file that holds its records."""
    member: int | None
    """Its index in a compacted file."""
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    records: int
    """Number of records."""
    digest: str
    """Checksum of the contents of its results file."""


def read(path: Path | str, *, samples: bool = True) -> Results:
    """Read a results file; without ``samples``, latencies come without their raw timings.

    Raises:
        StoreError: no such file, not a results file, damaged, or of another schema.
    """
    path = Path(path)
    header = header_of(path)
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
        header, *_ = runs = runs_in(path, file)
    if header.member is not None:
        raise StoreError(
            f"{path}: holds {count(len(runs), 'run')}, made by "
            "`compact`; give its folder to `history`, `report` or `check --against-history`"
        )
    return header


def runs_in(path: Path, file: pq.ParquetFile) -> list[StoredRun]:
    """Return the runs of an open file: one, or those that a compacted file holds."""
    metadata = _checked_metadata(path, file)
    is_compacted = MEMBERS_KEY in metadata
    members = (
        json.loads(metadata[MEMBERS_KEY])
        if is_compacted
        else [
            {
                "name": path.name,
                "runs": json.loads(metadata[RUNS_KEY]),
                "environments": json.loads(metadata[ENVIRONMENTS_KEY]),
                "records": file.metadata.num_rows,
                "digest": metadata[DIGEST_KEY].decode(),
            }
        ]
    )
    return [
        StoredRun(
            path=path.with_name(member["name"]),
            file=path,
            member=index if is_compacted else None,
            runs=from_plain(tuple[Run, ...], member["runs"]),
            environments=from_plain(dict[str, Environment], member["environments"]),
            records=member["records"],
            digest=member["digest"],
        )
        for index, member in enumerate(members)
    ]


def described(run: StoredRun) -> dict[str, Any]:
    """Return what a compacted file says of a run, as :func:`runs_in` reads it."""
    return {"name": run.path.name} | {
        name: to_plain(getattr(run, name)) for name in ("runs", "environments", "records", "digest")
    }


def records_of(path: Path, *, samples: bool = True) -> Iterator[Record]:
    """Yield the records of a results file, in memory that does not grow with their number.

    The checksum of the file is known at its end: records of a damaged file may be yielded before
    the error is raised.

    Raises:
        StoreError: as :func:`read`.
    """
    with damage_named(path):
        yield from (from_plain(Record, row) for row in rows_of(path, samples=samples))


def rows_of(path: Path, *, samples: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the rows of a results file or compacted file, as :func:`records_of` does.

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
            yield from rows
        if metadata.get(DIGEST_KEY) != digest.hex():
            raise StoreError(f"{path}: damaged: its contents do not match their checksum")


def _columns_without_samples(schema: pa.Schema) -> list[str]:
    names: list[str] = []
    for column in schema:
        if held := SAMPLE_FIELDS.get(column.name):
            names += [f"{column.name}.{part.name}" for part in column.type if part.name != held]
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
    if found == str(SCHEMA_VERSION).encode():
        return metadata
    if found is not None:
        version = found.decode(errors="replace")
        raise StoreError(
            f"{path}: has schema version {version}, this layernorm-bench reads {SCHEMA_VERSION} "
            "alone; measure it again, or read it with the version that made it"
        )
    names = file.schema_arrow.names
    if known := _EXPERIMENTS.get(" ".join(names[:3])):
        page, about = known
        raise StoreError(
            f"{path}: the measurements of an experiment ({about}), not the records of a "
            f"run; docs/{page}.md explains them, `pandas.read_parquet` reads them"
        )
    more = f" and {len(names) - _NAMED_COLUMNS} more" if len(names) > _NAMED_COLUMNS else ""
    raise StoreError(
        f"{path}: a table with the columns {', '.join(names[:_NAMED_COLUMNS])}{more}, not the "
        "records of a run; read it with `pandas.read_parquet`"
    )


class _Digest:
    """Checksum of everything except the raw samples, which page checksums cover.

    Page checksums do not cover the footer, where one flipped bit can empty a column.
    """

    def __init__(self, metadata: dict[bytes, bytes]) -> None:
        self._sum = sha256()
        for key in (VERSION_KEY, RUNS_KEY, ENVIRONMENTS_KEY, MEMBERS_KEY):
            self._sum.update(metadata.get(key, b""))

    def add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._sum.update(json.dumps(_bare(row, None)).encode())

    def hex(self) -> bytes:
        return self._sum.hexdigest().encode()


def _bare(row: dict[str, Any], samples: object) -> dict[str, Any]:
    """Return a row with ``samples`` in place of its raw samples."""
    held = {struct: name for struct, name in SAMPLE_FIELDS.items() if row.get(struct)}
    return row | {struct: {**row[struct], name: samples} for struct, name in held.items()}


class ResultsWriter:
    """Adds records to a results file, in memory that does not grow with their number."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._schema = schema
        self._digest = _Digest(schema.metadata)
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)

    def add(self, record: Record, member: int | None = None) -> None:
        """Add a record; in a compacted file, of the member of this index.

        Raises:
            OSError: the disk is full, or the file cannot be written any more.
        """
        self._rows.append(to_plain(record) | ({} if member is None else {RUN_FIELD.name: member}))
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
    path: Path,
    runs: Sequence[Run] = (),
    environments: dict[str, Environment] | None = None,
    members: Sequence[StoredRun] = (),
) -> Iterator[ResultsWriter]:
    """Write a results file in one step: no reader ever sees a partial file.

    Its folder is made. If the block raises, nothing is written. The target of a symbolic link is
    replaced, not the link. Only regular files are replaced.

    Args:
        path: the file.
        runs: the invocations that made the records.
        environments: by fingerprint.
        members: of a compacted file, instead: the runs that it will hold.

    Raises:
        StoreError: the file cannot be written, or another process writes it.
    """
    schema = record_schema().append(RUN_FIELD) if members else record_schema()
    metadata = {
        VERSION_KEY: str(SCHEMA_VERSION),
        RUNS_KEY: json.dumps(to_plain(tuple(runs))),
        ENVIRONMENTS_KEY: json.dumps(to_plain(environments or {})),
        **({MEMBERS_KEY: json.dumps([*map(described, members)])} if members else {}),
    }
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + ".partial")
    if target.exists() and not target.is_file():  # as root it could replace a device
        raise StoreError(f"{path}: cannot be written: it exists and is not a regular file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # "wb" would empty the file of another process
        with partial.open("ab") as file, ExitStack() as undone:
            lock(file, partial)
            undone.callback(partial.unlink)
            file.truncate(0)  # what a killed process has left
            writer = ResultsWriter(file, schema.with_metadata(metadata))
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
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error


def write(results: Results, path: Path) -> None:
    """Write ``results`` to ``path`` in one step, as :func:`writing` does.

    Raises:
        StoreError: the file cannot be written.
    """
    with writing(path, results.runs, results.environments) as writer:
        for record in results.records:
            writer.add(record)
