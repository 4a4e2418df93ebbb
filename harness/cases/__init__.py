"""Cases: their axes, sweeps of them from files, presets and the command line, and their inputs.

The axes are imported at once; sweeps (which need pydantic) and inputs (which need torch) when they
are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cases.axes import (
    AXES,
    BACKWARD_CALLS,
    DTYPES,
    EVERY,
    EXCLUSIONS,
    PEERS,
    Axis,
    Condition,
    Exclusion,
    Relation,
    array_axes,
    changed,
    python_line,
    sweep_axes,
)
from harness.records.lazy import names_in

if TYPE_CHECKING:
    from harness.cases.inputs import (
        DISTRIBUTIONS,
        GRAD_OUTPUTS,
        LAYOUTS,
        NAMED,
        PARAMETERS,
        REPORTED,
        Inputs,
        UnrepresentableError,
        describe,
        make_inputs,
    )
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
    "BACKWARD_CALLS",
    "DISTRIBUTIONS",
    "DTYPES",
    "EVERY",
    "EXCLUSIONS",
    "GRAD_OUTPUTS",
    "LAYOUTS",
    "NAMED",
    "PARAMETERS",
    "PEERS",
    "REPORTED",
    "Axis",
    "Condition",
    "Exclusion",
    "Grid",
    "Inputs",
    "Planned",
    "Relation",
    "Sweep",
    "UnrepresentableError",
    "array_axes",
    "changed",
    "describe",
    "expand",
    "in_shard",
    "load_preset",
    "load_sweep",
    "make_inputs",
    "parse_shape",
    "parse_shapes",
    "preset_names",
    "python_line",
    "sweep_axes",
]

__getattr__ = names_in(__name__, __file__)
