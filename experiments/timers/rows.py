"""The raw results, one row per ratio: JSON lines while measuring, parquet at the end.

No row is dropped or changed. report_timers.py computes the statistics.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Row", "append", "read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One ratio, and the conditions under which it was measured."""

    experiment: str
    """"timers" compares all timers; "processes" repeats the harness's sampler in many processes."""
    condition: str
    """"quiet", or "loaded": other processes keep every core busy."""
    timer: str
    """Name of the timer; after a dash the statistic, if a tool offers several."""
    tool: str
    """The tool that provides the timer."""
    allocation: str
    """How the process got memory for results: "default" or "steady"."""
    case: str
    """Name of the pair of functions that is timed."""
    subject: str
    """Implementation and shape in the numerator."""
    reference: str
    """Implementation and shape in the denominator."""
    process: int
    """Index of the process in this experiment and condition, in the order they ran."""
    ratio: float
    """Time of the subject over that of the reference."""
    truth: float | None
    """The true ratio; None unless it is known by construction."""
    seconds: float
    """Seconds to time both functions: with calibration, without process start and imports."""
    process_s: float
    """Seconds of the whole process for all its pairs, with start and imports."""
    load_average: float | None
    """Load average over the last minute, when the process started."""
    idle_ratio: float | None
    """Share of the cores' time that was idle while the process ran; None where unknown."""
    started: str
    """UTC time at which the process started."""
    commit: str
    """git commit of this project, with "+" if there were uncommitted changes."""
    cpu: str
    """Processor model, and the instruction set that torch uses on it."""
    cores: int
    """Cores that the process may use."""
    torch: str
    """Version of torch."""
    platform: str
    """System, C library and Python."""


def append(rows: list[Row], path: Path) -> None:
    """Append ``rows`` to a file of JSON lines, and flush them to disk."""
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(asdict(row)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write(rows: list[Row], path: Path) -> None:
    """Write ``rows`` as parquet; an interrupted write leaves no partial file."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), unfinished)
    unfinished.replace(path)


def read(path: Path) -> list[Row]:
    """Read the rows of a JSON lines or parquet file."""
    if path.suffix == ".jsonl":
        plain = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        plain = pq.read_table(path).to_pylist()
    return [Row(**row) for row in plain]
