"""Latency, memory and environment of any function; nothing here is specific to LayerNorm.

A module is imported when one of its names is used: most of them import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.lazy import names_in

if TYPE_CHECKING:
    from harness.measure.devices import (
        DEVICES,
        POWER_CAP,
        CpuDevice,
        CudaDevice,
        Device,
        Reading,
        device_of,
    )
    from harness.measure.environment import (
        compiler,
        environment_outside_hooks,
        read_environment,
        web_address,
    )
    from harness.measure.latency import (
        SAMPLE_S,
        Sampled,
        Sampler,
        Sampling,
        TimedCall,
    )
    from harness.measure.measurement_warnings import (
        nothing_measured,
        uneven_advice,
        warnings_of,
    )
    from harness.measure.memory import (
        Allocations,
        copies_beyond,
        count_allocations,
        fault_in,
        overwrite,
        relocate,
        uncountable,
        undercounted,
        use_steady_allocation,
    )
    from harness.measure.sample_statistics import (
        LEAST_SPREAD,
        LONG_CALL_S,
        centre,
        epoch_value,
        epoch_values,
        estimate,
        has_converged,
        joined,
        median_estimate,
        median_quantile,
        median_ratio,
        ratios,
        t_quantile,
        unevenness,
    )

__all__ = [
    "DEVICES",
    "LEAST_SPREAD",
    "LONG_CALL_S",
    "POWER_CAP",
    "SAMPLE_S",
    "Allocations",
    "CpuDevice",
    "CudaDevice",
    "Device",
    "Reading",
    "Sampled",
    "Sampler",
    "Sampling",
    "TimedCall",
    "centre",
    "compiler",
    "copies_beyond",
    "count_allocations",
    "device_of",
    "environment_outside_hooks",
    "epoch_value",
    "epoch_values",
    "estimate",
    "fault_in",
    "has_converged",
    "joined",
    "median_estimate",
    "median_quantile",
    "median_ratio",
    "nothing_measured",
    "overwrite",
    "ratios",
    "read_environment",
    "relocate",
    "t_quantile",
    "uncountable",
    "undercounted",
    "uneven_advice",
    "unevenness",
    "use_steady_allocation",
    "warnings_of",
    "web_address",
]

__getattr__ = names_in(__name__, __file__)
