"""Results on disk: a journal while a run lasts, one parquet file when it is over."""

from harness.store.journal import Journal, read_journal
from harness.store.parquet import (
    SCHEMA_VERSION,
    Results,
    StoreError,
    read,
    schema_version_of,
    write,
)
from harness.store.schema import prepare

__all__ = [
    "SCHEMA_VERSION",
    "Journal",
    "Results",
    "StoreError",
    "prepare",
    "read",
    "read_journal",
    "schema_version_of",
    "write",
]
