"""Baselines: the cases of a run measured in ten processes, and what may take a baseline's place.

A recording is ten passes over all cases, each a new process with an order of its own. A pass is a
run with its journal, so that an interrupted recording can be continued. Of the samples of an epoch
the baseline keeps the figure that they come to, which is all that is compared: it is to be
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from random import Random
from shutil import rmtree
from time import monotonic

from harness.measure.sample_statistics import epoch_values, median_quantile
from harness.records import Arm, Budget, Measurement, Record, WarningKind
from harness.records.refusal import Refusal
from harness.regression.compare import NotMeasuredError
from harness.regression.confirm import EPOCHS, LIMIT_S
from harness.regression.latency_test import BASELINE_PROCESSES
from harness.regression.noise import NOISY_SPREAD
from harness.run.fleet import Fleet
from harness.run.merge import merged
from harness.run.session import Campaign, run_campaign
from harness.store import Results, read, write
from harness.sweep import Grid, Planned, Sweep

__all__ = ["RecordingError", "accept", "passes_left", "record_baseline", "refuse_unacceptable"]

_SWEEP = Sweep(seconds_per_case=LIMIT_S, min_epochs=EPOCHS, max_epochs=EPOCHS)
# As wide as the interval over the baseline's processes gets at the spread beyond which a case is
# noisy anyway: a narrower target would call steady cases unconverged.
_MERGING = Budget(
    target_ratio=median_quantile(BASELINE_PROCESSES) * NOISY_SPREAD / BASELINE_PROCESSES**0.5
)
_TIMINGS = {Measurement.LATENCY, Measurement.COLD}


class RecordingError(Refusal):
    """A baseline cannot be recorded, or replaced, as asked."""


def passes_left(out: Path) -> int:
    """How many passes there are still to be made until ``out`` is recorded."""
    done = sum(_pass(out, number).exists() for number in range(BASELINE_PROCESSES))
    return BASELINE_PROCESSES - done


def _pass(out: Path, number: int) -> Path:
    """Where a pass is kept until all are done."""
    return out.with_name(f"{out.stem}.recording") / f"process{number + 1}.parquet"


def record_baseline(
    wanted: Results,
    out: Path,
    *,
    make_fleet: Callable[[], Fleet],
    command: str,
    resume: bool,
    on_record: Callable[[Record], None],
) -> Results:
    """Measure the cases of a run in as many processes as a baseline needs, and write it to ``out``.

    Args:
        wanted: the run whose cases are asked for, and what was measured of each.
        out: the baseline; one that is there is replaced when all is measured.
        make_fleet: starts a process.
        command: for the record of the run.
        resume: continue a recording that was interrupted.
        on_record: hears of each record when it is on disk.

    Raises:
        NotMeasuredError: no case was asked for, or none could be measured.
        RecordingError: an earlier recording is there and was not to be continued, or cannot be.
        ForeignRunError: it was begun on another machine.
        StoreError: a file cannot be read or written.
        HarnessError: the harness itself failed.
    """
    if not wanted.records:
        raise NotMeasuredError("the run holds no case that a baseline could be made of")
    folder = _pass(out, 0).parent
    if folder.exists() and not resume:
        raise RecordingError(
            f"{folder}: a recording was begun there; continue it with --resume, or delete it"
        )
    planned = [Planned(each.case, _measured_of(each)) for each in wanted.records]
    passes: list[Results] = []
    for number in range(BASELINE_PROCESSES):
        path = _pass(out, number)
        if number == 1:
            planned = _timed(planned, passes[0])
        if not path.exists() and planned:
            order = list(planned)
            Random(number).shuffle(order)
            campaign = Campaign(
                planned=tuple(order),
                sweep=_SWEEP,
                out=path,
                command=command,
                resume=True,
                began=monotonic(),
            )
            with make_fleet() as fleet:
                run_campaign(campaign, fleet, on_record)
        if planned:
            passes.append(read(path))
        if not any(each.status.is_measured for each in passes[0].records):
            rmtree(folder)
            raise NotMeasuredError(
                f"no case could be measured, such as {passes[0].records[0].case.id}: "
                f"{passes[0].records[0].reason}; nothing was written"
            )
    results = _joined(passes, wanted, out, folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    write(results, out)
    rmtree(folder)
    return results


def accept(head: Results, baseline: Results | None, out: Path) -> None:
    """Put a run in the place of a baseline, at once.

    Raises:
        NotMeasuredError: see ``refuse_unacceptable``.
        RecordingError: see there.
        StoreError: the file cannot be written.
    """
    refuse_unacceptable(head, baseline)
    out.parent.mkdir(parents=True, exist_ok=True)
    write(head, out)


def refuse_unacceptable(head: Results, baseline: Results | None) -> None:
    """Refuse a run that cannot take the place of a baseline.

    Raises:
        NotMeasuredError: no case of the run was measured.
        RecordingError: the run was cut short, or the baseline could judge latencies that it, as
            the next one, could not.
    """
    if why := head.why_unfinished:
        raise RecordingError(f"a run that was cut short is no baseline: {why}; finish it first")
    if not any(each.status.is_measured for each in head.records):
        raise NotMeasuredError("no case of the run was measured: it is no baseline")
    timed = {each.case.id for each in head.records if each.latency is not None}
    judged = _well_timed(baseline) if baseline else set()
    lost = (judged & timed) - _well_timed(head)
    if lost:
        raise RecordingError(
            f"the baseline timed {len(lost)} cases in {BASELINE_PROCESSES} processes or more, and "
            "the run in fewer: in its place it could judge no latency; make a new one with "
            "--record-baseline"
        )


def _measured_of(record: Record) -> tuple[Measurement, ...]:
    """What a record shows to have been asked for; of one that could not be measured, the usual."""
    if not record.status.is_measured:
        return Grid().measure
    found = {
        Measurement.ERRORS: record.errors,
        Measurement.LATENCY: record.latency,
        Measurement.COLD: record.cold,
        Measurement.MEMORY: record.memory,
    }
    return tuple(each for each, value in found.items() if value is not None)


def _timed(planned: Sequence[Planned], first: Results) -> list[Planned]:
    """Keep of each case what differs between processes, if the first could measure the case."""
    measured = {each.case for each in first.records if each.status.is_measured}
    found = [
        Planned(each.case, tuple(one for one in each.measurements if one in _TIMINGS))
        for each in planned
    ]
    return [each for each in found if each.measurements and each.case in measured]


def _joined(passes: Sequence[Results], wanted: Results, out: Path, folder: Path) -> Results:
    """Return the records of all passes as one run."""
    runs = [each.runs[-1] for each in passes]
    origins = {(each.environment, each.git_commit, each.version) for each in runs}
    asked = {each.case for each in wanted.records}
    if len(origins) > 1 or asked != {each.case for each in passes[0].records}:
        raise RecordingError(
            f"{folder}: its processes measured other cases, other commits or other machines; "
            "delete it and record anew"
        )
    parts: dict[str, list[Record]] = {each.case.id: [] for each in wanted.records}
    for record in (record for each in passes for record in each.records):
        parts[record.case.id].append(record)
    run = replace(
        runs[0],
        name=out.stem,
        planned=len(parts),
        wall_s=fsum(each.wall_s or 0.0 for each in runs),
        overhead_ratio=None,
    )
    return Results(
        records=tuple(_condensed(_without_rare_noise(each)) for each in parts.values()),
        runs=(run,),
        environments=passes[0].environments,
    )


def _without_rare_noise(parts: Sequence[Record]) -> Record:
    """Join the records of one case; a disturbance of half the processes moves no median."""
    joined = merged(parts, _MERGING)
    disturbed = sum(any(each.kind is WarningKind.NOISY for each in part.warnings) for part in parts)
    if 2 * disturbed > len(parts):
        return joined
    kept = tuple(each for each in joined.warnings if each.kind is not WarningKind.NOISY)
    return replace(joined, warnings=kept)


def _condensed(record: Record) -> Record:
    """Return a record with one sample an epoch, its figure."""
    latency, cold = (
        None if each is None else replace(each, arms=tuple(map(_one_an_epoch, each.arms)))
        for each in (record.latency, record.cold)
    )
    return replace(record, latency=latency, cold=cold)


def _one_an_epoch(arm: Arm) -> Arm:
    cpu_s = None if arm.cpu_s is None else tuple(epoch_values(arm, cpu=True))
    epochs = tuple(sorted(set(arm.epochs)))
    return replace(arm, wall_s=tuple(epoch_values(arm, cpu=False)), cpu_s=cpu_s, epochs=epochs)


def _well_timed(results: Results) -> set[str]:
    """Ids of the cases whose latency a baseline of these records can judge."""
    return {
        each.case.id
        for each in results.records
        if each.latency is not None and each.latency.processes >= BASELINE_PROCESSES
    }
