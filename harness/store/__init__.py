"""Results on disk: a journal while a run lasts, one parquet file when it is over."""

from harness.store.compact import Compacted, compact
from harness.store.error import StoreError
from harness.store.folder import StoredRun, read_runs, stored_runs
from harness.store.journal import (
    Journal,
    entries_of,
    located_entries,
    read_journal,
    records_at,
)
from harness.store.merge import Merged, merge
from harness.store.parquet import (
    SCHEMA_VERSION,
    Header,
    Results,
    header_of,
    read,
    records_of,
    why_unfinished,
)
from harness.store.scan import scan_folder, scan_runs
from harness.store.schema import prepare
from harness.store.writer import ResultsWriter, write

__all__ = [
    "SCHEMA_VERSION",
    "Compacted",
    "Header",
    "Journal",
    "Merged",
    "Results",
    "ResultsWriter",
    "StoreError",
    "StoredRun",
    "compact",
    "entries_of",
    "header_of",
    "located_entries",
    "merge",
    "prepare",
    "read",
    "read_journal",
    "read_runs",
    "records_at",
    "records_of",
    "scan_folder",
    "scan_runs",
    "stored_runs",
    "why_unfinished",
    "write",
]
