"""Results for tests. NOTHING IN HERE WAS MEASURED: figures_factory.py makes up every figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from factories.figures_factory import (
    CONDITIONS,
    IMPLEMENTATIONS,
    ITEM_BYTES,
    draw_of,
    make_errors,
    make_latency,
    make_memory,
)
from harness.records import (
    Case,
    Cost,
    Direction,
    Environment,
    Errors,
    Gpu,
    MeasurementWarning,
    Mode,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.store import Results

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
) -> Results:
    """Return ``count`` records, of every status if there are 400 or more.

    Args:
        count: how many; the first of the sweep if that covers its speed grid, else spread evenly.
        devices: kinds of device in the sweep.
        dtypes: of x, in the sweep.
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
    return Results(
        records=tuple(records),
        runs=(make_run(planned=count + 3),),
        environments={environment.fingerprint: environment},
    )


def make_record(case: Case, environment: Environment | None = None) -> Record:
    """Return a record for ``case``; some cases fail, by the hash of their id."""
    where = (environment or make_environment()).fingerprint
    draw = draw_of(case.id)
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
    broken = [output for output in errors.outputs if output.bound_ratio and output.bound_ratio > 1]
    if broken:
        worst = broken[0]
        return Status.WRONG, (
            f"{worst.output} is {worst.scaled_max_ulp:.3g} ulp off, {worst.bound_ratio:.3g} times "
            f"the error bound of {errors.algorithm} with {errors.accumulate_dtype} statistics"
        )
    if any(output.vacuous_elements for output in errors.outputs):
        return Status.OUT_OF_GUARANTEE, (
            f"{errors.algorithm} with {errors.accumulate_dtype} statistics has no error bound "
            f"beyond condition number 4.1e+03, and these inputs reach "
            f"{errors.condition_max_ratio:.3g}: y is {errors.worst.scaled_max_ulp:.3g} ulp off"
        )
    return Status.OK, ""
