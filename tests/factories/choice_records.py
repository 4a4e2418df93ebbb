"""Records to choose among: the tests give every number that decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isinf
from typing import Any

from factories.compared_runs import HERE, results_of
from factories.figures_factory import make_errors, make_latency, make_memory
from harness.records import Case, Estimate, Mode, Record, Status
from harness.selection import (
    Call,
    Choice,
    Choices,
    Requirements,
    Wanted,
    Workload,
    WorkloadChoice,
    choose,
    choose_for_workload,
    scaled,
)

SHAPE = (64, 768)
SHAPES = ((4, 8), (64, 128), (512, 1024))


def case_of(name: str, **axes: object) -> Case:
    return Case(implementation=name, **({"shape": SHAPE} | axes))  # type: ignore[arg-type]


def ran(
    name: str,
    ratio: float | None = None,
    *,
    spread: float = 0.01,
    interval: tuple[float, float] | None = None,
    error_ulp: float = 1.0,
    condition: float = 1.0,
    lost: float = 1e-7,
    status: Status = Status.OK,
    reason: str = "",
    peak_bytes: int | None = None,
    is_valid: bool = True,
    processes: int = 5,
    environment: str = HERE.fingerprint,
    **axes: object,
) -> Record:
    """A record of a case that ran; ``ratio`` is its time over that of native, None if untimed.

    Its interval is ``spread`` of it either way, or ``interval``. It has errors of y alone, and
    ``lost`` is the share of its norm.
    """
    case = case_of(name, **axes)
    latency = None
    if ratio is not None:
        low, high = interval or (ratio * (1 - spread), ratio * (1 + spread))
        over_native = Estimate(value=ratio, low=low, high=high)
        native = make_latency(replace(case, implementation="native", mode=Mode.EAGER)).per_call_s
        seconds = scaled(over_native, native.value)
        latency = replace(
            make_latency(case),
            per_call_s=seconds,
            reference="native",
            reference_ratio=over_native,
            is_valid=is_valid,
            processes=processes,
        )
    output = replace(
        make_errors(case).outputs[0],
        unexpected_nonfinite=7 if isinf(error_ulp) else 0,
        scaled_max_ulp=error_ulp,
        normwise_ratio=lost,
    )
    memory = replace(make_memory(case), peak_extra_bytes=peak_bytes or 0)
    return Record(
        case=case,
        environment=environment,
        status=status,
        reason=reason,
        errors=replace(make_errors(case), outputs=(output,), condition_max_ratio=condition),
        latency=latency,
        memory=None if peak_bytes is None else memory,
    )


def with_latency(record: Record, **changes: object) -> Record:
    """Return a timed record with other fields of its latency."""
    return replace(record, latency=replace(record.latency, **changes))  # type: ignore[arg-type]


def timed(
    name: str, ratio: float, shapes: Sequence[tuple[int, ...]] = SHAPES, **axes: object
) -> list[Record]:
    """Records of several shapes with the same ratio."""
    return [ran(name, ratio, shape=shape, **axes) for shape in shapes]  # type: ignore[arg-type]


def failed(name: str, status: Status, reason: str = "", **axes: object) -> Record:
    """A record of a case that did not run."""
    return Record(
        case=case_of(name, **axes), environment=HERE.fingerprint, status=status, reason=reason
    )


def vacuous(name: str, condition: float = 1e4, **axes: object) -> Record:
    """A record of a case that no bound covers."""
    return ran(
        name,
        status=Status.OUT_OF_GUARANTEE,
        reason="promises nothing",
        error_ulp=1e6,
        condition=condition,
        lost=1.0,
        **({"distribution": "offset_1e4"} | axes),
    )


def choices_among(
    *records: Record,
    wanted: Wanted | None = None,
    requirements: Requirements | None = None,
) -> Choices:
    """Choose among records; unless the test says otherwise, of inputs of any condition number."""
    required = requirements or Requirements(max_condition=inf)
    return choose([results_of(*records)], wanted, required)


def choice_among(*records: Record, requirements: Requirements | None = None) -> Choice:
    """Return the only choice."""
    (choice,) = choices_among(*records, requirements=requirements).choices
    return choice


SMALL, LARGE = (8, 768), (64, 768)


def both(name: str, small: float, large: float, **axes: Any) -> list[Record]:
    """Records of two shapes, with the time of each over that of native."""
    return [ran(name, small, shape=SMALL, **axes), ran(name, large, shape=LARGE, **axes)]


def call(shape: tuple[int, ...], count: int = 1, **axes: object) -> Call:
    plain = {"shape": shape, "dtype": "float32", "direction": "forward", "count": count}
    return Call.model_validate(plain | axes)


def workload_choices(calls: Sequence[Call], *records: Record) -> tuple[WorkloadChoice, ...]:
    return choose_for_workload(Workload(calls=tuple(calls)), choices_among(*records))


def workload_choice(calls: Sequence[Call], *records: Record) -> WorkloadChoice:
    """Return the only choice for a workload."""
    (choice,) = workload_choices(calls, *records)
    return choice
