"""Sweeps from files, presets and the command line, and the cases that they expand to."""

from harness.sweep.expand import AXIS_OF_FIELD, Planned, expand, in_shard, mistake_lines
from harness.sweep.grid import (
    DTYPES,
    EVERY,
    PEERS,
    Grid,
    Sweep,
    SweepError,
    load_preset,
    load_sweep,
    preset_names,
)
from harness.sweep.shapes import parse_shape, parse_shapes

__all__ = [
    "AXIS_OF_FIELD",
    "DTYPES",
    "EVERY",
    "PEERS",
    "Grid",
    "Planned",
    "Sweep",
    "SweepError",
    "expand",
    "in_shard",
    "load_preset",
    "load_sweep",
    "mistake_lines",
    "parse_shape",
    "parse_shapes",
    "preset_names",
]
