"""What a pytest-benchmark file of ours carries beside pytest-benchmark's own figures.

Each benchmark has an entry of its own under ``extra_info``, the file one under ``machine_info``,
both named KEY: the record as the journal stores it, without its times, and the machine. With them
a file made by our plugin can become records; without them it is somebody else's.
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
"""Our entry in ``extra_info`` and in ``machine_info``."""
MODEL_BYTES = "model_bytes"
"""In ``extra_info``: bytes that any implementation must read and write, as in ``Latency``."""
EXPORTED_BY = "timer"
"""In ``extra_info`` of a file that was exported from a results file: who timed it. Our plugin
leaves it out, since there pytest-benchmark did."""
_TIMES = ("latency", "cold")


def extra_info_of(record: Record, *, model_bytes: int) -> dict[str, Any]:
    """Return what ``extra_info`` is to be updated with: ``{KEY: ...}``, as JSON can hold it.

    Args:
        record: of the case, verified before it is timed; its times, if it has any, are left out.
        model_bytes: bytes that any implementation must read and write for the case.
    """
    plain = to_plain(replace(record, latency=None, cold=None))
    carried = {name: value for name, value in plain.items() if name not in _TIMES}
    return {KEY: {**carried, MODEL_BYTES: model_bytes}}


def machine_info_of(environment: Environment) -> dict[str, Any]:
    """Return what ``machine_info`` is to be updated with: ``{KEY: ...}``."""
    return {KEY: to_plain(environment)}


def record_from(carried: Mapping[str, Any]) -> Record:
    """Return the record that ``extra_info[KEY]`` holds; it has no times.

    Raises:
        KeyError, ValueError, TypeError, AttributeError: it holds something else.
    """
    record: Record = from_plain(Record, carried)
    return replace(record, latency=None, cold=None)
