"""Results on disk: a journal while a run lasts, one parquet file when it is over."""

from harness.store.folder import read_runs, scan_folder, scan_runs, stored_runs
from harness.store.journal import Journal, located_entries, read_journal, records_at
from harness.store.merge import Compacted, Merged, compact, merge
from harness.store.parquet import StoredRun, header_of, read, records_of, write, writing
from harness.store.schema import (
    SCHEMA_VERSION,
    Results,
    StoreError,
    from_plain,
    prepare,
    record_schema,
    to_plain,
    why_unfinished,
)

__all__ = [
    "SCHEMA_VERSION",
    "Compacted",
    "Journal",
    "Merged",
    "Results",
    "StoreError",
    "StoredRun",
    "compact",
    "from_plain",
    "header_of",
    "located_entries",
    "merge",
    "prepare",
    "read",
    "read_journal",
    "read_runs",
    "record_schema",
    "records_at",
    "records_of",
    "scan_folder",
    "scan_runs",
    "stored_runs",
    "to_plain",
    "why_unfinished",
    "write",
    "writing",
]
