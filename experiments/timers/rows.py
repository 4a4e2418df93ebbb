"""The raw results, one row per ratio: lines of JSON while measuring, parquet at the end.

Rows are never dropped or changed. report_timers.py computes what they mean.
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
    """"quiet", or "loaded" with busy neighbours."""
    timer: str
    """Name of the timer; after a dash the statistic, where a tool offers several."""
    tool: str
    """The tool that the timer is of."""
    allocation: str
    """How the process got memory for results: "default" or "steady"."""
    case: str
    """Name of the pair."""
    subject: str
    """Implementation and shape in the numerator."""
    reference: str
    """Implementation and shape in the denominator."""
    process: int
    """Counts the fresh processes of this experiment and condition, in the order they ran."""
    ratio: float
    """Time of the subject over that of the reference."""
    truth: float | None
    """The ratio, where it is known by construction."""
    seconds: float
    """Seconds to time both, with calibration, without process start and imports."""
    process_s: float
    """Seconds of the whole process, with start and imports, for all its pairs."""
    load_average: float | None
    """Load average over the last minute, when the process started."""
    idle_ratio: float | None
    """Share of the cores' time that was idle while the process ran; None where unknown."""
    started: str
    """UTC time at which the process started."""
    commit: str
    """git commit of this project; "+" where there were changes."""
    cpu: str
    """Processor model, and the widest instructions that torch uses on it."""
    cores: int
    """Cores that the process may use."""
    torch: str
    """Version of torch."""
    platform: str
    """System, C library and Python."""


def append(rows: list[Row], path: Path) -> None:
    """Add ``rows`` to a file of lines; they are on disk when this returns."""
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(asdict(row)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write(rows: list[Row], path: Path) -> None:
    """Write ``rows`` as parquet; the file is whole or not there."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), unfinished)
    unfinished.replace(path)


def read(path: Path) -> list[Row]:
    """Read either kind of file."""
    if path.suffix == ".jsonl":
        plain = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        plain = pq.read_table(path).to_pylist()
    # published rows name the harness's sampler "ours"
    for row in plain:
        row["tool"] = row["tool"].replace("ours", "harness")
        row["timer"] = row["timer"].replace("ours-", "harness-")
    return [Row(**row) for row in plain]
