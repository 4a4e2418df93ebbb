"""Results on disk: a journal while a run lasts, one parquet file when it is over."""

from harness.records.refusal import StoreError
from harness.store.journal import Journal, located_entries, read_journal, records_at
from harness.store.merge import Merged, merge
from harness.store.parquet import StoredRun, header_of, read, records_of, scan, write, writing
from harness.store.schema import (
    SCHEMA_VERSION,
    Results,
    from_plain,
    prepare,
    record_schema,
    to_plain,
    why_unfinished,
)

__all__ = [
    "SCHEMA_VERSION",
    "Journal",
    "Merged",
    "Results",
    "StoreError",
    "StoredRun",
    "from_plain",
    "header_of",
    "located_entries",
    "merge",
    "prepare",
    "read",
    "read_journal",
    "record_schema",
    "records_at",
    "records_of",
    "scan",
    "to_plain",
    "why_unfinished",
    "write",
    "writing",
]
