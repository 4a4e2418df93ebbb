"""Results for tests. NOTHING IN HERE WAS MEASURED: every number is made up by a formula.

Errors grow with the condition number and times with the size, as real ones do, so that figures and
rankings look realistic. No random numbers and no clock: equal arguments give equal results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice, product
from math import inf, prod, sqrt

from harness.records import (
    Allocation,
    Cache,
    Case,
    Clock,
    Cost,
    Direction,
    Environment,
    Errors,
    Estimate,
    Gpu,
    Latency,
    MeasurementWarning,
    Memory,
    Mode,
    OutputErrors,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.store import Results

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
SHAPES = ((1, 64), (32, 256), (512, 768), (2048, 1024), (4096, 4096), (8, 512, 768))


def make_environment(**changes: object) -> Environment:
    """Return an invented environment."""
    environment = Environment(
        cpu="Imaginary CPU 9000",
        cpu_count=2,
        cpu_capability="AVX2",
        memory_bytes=8 << 30,
        platform="Linux-6.1-x86_64-with-glibc2.36",
        python="3.11.7",
        packages=(("torch", "2.13.0"), ("numpy", "2.4.6")),
        compiler="g++ 12.2.0",
        gpus=(
            Gpu(
                name="Imaginary GPU",
                uuid="GPU-0",
                memory_bytes=80 << 30,
                power_limit_w=700.0,
                compute_capability="9.0",
            ),
        ),
        nvml="NVML 999.1",
        git_commit="0123456789abcdef0123456789abcdef01234567",
        git_dirty=True,
        load_average=0.25,
    )
    return replace(environment, **changes)  # type: ignore[arg-type]


def make_run(**changes: object) -> Run:
    """Return an invented run."""
    run = Run(
        name="synthetic",
        started_utc="2001-02-03T04:05:06+00:00",
        command="layernorm-bench run --preset full",
        planned=0,
        version="0.0.0",
        wall_s=1234.5,
        overhead_ratio=0.031,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def make_cases(
    devices: Sequence[str] = ("cpu", "cuda"), dtypes: Sequence[str] = tuple(ITEM_BYTES)
) -> Iterator[Case]:
    """Yield a sweep: the speed grid first, then the error grid, in a fixed order."""
    speed = product(devices, Direction, dtypes, SHAPES, Mode, IMPLEMENTATIONS)
    for device, direction, dtype, shape, mode, name in speed:
        yield Case(
            implementation=name, mode=mode, shape=shape, dtype=dtype, param_dtype=dtype,
            device=device, direction=direction,
        )  # fmt: skip
    errors = product(devices, Direction, dtypes, CONDITIONS, Mode, IMPLEMENTATIONS, range(3))
    for device, direction, dtype, distribution, mode, name, seed in errors:
        yield Case(
            implementation=name, mode=mode, shape=(64, 1000), dtype=dtype, param_dtype=dtype,
            device=device, distribution=distribution, direction=direction, seed=seed,
        )  # fmt: skip


def make_results(
    count: int = 400,
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
    dtypes: Sequence[str] = tuple(ITEM_BYTES),
    errors_only: bool = False,
) -> Results:
    """Return ``count`` records, of every status if there are 400 or more.

    Args:
        count: how many; the first of the sweep if that covers its speed grid, else spread evenly.
        devices: kinds of device in the sweep.
        dtypes: of x, in the sweep.
        errors_only: leave latency and memory out, as ``verify`` would.
    """
    environment = make_environment()
    every = list(make_cases(devices, dtypes))
    # odd: an even step would meet only every second of the 14 implementations and modes
    step = 1 if count > len(every) // 4 else (len(every) // count - 1) | 1
    taken = every if count > len(every) else list(islice(every[::step], count))
    records = [make_record(case, environment) for case in taken]
    while len(records) < count:  # more seeds of the same sweep
        first = records[len(records) % len(every)].case
        case = replace(first, seed=first.seed + 1000 * (len(records) // len(every)))
        records.append(make_record(case, environment))
    if errors_only:
        records = [replace(each, latency=None, memory=None) for each in records]
    return Results(
        records=tuple(records),
        runs=(make_run(planned=count + 3),),
        environments={environment.fingerprint: environment},
    )


def make_record(case: Case, environment: Environment | None = None) -> Record:
    """Return a record for ``case``; some cases fail, by the hash of their id."""
    where = (environment or make_environment()).fingerprint
    draw = _draw(case.id)
    failed = _failure(case, draw)
    if failed:
        status, reason = failed
        return Record(case=case, environment=where, status=status, reason=reason)
    errors = make_errors(case)
    status, reason = _judge(errors)
    timed = case.distribution == "normal" and case.seed == 0
    warnings = (
        MeasurementWarning(
            kind=WarningKind.NOISY, advice=f"spread of {draw:.1%}: close other programs"
        ),
    )
    return Record(
        case=case,
        environment=where,
        status=status,
        reason=reason,
        errors=errors,
        latency=make_latency(case) if timed else None,
        memory=make_memory(case) if timed else None,
        warnings=warnings if timed and draw > 0.95 else (),
        cost=Cost(total_s=0.1, implementation_s=0.02, oracle_s=0.03, sampling_s=0.04),
    )


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
    error = 0.5 + grown * 2.0**bits * (0.3 + 0.4 * _draw(case.id))
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
        rho_min_ratio=0.99,
        mean_error_ratio=1e-8,
        rstd_error_ratio=1e-8,
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
    factor *= 0.97 + 0.06 * _draw(case.id)
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
        converged=_draw(case.id) < 0.95,
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


def _draw(text: str) -> float:
    """Return a number in [0, 1) that depends on nothing but ``text``."""
    return int.from_bytes(sha256(text.encode()).digest()[:4]) / 2**32


def _failure(case: Case, draw: float) -> tuple[Status, str] | None:
    if case.distribution == "offset_1e6" and case.dtype == "float16":
        return Status.UNSUPPORTED, "offset_1e6 reaches 1e+06, beyond the largest float16, 65504"
    if case.mode is Mode.COMPILED and case.implementation == "welford":
        return Status.UNSUPPORTED, "welford is a loop over columns, which compiles for an hour"
    if case.shape == (4096, 4096) and case.implementation == "two_pass" and draw < 0.2:
        return Status.OUT_OF_MEMORY, f"wanted {draw:.2f} GiB more than there is"
    if case.implementation == "one_pass_input_dtype" and draw < 0.09:
        endings = (
            (Status.TIMEOUT, "ran past its limit of 60 s"),
            (Status.CRASHED, "ended by signal 11 (SIGSEGV)"),
            (Status.ERROR, "RuntimeError: expected scalar type Half but found Float"),
        )
        return endings[int(draw / 0.03)]
    return None


def _judge(errors: Errors) -> tuple[Status, str]:
    broken = [each for each in errors.outputs if each.bound_ratio and each.bound_ratio > 1]
    if broken:
        worst = broken[0]
        return Status.WRONG, (
            f"{worst.output} is {worst.scaled_max_ulp:.3g} ulp off, {worst.bound_ratio:.3g} times "
            f"the error bound of {errors.algorithm} with {errors.accumulate_dtype} statistics"
        )
    if any(each.vacuous_elements for each in errors.outputs):
        return Status.OUT_OF_GUARANTEE, (
            f"{errors.algorithm} with {errors.accumulate_dtype} statistics guarantees nothing "
            f"beyond condition number 4.1e+03, and these inputs reach "
            f"{errors.condition_max_ratio:.3g}: y is {errors.worst.scaled_max_ulp:.3g} ulp off"
        )
    return Status.OK, ""
