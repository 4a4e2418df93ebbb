"""Exact results, error bounds, and the measured errors of an implementation.

A module is imported when one of its names is used: all but ``bound_terms`` import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.lazy import names_in

if TYPE_CHECKING:
    from harness.numerics.bound_terms import (
        COMPILED_LANES,
        SIGNIFICAND_BITS,
        chain_length,
        condition_limit,
        largest_error_ulp,
    )
    from harness.numerics.bounds import (
        ColumnSums,
        ErrorBound,
        error_bound_of,
        grain,
        spacing,
        unit_roundoff,
    )
    from harness.numerics.error_measurement import (
        BoundRatio,
        Compared,
        bound_ratios,
        compared,
        is_beyond,
        measure_errors,
        status_of,
        verdict_of,
    )
    from harness.numerics.inaccuracy import (
        OUTPUTS_OF,
        Inaccuracy,
        explained_reason,
        explanations,
        looser_bounds,
    )
    from harness.numerics.oracle import (
        ExactRows,
        Reference,
        wide_parameter,
        wide_rows,
    )
    from harness.numerics.outputs import (
        GRADIENTS,
        OUTPUTS,
        SETTLE_S,
        Outputs,
        bits_of,
        copies_of,
        fill_free_memory,
        incomplete_output,
        named_outputs,
    )

__all__ = [
    "COMPILED_LANES",
    "GRADIENTS",
    "OUTPUTS",
    "OUTPUTS_OF",
    "SETTLE_S",
    "SIGNIFICAND_BITS",
    "BoundRatio",
    "ColumnSums",
    "Compared",
    "ErrorBound",
    "ExactRows",
    "Inaccuracy",
    "Outputs",
    "Reference",
    "bits_of",
    "bound_ratios",
    "chain_length",
    "compared",
    "condition_limit",
    "copies_of",
    "error_bound_of",
    "explained_reason",
    "explanations",
    "fill_free_memory",
    "grain",
    "incomplete_output",
    "is_beyond",
    "largest_error_ulp",
    "looser_bounds",
    "measure_errors",
    "named_outputs",
    "spacing",
    "status_of",
    "unit_roundoff",
    "verdict_of",
    "wide_parameter",
    "wide_rows",
]

__getattr__ = names_in(__name__, __file__)
