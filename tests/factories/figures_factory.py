"""Errors, latencies and memory for tests. NOTHING IN HERE WAS MEASURED: all is made up by formulas.

Errors grow with the condition number and times with the size, as real ones do, so that figures and
rankings look realistic. No random numbers and no clock: equal arguments give equal results.
"""

from __future__ import annotations

from hashlib import sha256
from math import inf, prod, sqrt

from harness.records import (
    Allocation,
    Cache,
    Case,
    Clock,
    Direction,
    Errors,
    Estimate,
    Latency,
    Memory,
    Mode,
    OutputErrors,
)

SIGNIFICAND_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

# name -> algorithm, time relative to native, whether statistics are formed in x's own dtype
IMPLEMENTATIONS = {
    "native": ("two_pass", 1.0, False),
    "one_pass": ("one_pass", 1.6, False),
    "one_pass_input_dtype": ("one_pass", 0.8, True),
    "two_pass": ("two_pass", 2.1, False),
    "two_pass_input_dtype": ("two_pass", 1.9, True),
    "welford": ("welford", 5.0, False),
    "recentred": ("recentred", 0.9, False),
}

CONDITIONS = {
    "normal": 1.0,
    "uniform": 2.0,
    **{f"offset_1e{exponent}": 10.0**exponent for exponent in range(1, 7)},
    "outlier": 1.05,
    "ramp_offset": 3464.0,
    "constant": inf,
}


def make_errors(case: Case) -> Errors:
    """Return errors that grow with the condition number as the algorithm's do."""
    algorithm, _, narrow = IMPLEMENTATIONS.get(case.implementation, ("two_pass", 1.0, False))
    bits = SIGNIFICAND_BITS[case.dtype]
    unit = 2.0 ** -(bits if narrow else max(bits, 24))
    condition = CONDITIONS.get(case.distribution, 1.0)
    reach = 0.0 if condition == inf else condition
    grown = {
        "one_pass": unit * reach**2,
        "two_pass": unit * reach + (unit * reach) ** 2,
        "welford": 2 * unit * reach,
    }.get(algorithm, unit)
    error = 0.5 + grown * 2.0**bits * (0.3 + 0.4 * draw_of(case.id))
    vacuous = grown * 4 >= 1
    if algorithm == "one_pass" and grown >= 1:
        error = inf  # the square root of a negative variance
    names = ("y",) if case.direction is Direction.FORWARD else ("y", "dx", "dweight", "dbias")
    # made up: native's parameter gradients are wrong, as by a narrow accumulator over the rows
    bad = {"dweight"} if case.implementation == "native" and bits < 24 else set()
    return Errors(
        outputs=tuple(
            _output(name, case, error, vacuous=vacuous, is_wrong=name in bad) for name in names
        ),
        condition_max_ratio=condition,
        algorithm=algorithm,
        reduction="tree",
        accumulate_dtype=case.dtype if narrow else "float32",
        oracle="float64_twice_centred",
    )


def _output(
    name: str, case: Case, error_ulp: float, *, vacuous: bool, is_wrong: bool
) -> OutputErrors:
    error_ulp = error_ulp * 90 if is_wrong else error_ulp
    elements = prod(case.shape) if name in {"y", "dx"} else case.hidden
    return OutputErrors(
        output=name,
        elements=elements,
        unexpected_nonfinite=3 if error_ulp == inf else 0,
        scaled_max_ulp=error_ulp,
        scaled_p99_ulp=error_ulp / 2,
        scaled_mean_ulp=None if error_ulp == inf else error_ulp / 8,
        raw_max_ulp=error_ulp * 100,
        max_abs=error_ulp * 1e-7,
        normwise_ratio=error_ulp * 1e-8,
        bound_ratio=None if vacuous else 36.0 if is_wrong else 0.4,
        vacuous_elements=elements if vacuous else 0,
    )


def make_latency(case: Case) -> Latency:
    """Return a time made of a fixed cost and one in proportion to the bytes."""
    _, factor, _ = IMPLEMENTATIONS.get(case.implementation, ("two_pass", 1.5, False))
    if case.mode is Mode.COMPILED and case.implementation != "native":
        factor = 0.55 + factor / 4
    factor *= 0.97 + 0.06 * draw_of(case.id)
    passes = {Direction.FORWARD: 2, Direction.BACKWARD: 3}.get(case.direction, 5)
    moved = passes * prod(case.shape) * ITEM_BYTES[case.dtype]
    rate, fixed_s = (2e12, 4e-6) if case.device == "cuda" else (9e9, 2.5e-6)
    copy_s = fixed_s / 4 + moved / rate
    native_s = fixed_s + moved / rate * 1.1
    time_s = native_s * factor
    is_reference = case.implementation == "native" and case.mode is Mode.EAGER
    return Latency(
        clock=Clock.CUDA_EVENT if case.device == "cuda" else Clock.THREAD_CPU,
        cache=Cache.WARM,
        allocation=Allocation.STEADY,
        per_call_s=_estimate(time_s),
        reference_ratio=None if is_reference else _estimate(factor),
        ceiling_ratio=copy_s / time_s,
        model_bytes=moved,
        converged=draw_of(case.id) < 0.95,
        processes=1,
        process_of_epoch=(0,) * 12,
        minor_faults_ratio=0.0,
        compile_s=1.5 if case.mode is Mode.COMPILED else None,
    )


def make_memory(case: Case) -> Memory:
    """Return a peak that counts one more copy of x for each thing an eager formula keeps."""
    minimum = prod(case.shape) * ITEM_BYTES[case.dtype]
    lean = case.implementation == "native" or case.mode is Mode.COMPILED
    peak = minimum if lean else round(minimum * (2 if "two" in case.implementation else 2.5))
    no_graph = case.direction is Direction.FORWARD
    return Memory(
        peak_extra_bytes=peak,
        allocated_bytes=peak * 2,
        allocations=5,
        saved_bytes=None if no_graph else (8 * case.rows if lean else minimum),
        minimum_bytes=minimum,
    )


def _estimate(value: float) -> Estimate:
    spread = 0.01 + 0.02 / sqrt(1 + value * 1e6)
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def draw_of(text: str) -> float:
    """Return a number in [0, 1) that depends on nothing but ``text``."""
    return int.from_bytes(sha256(text.encode()).digest()[:4]) / 2**32
