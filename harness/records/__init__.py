"""The data types: what to run (Case), its result (Record), where it ran (Environment).

Beside them: the metrics of a record, the findings of a verification, what is refused, and
quantities in words.

Every type is frozen and holds plain values only, so that it can be hashed, compared, sent to
another process, and stored. A field holding a quantity ends in its unit: ``_s`` seconds,
``_bytes`` bytes, ``_ulp`` units in the last place of the case's dtype, ``_ratio`` a pure number.
None means "not measured"; 0, -1 and NaN never do. The text under a field is its
description in the stored schema.
"""

from harness.records.case import Affine, Autograd, Budget, Case, Direction, Measurement, Mode
from harness.records.finding import Finding, RemarkKind, Severity, limit, remark
from harness.records.metrics import METRICS, OUTPUT_METRICS, Metric
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
from harness.records.refusal import NotComparableError, NotMeasuredError, Refusal
from harness.records.text import (
    as_speed,
    bytes_text,
    count,
    install_extra,
    interval_text,
    percent_text,
    seconds_text,
    shape_text,
    speed_text,
    ulp_text,
)

__all__ = [
    "BAD_FIRST",
    "METRICS",
    "OUR_TIMER",
    "OUTPUT_METRICS",
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
    "Finding",
    "Gpu",
    "Latency",
    "Measurement",
    "MeasurementWarning",
    "Memory",
    "Metric",
    "Mode",
    "NotComparableError",
    "NotMeasuredError",
    "OutputErrors",
    "Record",
    "Refusal",
    "RemarkKind",
    "Run",
    "Severity",
    "Status",
    "WarningKind",
    "as_speed",
    "bytes_text",
    "count",
    "install_extra",
    "interval_text",
    "limit",
    "percent_text",
    "remark",
    "seconds_text",
    "shape_text",
    "speed_text",
    "ulp_text",
]
