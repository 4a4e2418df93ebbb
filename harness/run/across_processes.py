"""Merge the records of several processes that ran the same case into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import fsum

from harness.measure.estimates import estimates_of
from harness.measure.measurement_warnings import uneven_advice
from harness.measure.sample_statistics import estimate, is_faster
from harness.records import (
    Arm,
    ArmRole,
    Budget,
    Clock,
    Cost,
    Latency,
    MeasurementWarning,
    Record,
    Status,
    WarningKind,
)

__all__ = ["ENOUGH_PROCESSES", "merged"]

# Simulated: fewer processes agree by chance too often. Where the interval over three is narrow, it
# covers 51 to 83 % if processes spread by 2 to 1 %; see experiments/intervals.
ENOUGH_PROCESSES = 5


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
    warm = _joined([each.latency for each in records], budget)
    warnings = {each.kind: each for record in records for each in record.warnings}
    for kind in (WarningKind.NOT_CONVERGED, WarningKind.UNEVEN):
        warnings.pop(kind, None)
    cold = _joined([each.cold for each in records], budget)
    wide = next((each for each in (warm, cold) if each is not None and not each.converged), None)
    if wide is not None:
        warnings[WarningKind.NOT_CONVERGED] = MeasurementWarning(
            kind=WarningKind.NOT_CONVERGED,
            advice=f"the interval across {wide.processes} processes is wider than "
            f"±{budget.target_ratio:.1%}; give the case more processes",
        )
    for advice in (uneven_advice(each) for each in (warm, cold) if each is not None):
        if advice:
            warnings[WarningKind.UNEVEN] = MeasurementWarning(
                kind=WarningKind.UNEVEN, advice=advice
            )
    if all(each is None or each.is_valid for each in (warm, cold)):
        warnings.pop(WarningKind.FASTER_THAN_COPY, None)
    costs = [each.cost for each in records if each.cost is not None]
    return replace(
        records[0],
        latency=warm,
        cold=cold,
        warnings=tuple(warnings.values()),
        cost=Cost(
            total_s=fsum(each.total_s for each in costs),
            implementation_s=fsum(each.implementation_s for each in costs),
            oracle_s=fsum(each.oracle_s for each in costs),
            sampling_s=fsum(each.sampling_s for each in costs),
        ),
    )


def _severity(record: Record) -> tuple[bool, bool, bool]:
    """Order statuses: not measured is worst, then wrong, then any other that is not ok."""
    status = record.status
    return not status.is_measured, status is Status.WRONG, status is not Status.OK


def _joined(latencies: Sequence[Latency | None], budget: Budget) -> Latency | None:
    """Join the samples of several processes; the estimates are across processes."""
    parts = [each for each in latencies if each is not None]
    if not parts:
        return None
    epochs = [len(each.process_of_epoch) for each in parts]
    starts = list(accumulate(epochs, initial=0))
    processes = tuple(place for place, count in enumerate(epochs) for _ in range(count))
    roles = [each.role for each in parts[0].arms]
    arms = {role: _arm([_of(each, role) for each in parts], starts) for role in roles}
    clocks = [each.clock for each in parts]
    clock = Clock.PROCESS_CPU if Clock.PROCESS_CPU in clocks else clocks[0]
    found = estimates_of(tuple(arms.values()), budget, cpu=clock.is_cpu, process_of_epoch=processes)
    ceilings = [each.ceiling_ratio for each in parts if each.ceiling_ratio is not None]
    ceiling = estimate(ceilings) if ceilings else None
    replays = [each.replay_s.value for each in parts if each.replay_s is not None]
    replay_ratios = [each.replay_ratio.value for each in parts if each.replay_ratio is not None]
    # One process may be faster than a copy by chance, so the ratio across processes decides. It is
    # not used where every process is valid: on a GPU, a short copy is mostly its launch.
    is_too_fast = is_faster(ceiling) and not all(each.is_valid for each in parts)
    is_invalid = is_too_fast or any(map(_leaves_work, parts))
    faults = [each.minor_faults_ratio for each in parts if each.minor_faults_ratio is not None]
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
        minor_faults_ratio=max(faults, default=None),
        others_ratio=max((each.others_ratio for each in parts), key=lambda each: each or 0.0),
        throttled_epochs=sum(each.throttled_epochs for each in parts),
        replay_s=estimate(replays) if replays else None,
        replay_ratio=estimate(replay_ratios) if replay_ratios else None,
        is_valid=not is_invalid,
        arms=tuple(arms.values()),
    )


def _leaves_work(latency: Latency) -> bool:
    """Whether a time is invalid because threads worked on, not because a copy takes longer."""
    return not latency.is_valid and not (latency.ceiling_ratio or 0.0) > 1


def _of(latency: Latency, role: ArmRole) -> Arm:
    return next(each for each in latency.arms if each.role is role)


def _arm(arms: Sequence[Arm], starts: Sequence[int]) -> Arm:
    """Concatenate the samples of several processes, with consecutive epochs."""
    cpu_s = [each.cpu_s for each in arms if each.cpu_s is not None]
    return replace(
        arms[0],
        wall_s=tuple(sample for each in arms for sample in each.wall_s),
        cpu_s=tuple(sample for each in cpu_s for sample in each) or None,
        epochs=tuple(
            start + epoch
            for start, each in zip(starts, arms, strict=False)
            for epoch in each.epochs
        ),
    )
