"""Results for tests. NOTHING IN HERE WAS MEASURED: figures_factory.py makes up every figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

from factories.figures_factory import (
    CONDITIONS,
    ITEM_BYTES,
    NATIVE_FACTORS,
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
    timed = product(devices, Direction, dtypes, SHAPES, ["normal"], Mode, NATIVE_FACTORS, [0])
    shapes, seeds = [(64, 1000)], range(3)
    errors = product(devices, Direction, dtypes, shapes, CONDITIONS, Mode, NATIVE_FACTORS, seeds)
    for device, direction, dtype, shape, distribution, mode, name, seed in chain(timed, errors):
        yield Case(
            implementation=name, mode=mode, shape=shape, dtype=dtype, param_dtype=dtype,
            device=device, distribution=distribution, direction=direction, seed=seed,
        )  # fmt: skip


def make_results(
    count: int = 400,
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
    dtypes: Sequence[str] = tuple(ITEM_BYTES),
) -> Results:
    """Return ``count`` records, of all statuses but one if there are 1000 or more.

    Args:
        count: how many; the first of the sweep if that covers its speed grid, else spread evenly;
            more than the sweep has are of other seeds.
        devices: kinds of device in the sweep.
        dtypes: of x, in the sweep.
    """
    cases = list(make_cases(devices, dtypes))
    # odd: an even step would meet only every second of the 14 implementations and modes
    step = 1 if count > len(cases) // 4 else (len(cases) // count - 1) | 1
    environment = make_environment()
    records = []
    for place in range(0, count * step, step):
        repeats, index = divmod(place, len(cases))
        case = replace(cases[index], seed=cases[index].seed + 1000 * repeats)
        records.append(make_record(case, environment))
    return Results(
        records=tuple(records),
        runs=(make_run(planned=count + 3),),
        environments={environment.fingerprint: environment},
    )


FAILURES = (
    (Status.UNSUPPORTED, "offset_1e6 reaches 1e+06, beyond the largest float16, 65504"),
    (Status.OUT_OF_MEMORY, "wanted 1.25 GiB more than there is"),
    (Status.TIMEOUT, "ran past its limit of 60 s"),
    (Status.CRASHED, "ended by signal 11 (SIGSEGV)"),
    (Status.ERROR, "RuntimeError: expected scalar type Half but found Float"),
)


def make_record(case: Case, environment: Environment | None = None) -> Record:
    """Return a record for ``case``; some cases fail, by the hash of their id."""
    where = (environment or make_environment()).fingerprint
    draw = draw_of(case.id)
    if case.implementation == "one_pass_input_dtype" and draw < 0.1:
        status, reason = FAILURES[int(50 * draw)]
        return Record(case=case, environment=where, status=status, reason=reason)
    errors = make_errors(case)
    status, reason = _judge(errors)
    is_timed = case.distribution == "normal" and case.seed == 0
    noise = MeasurementWarning(kind=WarningKind.NOISY, advice=f"spread of {draw:.1%}")
    return Record(
        case=case,
        environment=where,
        status=status,
        reason=reason,
        errors=errors,
        latency=make_latency(case) if is_timed else None,
        memory=make_memory(case) if is_timed else None,
        warnings=(noise,) if is_timed and draw > 0.95 else (),
        cost=Cost(total_s=0.1, implementation_s=0.02, oracle_s=0.03, sampling_s=0.04),
    )


def _judge(errors: Errors) -> tuple[Status, str]:
    worst = errors.worst
    if worst.bound_ratio is None:
        return Status.OUT_OF_GUARANTEE, f"{errors.algorithm} has no error bound for these inputs"
    if worst.bound_ratio > 1:
        return Status.WRONG, f"{worst.output} is {worst.scaled_max_ulp:.3g} ulp off"
    return Status.OK, ""
