"""Merge the records of several processes that ran the same case into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from math import fsum

from harness.measure.measurement_warnings import uneven_advice
from harness.measure.sample_statistics import estimate, estimates_of, is_faster
from harness.records import (
    Arm,
    ArmRole,
    Budget,
    Clock,
    Cost,
    Estimate,
    Latency,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)

# Simulated: fewer processes agree by chance too often. Where the interval over three is narrow, it
# covers 51 to 83 % if processes spread by 2 to 1 %; see experiments/intervals.
ENOUGH_PROCESSES = 5


def is_enough(records: Sequence[Record], budget: Budget) -> bool:
    """Whether the case needs no further process: it cannot narrow an interval, or none may run."""
    if len(records) >= budget.processes:
        return True
    if not records:
        return False
    if records[-1].latency is None and records[-1].cold is None:
        return True
    if len(records) < ENOUGH_PROCESSES:
        return False
    so_far = merged(records, budget)
    latency = so_far.latency or so_far.cold
    return latency is None or latency.converged


def merged(records: Sequence[Record], budget: Budget) -> Record:
    """Return the first record, with the samples and the estimates of all processes.

    Errors and memory are the first process's, since they are the same in each. A measurement
    warning is kept once. If the case ended worse in one process, that record is returned.
    """
    if len(records) == 1:
        return records[0]
    worst = max(records, key=_severity)
    if _severity(worst) > min(map(_severity, records)):
        return worst
    warm = _joined([record.latency for record in records], budget)
    cold = _joined([record.cold for record in records], budget)
    timed = [latency for latency in (warm, cold) if latency is not None]
    advices = {warning.kind: warning.advice for record in records for warning in record.warnings}
    for kind in (WarningKind.NOT_CONVERGED, WarningKind.UNEVEN):
        advices.pop(kind, None)
    if wide := [latency for latency in timed if not latency.converged]:
        advices[WarningKind.NOT_CONVERGED] = (
            f"the interval across {wide[0].processes} processes is wider than "
            f"±{budget.target_ratio:.1%}; give the case more processes"
        )
    for latency in timed:
        if advice := uneven_advice(latency):
            advices[WarningKind.UNEVEN] = advice
    if all(latency.is_valid for latency in timed):
        advices.pop(WarningKind.FASTER_THAN_COPY, None)
    costs = [record.cost for record in records if record.cost is not None]
    parts = (field.name for field in fields(Cost))
    return replace(
        records[0],
        latency=warm,
        cold=cold,
        warnings=tuple(
            MeasurementWarning(kind=kind, advice=advice) for kind, advice in advices.items()
        ),
        cost=Cost(**{part: fsum(getattr(cost, part) for cost in costs) for part in parts}),
    )


def _severity(record: Record) -> tuple[bool, bool, bool]:
    """Order statuses: not measured is worst, then wrong, then any other that is not ok."""
    status = record.status
    return not status.is_measured, status is Status.WRONG, status is not Status.OK


def _joined(latencies: Sequence[Latency | None], budget: Budget) -> Latency | None:
    """Join the samples of several processes; the estimates are across processes."""
    parts = [latency for latency in latencies if latency is not None]
    if not parts:
        return None
    epochs = [len(part.process_of_epoch) for part in parts]
    starts = list(accumulate(epochs, initial=0))
    processes = tuple(process for process, count in enumerate(epochs) for _ in range(count))
    arms = tuple(_arm(arm.role, parts, starts) for arm in parts[0].arms)
    clocks = [part.clock for part in parts]
    clock = Clock.PROCESS_CPU if Clock.PROCESS_CPU in clocks else clocks[0]
    found = estimates_of(arms, budget, cpu=clock.is_cpu, process_of_epoch=processes)
    ceiling = _across(part.ceiling_ratio for part in parts)
    # One process may be faster than a copy by chance, so the ratio across processes decides. It is
    # not used where every process is valid: on a GPU, a short copy is mostly its launch.
    is_too_fast = is_faster(ceiling) and not all(part.is_valid for part in parts)
    is_invalid = is_too_fast or any(map(_leaves_work, parts))
    return replace(
        parts[0],
        clock=clock,
        per_call_s=found.per_call_s,
        reference_ratio=found.reference_ratio,
        uneven_ratio=found.uneven_ratio,
        ceiling_ratio=ceiling.value if ceiling else None,
        converged=found.converged,
        processes=len(parts),
        process_of_epoch=processes,
        minor_faults_ratio=_largest(part.minor_faults_ratio for part in parts),
        others_ratio=_largest(part.others_ratio for part in parts),
        throttled_epochs=sum(part.throttled_epochs for part in parts),
        replay_s=_across(part.replay_s.value for part in parts if part.replay_s),
        replay_ratio=_across(part.replay_ratio.value for part in parts if part.replay_ratio),
        is_valid=not is_invalid,
        arms=arms,
    )


def _across(values: Iterable[float | None]) -> Estimate | None:
    """Estimate a value across the processes that have one."""
    known = [value for value in values if value is not None]
    return estimate(known) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _leaves_work(latency: Latency) -> bool:
    """Whether a time is invalid because threads worked on, not because a copy takes longer."""
    return not latency.is_valid and not (latency.ceiling_ratio or 0.0) > 1


def _arm(role: ArmRole, parts: Sequence[Latency], starts: Sequence[int]) -> Arm:
    """Concatenate the samples of several processes, with consecutive epochs."""
    arms = [next(arm for arm in part.arms if arm.role is role) for part in parts]
    cpu_s = [arm.cpu_s for arm in arms if arm.cpu_s is not None]
    return replace(
        arms[0],
        wall_s=tuple(sample for arm in arms for sample in arm.wall_s),
        cpu_s=tuple(sample for samples in cpu_s for sample in samples) or None,
        epochs=tuple(
            start + epoch for start, arm in zip(starts, arms, strict=False) for epoch in arm.epochs
        ),
    )
