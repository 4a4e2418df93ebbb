"""What this project adds to a pytest-benchmark file, so that the file can become records again.

Under KEY, ``extra_info`` of each benchmark holds the record as the journal stores it, without its
times, and ``machine_info`` of the file holds the environment. A file without them cannot be
imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.records import Environment, Record
from harness.store.plain import from_plain, to_plain

__all__ = [
    "EXPORTED_BY",
    "KEY",
    "MODEL_BYTES",
    "extra_info_of",
    "machine_info_of",
    "record_from",
]

KEY = "layernorm_bench"
"""Name of the project's entry in ``extra_info`` and in ``machine_info``."""
MODEL_BYTES = "model_bytes"
"""In ``extra_info``: bytes that any implementation must read and write, as in ``Latency``."""
EXPORTED_BY = "timer"
"""In ``extra_info``: the timer, in a file exported from a results file. The pytest plugin leaves it
out, since pytest-benchmark is the timer there."""
_TIMES = ("latency", "cold")


def extra_info_of(record: Record, *, model_bytes: int) -> dict[str, Any]:
    """Return the entry to add to ``extra_info``: ``{KEY: ...}``, as JSON can hold it.

    Args:
        record: of the verified case; its times are left out.
        model_bytes: bytes that any implementation must read and write for the case.
    """
    plain = to_plain(replace(record, latency=None, cold=None))
    carried = {name: value for name, value in plain.items() if name not in _TIMES}
    return {KEY: {**carried, MODEL_BYTES: model_bytes}}


def machine_info_of(environment: Environment) -> dict[str, Any]:
    """Return the entry to add to ``machine_info``: ``{KEY: ...}``."""
    return {KEY: to_plain(environment)}


def record_from(carried: Mapping[str, Any]) -> Record:
    """Return the record in ``extra_info[KEY]``, without times.

    Raises:
        KeyError, ValueError, TypeError, AttributeError: it is damaged or of another version.
    """
    record: Record = from_plain(Record, carried)
    return replace(record, latency=None, cold=None)
