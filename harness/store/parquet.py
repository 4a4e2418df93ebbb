"""One parquet file per run: one nested row per case, environments and runs in the metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Environment, Record, Run
from harness.records.text import count
from harness.store.digest import (
    DIGEST_KEY,
    ENVIRONMENTS_KEY,
    MEMBERS_KEY,
    RUNS_KEY,
    VERSION_KEY,
    Digest,
)
from harness.store.error import StoreError
from harness.store.experiments import experiment_of
from harness.store.plain import from_plain
from harness.store.schema import SAMPLE_FIELDS

__all__ = [
    "BATCH",
    "COMPACTED_VERSION",
    "RUN_FIELD",
    "SCHEMA_VERSION",
    "Header",
    "Results",
    "checked_metadata",
    "columns_without_samples",
    "damage_named",
    "header_in",
    "header_of",
    "read",
    "records_of",
    "rows_of",
    "why_unfinished",
]

# 1 - first version
# 2 - the ceiling is the fastest of several copies, not torch's alone; cold latencies are added
# 3 - a latency names its timer, because older readers would take an imported latency for one
#     measured by layernorm-bench; a CPU time may be that of all threads, as latency.clock says
# 4 - case.upstream is case.grad_output, cost.guest_s is cost.implementation_s
SCHEMA_VERSION = 4
# 5 - as 4, but it holds several runs; made by `compact` alone
COMPACTED_VERSION = 5
RUN_FIELD = pa.field(
    "run", pa.int32(), nullable=False, metadata={"description": "Index of its run, see `runs`."}
)

_NAMED_COLUMNS = 6  # enough to recognise a table in one line
BATCH = 1000  # records converted at once: few enough to bound the memory, enough to be fast


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
        return why_unfinished(self.runs, len(self.records))


def why_unfinished(runs: Sequence[Run], found: int) -> str | None:
    """Return how much of the last of some runs is there, if it was cut short; else None."""
    if not runs or (runs[-1].wall_s is not None and found >= runs[-1].planned):
        return None
    return f"{found:,} of its {count(runs[-1].planned, 'case')} are there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the footer of a results file says of its records."""

    version: int
    """Schema version."""
    runs: tuple[Run, ...]
    environments: dict[str, Environment]
    records: int
    """Number of records."""
    digest: str | None
    """Checksum of the file's contents; files of early versions have none."""


def read(path: Path, *, samples: bool = True) -> Results:
    """Read a results file; without ``samples``, latencies come without their raw timings.

    Raises:
        StoreError: no such file, not a results file, damaged, or made by a newer version.
    """
    header = header_of(path)
    return Results(
        records=tuple(records_of(path, samples=samples)),
        runs=header.runs,
        environments=header.environments,
    )


def header_of(path: Path) -> Header:
    """Read what a results file says of its records, without reading them.

    Raises:
        StoreError: as :func:`read`.
    """
    with damage_named(path), pq.ParquetFile(path) as file:
        return header_in(path, file)


def header_in(path: Path, file: pq.ParquetFile) -> Header:
    """Return what :func:`header_of` does, of an open file."""
    metadata = checked_metadata(path, file)
    if MEMBERS_KEY in metadata:
        raise StoreError(
            f"{path}: holds {count(len(json.loads(metadata[MEMBERS_KEY])), 'run')}, made by "
            "`compact`; give its folder to `history`, `report` or `check --against-history`"
        )
    digest = metadata.get(DIGEST_KEY)
    runs = json.loads(metadata.get(RUNS_KEY, b"[]"))
    environments = json.loads(metadata.get(ENVIRONMENTS_KEY, b"{}"))
    return Header(
        version=int(metadata[VERSION_KEY]),
        runs=tuple(from_plain(Run, run) for run in runs),
        environments={name: from_plain(Environment, plain) for name, plain in environments.items()},
        records=file.metadata.num_rows,
        digest=None if digest is None else digest.decode(),
    )


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
        metadata = checked_metadata(path, file)
        digest = Digest(metadata)
        columns = None if samples else columns_without_samples(file.schema_arrow)
        for batch in file.iter_batches(batch_size=BATCH, columns=columns):
            rows = batch.to_pylist()
            digest.add(rows)
            yield from rows
        if DIGEST_KEY in metadata and metadata[DIGEST_KEY] != digest.hex().encode():
            raise StoreError(f"{path}: damaged: its contents do not match their checksum")


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


def checked_metadata(path: Path, file: pq.ParquetFile) -> dict[bytes, bytes]:
    """Return the metadata of a results file of a version that can be read."""
    metadata: dict[bytes, bytes] = file.metadata.metadata or {}
    found = metadata.get(VERSION_KEY)
    if found is None:  # such as the tables of experiments under results/published
        names = file.schema_arrow.names
        if known := experiment_of(names):
            raise StoreError(
                f"{path}: the measurements of an experiment ({known.about}), not the records of a "
                f"run; docs/{known.page}.md explains them, `pandas.read_parquet` reads them"
            )
        more = f" and {len(names) - _NAMED_COLUMNS} more" if len(names) > _NAMED_COLUMNS else ""
        raise StoreError(
            f"{path}: a table with the columns {', '.join(names[:_NAMED_COLUMNS])}{more}, not the "
            "records of a run; read it with `pandas.read_parquet`"
        )
    newest = COMPACTED_VERSION if MEMBERS_KEY in metadata else SCHEMA_VERSION
    if int(found) > newest:
        raise StoreError(
            f"{path}: has schema version {found.decode()}, this layernorm-bench reads up to "
            f"{newest}; update layernorm-bench"
        )
    return metadata


def columns_without_samples(schema: pa.Schema) -> list[str]:
    """Return the names of all columns except the raw samples."""
    samples = dict(SAMPLE_FIELDS)
    names: list[str] = []
    for column in schema:
        if held := samples.get(column.name):
            names += [f"{column.name}.{part.name}" for part in column.type if part.name != held]
        else:
            names.append(column.name)
    return names
