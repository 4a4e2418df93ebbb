"""Errors, latencies and memory for tests. NOTHING IN HERE WAS MEASURED: all is made up by formulas.

Errors grow with the condition number and times with the size, as real ones do, so that figures and
rankings look realistic. No random numbers and no clock: equal arguments give equal results.
"""

from __future__ import annotations

from hashlib import sha256
from math import inf, prod

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
NATIVE_FACTORS = {
    "native": 1.0,
    "one_pass": 1.6,
    "one_pass_input_dtype": 0.8,
    "two_pass": 2.1,
    "two_pass_input_dtype": 1.9,
    "welford": 5.0,
    "recentred": 0.9,
}
"""Time relative to native, by implementation."""
CONDITIONS = {
    "normal": 1.0,
    "uniform": 2.0,
    **{f"offset_1e{exponent}": 10.0**exponent for exponent in range(1, 7)},
    "constant": inf,
}


def make_errors(case: Case) -> Errors:
    """Return errors that grow with the condition number as the algorithm's do."""
    algorithm = case.implementation.removesuffix("_input_dtype")
    algorithm = algorithm if algorithm in {"one_pass", "recentred", "welford"} else "two_pass"
    is_narrow = case.implementation.endswith("_input_dtype")
    bits = SIGNIFICAND_BITS[case.dtype]
    condition = CONDITIONS.get(case.distribution, 1.0)
    power = {"one_pass": 2, "recentred": 0}.get(algorithm, 1)
    reach = condition if condition < inf else 0.0
    grown = 2.0 ** -(bits if is_narrow else max(bits, 24)) * reach**power
    is_vacuous = grown * 4 >= 1
    is_lost = grown >= 1  # as the square root of a negative variance is
    error_ulp = inf if is_lost else 0.5 + grown * 2.0**bits * (0.3 + 0.4 * draw_of(case.id))
    # made up: native's parameter gradients are wrong, as by a narrow accumulator over the rows
    factors = {"dweight": 90.0} if case.implementation == "native" and bits < 24 else {}
    names = ("y",) if case.direction is Direction.FORWARD else ("y", "dx", "dweight", "dbias")
    return Errors(
        outputs=tuple(
            OutputErrors(
                output=name,
                elements=prod(case.shape) if name in {"y", "dx"} else case.hidden,
                unexpected_nonfinite=int(is_lost),
                scaled_max_ulp=error_ulp * factors.get(name, 1.0),
                scaled_p99_ulp=error_ulp / 2,
                scaled_mean_ulp=None if is_lost else error_ulp / 8,
                raw_max_ulp=error_ulp * 100,
                max_abs=error_ulp * 1e-7,
                normwise_ratio=error_ulp * 1e-8,
                bound_ratio=None if is_vacuous else 0.4 * factors.get(name, 1.0),
                vacuous_elements=int(is_vacuous),
            )
            for name in names
        ),
        condition_max_ratio=condition,
        algorithm=algorithm,
        reduction="tree",
        accumulate_dtype=case.dtype if is_narrow else "float32",
        oracle="float64_twice_centred",
    )


def make_latency(case: Case) -> Latency:
    """Return a time made of a fixed cost and one in proportion to the bytes."""
    factor = NATIVE_FACTORS.get(case.implementation, 1.5) * (0.97 + 0.06 * draw_of(case.id))
    moved = 3 * prod(case.shape) * ITEM_BYTES[case.dtype]
    native_s = 2.5e-6 + moved / 8e9
    is_reference = case.implementation == "native" and case.mode is Mode.EAGER
    return Latency(
        clock=Clock.CUDA_EVENT if case.device == "cuda" else Clock.THREAD_CPU,
        cache=Cache.WARM,
        allocation=Allocation.STEADY,
        per_call_s=_estimate(native_s * factor),
        reference_ratio=None if is_reference else _estimate(factor),
        ceiling_ratio=0.5 / factor,
        model_bytes=moved,
        converged=True,
        processes=1,
        minor_faults_ratio=0.0,
        compile_s=1.5 if case.mode is Mode.COMPILED else None,
    )


def make_memory(case: Case) -> Memory:
    """Return a peak of twice the result, but for native."""
    minimum = prod(case.shape) * ITEM_BYTES[case.dtype]
    peak = minimum if case.implementation == "native" else 2 * minimum
    return Memory(
        peak_extra_bytes=peak,
        allocated_bytes=2 * peak,
        allocations=5,
        saved_bytes=None if case.direction is Direction.FORWARD else minimum,
        minimum_bytes=minimum,
    )


def _estimate(value: float) -> Estimate:
    return Estimate(value=value, low=value * 0.98, high=value * 1.02)


def draw_of(text: str) -> float:
    """Return a number in [0, 1) that depends on nothing but ``text``."""
    return int.from_bytes(sha256(text.encode()).digest()[:4]) / 2**32
