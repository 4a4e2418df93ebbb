"""The data types: what to run (Case), its result (Record), where it ran (Environment).

Every type is frozen and holds plain values only, so that it can be hashed, compared, sent to
another process, and stored. A field holding a quantity ends in its unit: ``_s`` seconds,
``_bytes`` bytes, ``_ulp`` units in the last place of the case's dtype, ``_ratio`` a pure number.
None means "not measured"; 0, -1 and NaN never do. The text under a field is its
description in the stored schema.
"""

from harness.records.case import Affine, Autograd, Budget, Case, Direction, Measurement, Mode
from harness.records.record import (
    BAD_FIRST,
    OUR_TIMER,
    Allocation,
    Arm,
    ArmRole,
    Cache,
    Clock,
    Cost,
    DeviceState,
    Environment,
    Errors,
    Estimate,
    Gpu,
    Latency,
    MeasurementWarning,
    Memory,
    OutputErrors,
    Record,
    Run,
    Status,
    WarningKind,
)

__all__ = [
    "BAD_FIRST",
    "OUR_TIMER",
    "Affine",
    "Allocation",
    "Arm",
    "ArmRole",
    "Autograd",
    "Budget",
    "Cache",
    "Case",
    "Clock",
    "Cost",
    "DeviceState",
    "Direction",
    "Environment",
    "Errors",
    "Estimate",
    "Gpu",
    "Latency",
    "Measurement",
    "MeasurementWarning",
    "Memory",
    "Mode",
    "OutputErrors",
    "Record",
    "Run",
    "Status",
    "WarningKind",
]
