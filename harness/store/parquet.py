"""One parquet file per run: one nested row per case, environments and runs in the metadata."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Environment, Record, Run
from harness.records.refusal import Refusal
from harness.records.text import count
from harness.store.plain import from_plain, to_plain
from harness.store.schema import SAMPLE_FIELDS, record_schema

__all__ = ["SCHEMA_VERSION", "Results", "StoreError", "read", "schema_version_of", "write"]

# 1 - first version
# 2 - the ceiling is the fastest of several copies, not torch's alone; cold latencies are added
# 3 - a latency names its timer, because older readers would take an imported latency for one
#     measured by layernorm-bench; a CPU time may be that of all threads, as latency.clock says
# 4 - case.upstream is case.grad_output, cost.guest_s is cost.implementation_s
SCHEMA_VERSION = 4

_NAMED_COLUMNS = 6  # enough to recognise a table in one line
_VERSION_KEY = b"layernorm_bench_schema"
_RUNS_KEY = b"layernorm_bench_runs"
_ENVIRONMENTS_KEY = b"layernorm_bench_environments"
_DIGEST_KEY = b"layernorm_bench_sha256"


class StoreError(Refusal):
    """A results file that cannot be read or written; the message names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a results file holds."""

    records: tuple[Record, ...]
    runs: tuple[Run, ...]
    """The invocations that made them, in order; more than one after ``--resume``."""
    environments: dict[str, Environment]
    """By fingerprint, as named in the records."""

    @property
    def why_unfinished(self) -> str | None:
        """How much of the last run is there, if it was cut short; else None."""
        if not self.runs:
            return None
        run, found = self.runs[-1], len(self.records)
        if run.wall_s is not None and found >= run.planned:
            return None
        return f"{found:,} of its {count(run.planned, 'case')} are there"


def write(results: Results, path: Path) -> None:
    """Write ``results`` to ``path`` in one step: no reader ever sees a partial file.

    The target of a symbolic link is replaced, not the link. Only regular files are replaced.

    Raises:
        StoreError: the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # as root it could replace a device
        raise StoreError(f"{path}: cannot be written: it exists and is not a regular file")
    metadata = {
        _VERSION_KEY: str(SCHEMA_VERSION).encode(),
        _RUNS_KEY: json.dumps(to_plain(results.runs)).encode(),
        _ENVIRONMENTS_KEY: json.dumps({
            name: to_plain(environment) for name, environment in results.environments.items()
        }).encode(),
    }
    rows = [to_plain(record) for record in results.records]
    # digest of the rows as they will be read: an integer in a float column is read as a float
    bare = pa.Table.from_pylist([_bare(row, ()) for row in rows], schema=record_schema())
    metadata[_DIGEST_KEY] = _digest(metadata, bare.to_pylist()).encode()
    table = pa.Table.from_pylist(rows, schema=record_schema().with_metadata(metadata))
    partial = target.with_name(target.name + ".partial")
    try:
        pq.write_table(table, partial, compression="zstd", write_page_checksum=True)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error


def read(path: Path, *, samples: bool = True) -> Results:
    """Read a results file; without ``samples``, latencies come without their raw timings.

    Raises:
        StoreError: no such file, not a results file, damaged, or made by a newer version.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_version(path, file.schema_arrow)
            columns = None if samples else _without_samples(file.schema_arrow)
            rows = file.read(columns=columns).to_pylist()
        if _DIGEST_KEY in metadata and metadata[_DIGEST_KEY] != _digest(metadata, rows).encode():
            raise StoreError(f"{path}: damaged: its contents do not match their checksum")
        runs = json.loads(metadata.get(_RUNS_KEY, b"[]"))
        environments = json.loads(metadata.get(_ENVIRONMENTS_KEY, b"{}"))
        return Results(
            records=tuple(from_plain(Record, row) for row in rows),
            runs=tuple(from_plain(Run, run) for run in runs),
            environments={
                name: from_plain(Environment, plain) for name, plain in environments.items()
            },
        )
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; make one with `layernorm-bench run`") from error
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise StoreError(f"{path}: not a readable results file, or damaged: {why}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: not records of this schema: {error!r}") from error


def schema_version_of(path: Path) -> int:
    """Return the schema version of a results file.

    Raises:
        StoreError: not a results file, damaged, or made by a newer version.
    """
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise StoreError(f"{path}: not a readable results file, or damaged: {why}") from error
    _check_version(path, schema)
    return int(schema.metadata[_VERSION_KEY])


def _check_version(path: Path, schema: pa.Schema) -> None:
    found = (schema.metadata or {}).get(_VERSION_KEY)
    if found is None:  # such as the tables of experiments under results/published
        names = schema.names
        more = f" and {len(names) - _NAMED_COLUMNS} more" if len(names) > _NAMED_COLUMNS else ""
        raise StoreError(
            f"{path}: a table with the columns {', '.join(names[:_NAMED_COLUMNS])}{more}, not the "
            "records of a run; read it with `pandas.read_parquet`"
        )
    if int(found) > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: has schema version {found.decode()}, this layernorm-bench reads up to "
            f"{SCHEMA_VERSION}; update layernorm-bench"
        )


def _digest(metadata: dict[bytes, bytes], rows: list[Any]) -> str:
    """Checksum of everything except the raw samples, which page checksums cover.

    Page checksums do not cover the footer, where one flipped bit can empty a column.
    """
    digest = sha256()
    for key in (_VERSION_KEY, _RUNS_KEY, _ENVIRONMENTS_KEY):
        digest.update(metadata.get(key, b""))
    for row in rows:
        digest.update(json.dumps(_bare(row, None)).encode())
    return digest.hexdigest()


def _bare(row: dict[str, Any], samples: object) -> dict[str, Any]:
    """Return a row with ``samples`` in place of its raw samples."""
    held = {struct: name for struct, name in SAMPLE_FIELDS if row.get(struct)}
    return row | {struct: {**row[struct], name: samples} for struct, name in held.items()}


def _without_samples(schema: pa.Schema) -> list[str]:
    """Return the names of all columns except the raw samples."""
    samples = dict(SAMPLE_FIELDS)
    names: list[str] = []
    for column in schema:
        if held := samples.get(column.name):
            names += [f"{column.name}.{part.name}" for part in column.type if part.name != held]
        else:
            names.append(column.name)
    return names


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable; only POSIX can sync folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
