"""Cases: their axes, sweeps of them from files, presets and the command line, and their inputs.

The axes are imported at once. Sweeps (which need pydantic) are imported when they are used, and
inputs (which need torch) are in :mod:`harness.cases.inputs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.cases.axes import (
    AXES,
    DTYPES,
    EVERY,
    EXCLUSIONS,
    PEERS,
    SAME,
    Axis,
    Condition,
    Exclusion,
    Relation,
)

if TYPE_CHECKING:
    from harness.cases.sweep import (
        Grid,
        Planned,
        Sweep,
        expand,
        in_shard,
        load_preset,
        load_sweep,
        parse_shape,
        parse_shapes,
        preset_names,
    )

__all__ = [
    "AXES",
    "DTYPES",
    "EVERY",
    "EXCLUSIONS",
    "PEERS",
    "SAME",
    "Axis",
    "Condition",
    "Exclusion",
    "Grid",
    "Planned",
    "Relation",
    "Sweep",
    "expand",
    "in_shard",
    "load_preset",
    "load_sweep",
    "parse_shape",
    "parse_shapes",
    "preset_names",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.cases import sweep

    return getattr(sweep, name)
