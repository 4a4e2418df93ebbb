"""The metadata of a results file, and the checksum in it."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from harness.store.schema import SAMPLE_FIELDS

__all__ = [
    "DIGEST_KEY",
    "ENVIRONMENTS_KEY",
    "MEMBERS_KEY",
    "RUNS_KEY",
    "VERSION_KEY",
    "Digest",
    "bare_row",
]

VERSION_KEY = b"layernorm_bench_schema"
RUNS_KEY = b"layernorm_bench_runs"
ENVIRONMENTS_KEY = b"layernorm_bench_environments"
MEMBERS_KEY = b"layernorm_bench_members"
"""The runs that a compacted file holds; the column ``run`` says of which one a row is."""
DIGEST_KEY = b"layernorm_bench_sha256"


class Digest:
    """Checksum of everything except the raw samples, which page checksums cover.

    Page checksums do not cover the footer, where one flipped bit can empty a column.
    """

    def __init__(self, metadata: dict[bytes, bytes]) -> None:
        self._sum = sha256()
        for key in (VERSION_KEY, RUNS_KEY, ENVIRONMENTS_KEY, MEMBERS_KEY):
            self._sum.update(metadata.get(key, b""))

    def add(self, rows: list[Any]) -> None:
        for row in rows:
            self._sum.update(json.dumps(bare_row(row, None)).encode())

    def hex(self) -> str:
        return self._sum.hexdigest()


def bare_row(row: dict[str, Any], samples: object) -> dict[str, Any]:
    """Return a row with ``samples`` in place of its raw samples."""
    held = {struct: name for struct, name in SAMPLE_FIELDS if row.get(struct)}
    return row | {struct: {**row[struct], name: samples} for struct, name in held.items()}
