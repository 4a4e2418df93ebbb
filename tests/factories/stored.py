"""Records of every kind to store, drawn and written out, and whether two are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from harness.records import (
    Allocation,
    Arm,
    ArmRole,
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
    OutputErrors,
    Record,
    Run,
    Status,
    WarningKind,
)
from harness.store import Results, StoreError, read

numbers = st.floats()  # NaN and the infinities too: an error may be infinite
counts = st.integers(0, 2**62)
# surrogates are half characters: no valid text, and no UTF-8 can hold them
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def several(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=most).map(tuple)


def strategy_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, from the type alone, so that no field can be forgotten."""
    if type(None) in get_args(annotation):
        (inner,) = (part for part in get_args(annotation) if part is not type(None))
        return some(strategy_of(inner))
    if getattr(annotation, "__origin__", None) is tuple:
        items = get_args(annotation)
        if items[-1] is not Ellipsis:
            return st.tuples(*map(strategy_of, items))
        return several(strategy_of(items[0]))
    if is_dataclass(annotation):
        return st.builds(
            annotation, **{name: strategy_of(hint) for name, hint in hints_of(annotation)}
        )
    if issubclass(annotation, StrEnum):
        return st.sampled_from(annotation)
    return {str: texts, int: counts, float: numbers, bool: st.booleans()}[annotation]


def hints_of(owner: Any) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(owner)
    return ((field.name, hints[field.name]) for field in fields(owner))


results = st.builds(
    lambda records, runs, environments: Results(
        records=records,
        runs=runs,
        environments={environment.fingerprint: environment for environment in environments},
    ),
    several(strategy_of(Record)),
    several(strategy_of(Run), 2),
    several(strategy_of(Environment), 2),
)


def same(one: object, other: object) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(one) == repr(other)


def without_samples(found: Results) -> Results:
    return replace(
        found,
        records=tuple(
            replace(
                record,
                latency=record.latency and replace(record.latency, arms=()),
                cold=record.cold and replace(record.cold, arms=()),
            )
            for record in found.records
        ),
    )


CASE = Case(implementation="native", shape=(8, 64), direction=Direction.BACKWARD)
ESTIMATE = Estimate(value=1.0, low=0.9, high=1.1)
FULL = Record(
    case=CASE,
    environment="0123456789ab",
    status=Status.WRONG,
    reason="y is 3 ulp off",
    errors=Errors(
        outputs=(
            OutputErrors(
                output="y",
                elements=512,
                unexpected_nonfinite=1,
                scaled_max_ulp=math.inf,
                scaled_p99_ulp=math.nan,
                scaled_mean_ulp=None,
                raw_max_ulp=1e300,
                max_abs=1e-300,
                normwise_ratio=0.0,
                bound_ratio=None,
                vacuous_elements=0,
            ),
        ),
        condition_max_ratio=math.inf,
        algorithm="welford",
        reduction="tree",
        accumulate_dtype="float32",
        oracle="double_double",
    ),
    latency=Latency(
        clock=Clock.WALL,
        cache=Cache.WARM,
        allocation=Allocation.STEADY,
        per_call_s=ESTIMATE,
        reference_ratio=None,
        ceiling_ratio=0.7,
        model_bytes=4096,
        converged=True,
        processes=2,
        process_of_epoch=(0, 0, 1),
        minor_faults_ratio=None,
        compile_s=None,
        arms=(
            Arm(
                role=ArmRole.SUBJECT,
                name="native",
                calls_per_sample=3,
                wall_s=tuple(1e-6 * index for index in range(200)),
                cpu_s=None,
                epochs=tuple(range(200)),
            ),
        ),
    ),
    memory=Memory(
        peak_extra_bytes=1, allocated_bytes=2, allocations=3, saved_bytes=None, minimum_bytes=1
    ),
    warnings=(MeasurementWarning(kind=WarningKind.NOISY, advice="close the browser"),),
    cost=Cost(total_s=1.0, implementation_s=0.5, oracle_s=0.25, sampling_s=0.125),
)
BARE = Record(case=replace(CASE, seed=1), environment="0123456789ab", status=Status.CRASHED)
RUN = Run(
    name="first", started_utc="2025-01-01T00:00:00Z", command="run", planned=2, version="0.1.0"
)
ENVIRONMENT = Environment(
    cpu="Ünïcode CPU \N{GREEK SMALL LETTER MU}",
    cpu_count=2,
    cpu_capability="AVX2",
    memory_bytes=None,
    platform="Linux",
    python="3.11.7",
    packages=(("torch", "2.13.0"),),
    compiler=None,
    gpus=(Gpu(name="G", uuid="u", memory_bytes=1, power_limit_w=None, compute_capability="9.0"),),
    nvml="580",
    git_commit=None,
    git_dirty=None,
    load_average=0.5,
)
RESULTS = Results(
    records=(FULL, BARE), runs=(RUN,), environments={ENVIRONMENT.fingerprint: ENVIRONMENT}
)


def read_or_refusal(path: Path) -> Results | str:
    """What a file holds, or why it is not read."""
    try:
        return read(path)
    except StoreError as error:
        return str(error)
