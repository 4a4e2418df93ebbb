"""Runs to compare, with every figure given by the test. NOTHING IN HERE WAS MEASURED."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from typing import Any

from factories import figures_factory
from factories.figures_factory import make_errors, make_memory
from factories.results_factory import make_environment, make_run
from harness.records import (
    Arm,
    ArmRole,
    Case,
    Direction,
    Environment,
    Estimate,
    Latency,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)
from harness.regression import Change, Comparison, Confirm, compare
from harness.run import Job, WorkerInfo
from harness.store import Results

HERE = make_environment()
ELSEWHERE = make_environment(cpu="Another CPU", cpu_capability="AVX512")
STEADY = (1.0, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997, 1.001, 0.999, 1.0)
"""Ten processes that agree to within 0.2 %."""
EPOCHS = 2


def make_case(implementation: str = "two_pass", rows: int = 64, **axes: Any) -> Case:
    return Case(implementation=implementation, shape=(rows, 768), **axes)


def make_cases(count: int) -> list[Case]:
    """Return ``count`` cases of three implementations."""
    grid = product(range(8, 8 * count, 8), Direction, ("native", "one_pass", "two_pass"))
    return [make_case(name, rows, direction=way) for rows, way, name in grid][:count]


def make_latency(ratios: Sequence[float] = (1.0,), **changes: Any) -> Latency:
    """Return a latency with the given ratio to native in each of its processes."""
    epochs = tuple(range(EPOCHS * len(ratios)))
    of_epoch = tuple(ratio for ratio in ratios for _ in range(EPOCHS))
    times = {
        ArmRole.SUBJECT: tuple(1e-4 * ratio for ratio in of_epoch),
        ArmRole.REFERENCE: (1e-4,) * len(epochs),
    }
    figures: dict[str, Any] = {
        "per_call_s": Estimate(value=1e-4, low=1e-4, high=1e-4),
        "reference": "native",
        "reference_ratio": Estimate(value=median(ratios), low=min(ratios), high=max(ratios)),
        "processes": len(ratios),
        "process_of_epoch": tuple(epoch // EPOCHS for epoch in epochs),
        "arms": tuple(
            Arm(role=role, name=str(role), calls_per_sample=1, wall_s=own, cpu_s=own, epochs=epochs)
            for role, own in times.items()
        ),
    }
    return replace(figures_factory.make_latency(make_case()), **(figures | changes))


def make_record(
    case: Case | None = None,
    ratios: Sequence[float] | None = None,
    *,
    environment: Environment = HERE,
    **changes: Any,
) -> Record:
    """Return a record of a right case; without ``ratios`` it was not timed."""
    case = case or make_case()
    record = Record(
        case=case,
        environment=environment.fingerprint,
        status=Status.OK,
        errors=make_errors(case),
        latency=None if ratios is None else make_latency(ratios),
        memory=make_memory(case),
    )
    return replace(record, **changes)


def with_error(record: Record, output: int = 0, **figures: Any) -> Record:
    """Return the record with figures of one output replaced."""
    outputs = list(record.errors.outputs)
    outputs[output] = replace(outputs[output], **figures)
    return replace(record, errors=replace(record.errors, outputs=tuple(outputs)))


def with_memory(record: Record, **figures: Any) -> Record:
    return replace(record, memory=replace(record.memory, **figures))


def elsewhere(record: Record) -> Record:
    """Return the record as if another machine had measured it."""
    return replace(record, environment=ELSEWHERE.fingerprint)


def failed(case: Case | None = None, status: Status = Status.ERROR, reason: str = "why") -> Record:
    return make_record(case, status=status, reason=reason, errors=None, memory=None)


BEFORE = make_record(ratios=STEADY)
"""A case of a baseline."""
SHARED = MeasurementWarning(kind=WarningKind.NOISY, advice="wall time is 1.3 times CPU time")
STEPPED = MeasurementWarning(kind=WarningKind.CLOCK_STEPPED, advice="set by hand")


def now(*ratios: float, **changes: Any) -> Record:
    """Return the record of the same case, measured now in as many processes as there are ratios."""
    return make_record(latency=make_latency(ratios, **changes))


def results_of(
    *records: Record, environments: Sequence[Environment] = (HERE, ELSEWHERE), **run: Any
) -> Results:
    """Return the results of a finished run of these records."""
    return Results(
        records=records,
        runs=(make_run(**{"planned": len(records), "git_commit": HERE.git_commit, **run}),),
        environments={environment.fingerprint: environment for environment in environments},
    )


def compared(before: Results | Record, after: Results | Record, **more: Any) -> Comparison:
    old, new = (results_of(run) if isinstance(run, Record) else run for run in (before, after))
    return compare(old, new, ("old", "new"), **more)


def change(before: Record, after: Record, **more: Any) -> Change:
    """Return the change of a case; a second case is unchanged, so that runs are comparable."""
    other = make_record(make_case("bystander"))
    comparison = compared(results_of(before, other), results_of(after, other), **more)
    return next(change for change in comparison.changes if change.case == before.case)


def confirming(*ratios: float) -> Confirm:
    """Return a confirmation with the same ratios for every suspect."""
    return lambda suspects: {shift.case.id: ratios for shift in suspects}


@dataclass
class ScriptedFleet(AbstractContextManager["ScriptedFleet"]):
    """A fleet that returns scripted records and counts how often it was started."""

    ratio_of: Mapping[str, float]
    """By id of case; a case that is missing cannot be timed."""
    environment: Environment = HERE
    starts: int = 0
    asked: list[list[Job]] = field(default_factory=list)

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(self.environment, {}, {}, {}, {"cpu": 1})

    @property
    def nodes(self) -> tuple[WorkerInfo, ...]:
        return (self.info,)

    def __enter__(self) -> ScriptedFleet:
        self.starts += 1
        return self

    def __exit__(self, *_: object) -> None:
        return

    def run(self, jobs: Sequence[Job], timeout_s: float, stop_at: float = 0.0) -> Iterator[Record]:
        self.asked.append(list(jobs))
        return map(self.answer, self.asked[-1])

    def answer(self, job: Job) -> Record:
        ratio = self.ratio_of.get(job.case.id)
        answer = failed(job.case) if ratio is None else make_record(job.case, (ratio,))
        return replace(answer, environment=self.environment.fingerprint)
