"""Warnings about a latency: each says what was measured and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from harness.measure.sample_statistics import epoch_values, estimate, median_estimate, ratios
from harness.records import (
    ArmRole,
    Budget,
    Clock,
    DeviceState,
    Latency,
    MeasurementWarning,
    WarningKind,
)
from harness.records.text import count, percent_text, seconds_text

_BUSY = 1.05  # trade-off: least ratio of wall to CPU time to warn of
_STOLEN = 0.02  # trade-off: share of one CPU's time that the hypervisor may take unnoticed
_CHANGED = 1.05  # trade-off: least change of speed to warn of, if it is also beyond the spread
_COARSE = 0.01  # trade-off: share of a sample that one step of the clock may be
_EMPTY = 0.1  # trade-off: share of a sample that the clock's own time may be
_LOOP_S = 30e-9  # of the loop around the calls, roughly, per call
_SLOW_GOVERNORS = {"powersave", "conservative"}


def warnings_of(
    latency: Latency,
    budget: Budget,
    wall_s: float,
    *,
    stepped: int = 0,
    left_over: float = 0.0,
    empty_s: float = 0.0,
) -> tuple[MeasurementWarning, ...]:
    """Return the warnings about a latency.

    Args:
        latency: of one process, with the states of the device.
        budget: that it was sampled with.
        wall_s: seconds from the first sample to the last.
        stepped: samples that were dropped because the clock did not move forward in them.
        left_over: CPU time of other threads after some calls, over that of the calls.
        empty_s: seconds in each sample that are not of its calls.
    """
    found = (
        *_of_samples(latency, budget, left_over),
        *_of_clock(latency, wall_s, stepped, empty_s),
        *_of_machine(latency, left_over),
    )
    return tuple(MeasurementWarning(kind=kind, advice=advice) for kind, advice in found)


def nothing_measured(after: DeviceState, stepped: int) -> MeasurementWarning:
    """Return the warning that no sample was usable; arguments as of :func:`warnings_of`."""
    why = [f"in {count(stepped, 'sample')} the clock did not move forward"] if stepped else []
    if after.throttled_by:
        why.append(f"the device was throttled ({', '.join(after.throttled_by)})")
    advice = f"no sample was usable: {' and '.join(why)}; nothing was measured"
    return MeasurementWarning(kind=WarningKind.TOO_FEW_SAMPLES, advice=advice)


def uneven_advice(latency: Latency) -> str | None:
    """Return the warning that some calls take much longer than most; None if calls are even."""
    ratio = latency.uneven_ratio
    if ratio is None:
        return None
    other = latency.reference or "the copy"
    which, than = ("its calls", other) if ratio > 1 else (f"the calls of {other}", "its own")
    return (
        f"some of {which} take much longer than most: relative to {than}, their mean is "
        f"{max(ratio, 1 / ratio):.2f} times their low quantile, so means are reported; look for "
        "calls that do the work of others"
    )


_Found = Iterator[tuple[WarningKind, str]]


def _of_samples(latency: Latency, budget: Budget, left_over: float) -> _Found:
    """Yield what the samples themselves show."""
    epochs = len(latency.process_of_epoch)
    if not latency.is_valid and not left_over:
        yield (
            WarningKind.FASTER_THAN_COPY,
            f"{latency.ceiling_ratio:.2f} times as fast as a copy of the bytes it must move: "
            "invalid; look for work that is not done, or not waited for",
        )
    if epochs < budget.min_epochs:
        yield (
            WarningKind.TOO_FEW_SAMPLES,
            f"{epochs} of the {budget.min_epochs} epochs that an interval needs were sampled in "
            f"{budget.limit_s:g} s; give the case more time",
        )
    elif not latency.converged:
        yield (
            WarningKind.NOT_CONVERGED,
            f"the interval is wider than ±{budget.target_ratio:.1%} after "
            f"{count(epochs, 'epoch')}; give the case more time or more processes, or stop other "
            "work on the machine",
        )
    if advice := uneven_advice(latency):
        yield WarningKind.UNEVEN, advice
    if epochs < 4:  # each half needs two for an interval
        return
    by_role = {arm.role: epoch_values(arm, cpu=latency.clock.is_cpu) for arm in latency.arms}
    values, reference = by_role[ArmRole.SUBJECT], by_role.get(ArmRole.REFERENCE)
    values = ratios(values, reference) if reference else values
    early, late = estimate(values[: epochs // 2]), estimate(values[epochs // 2 :])
    low, high = sorted((early, late), key=lambda half: half.value)
    if high.value >= _CHANGED * low.value and low.high < high.low:
        relative = "relative to the reference" if reference else "without a reference"
        yield (
            WarningKind.CHANGED_SPEED,
            f"it took {late.value / early.value:.2f} times as long in the later epochs as in the "
            f"earlier ones, {relative}; it warms up late or caches results: check which",
        )


def _of_clock(latency: Latency, wall_s: float, stepped: int, empty_s: float) -> _Found:
    """Yield what disturbs or limits the clock."""
    before, after = latency.before or DeviceState(), latency.after or DeviceState()
    subject, per_call_s = latency.arms[0], latency.per_call_s.value
    busy = stolen = 0.0
    if latency.clock is Clock.THREAD_CPU and subject.cpu_s:
        busy = median_estimate(epoch_values(subject, cpu=False)).value / per_call_s
    if before.steal_s is not None and after.steal_s is not None and wall_s:
        stolen = (after.steal_s - before.steal_s) / wall_s
    if busy > _BUSY:
        yield (
            WarningKind.NOISY,
            f"wall time is {busy:.2f} times CPU time: another process used the core, so the CPU "
            "time is reported",
        )
    elif stolen > _STOLEN:
        yield (
            WarningKind.NOISY,
            f"the hypervisor gave {percent_text(stolen)} of a CPU's time to other machines; "
            "compare the ratio instead of the time, or measure on another machine",
        )
    sample_s = median(subject.wall_s) * subject.calls_per_sample
    step_s = latency.resolution_s or 0.0
    if step_s > _COARSE * sample_s:
        yield (
            WarningKind.TIMER_TOO_COARSE,
            f"the clock moves in steps of {seconds_text(step_s)}, "
            f"{percent_text(step_s / sample_s)} of a sample; compare such short calls by "
            "--instructions or in a CUDA graph",
        )
    elif empty_s > _EMPTY * sample_s:
        yield (
            WarningKind.TIMER_TOO_COARSE,
            f"the clock shows {seconds_text(empty_s)} where nothing is done, "
            f"{percent_text(empty_s / sample_s)} of a sample; they are not subtracted and bring "
            "ratios nearer to 1; measure a larger shape",
        )
    elif latency.clock is not Clock.CUDA_EVENT and per_call_s < 10 * _LOOP_S:
        yield (
            WarningKind.TIMER_TOO_COARSE,
            f"a call takes {seconds_text(per_call_s)}, of which the loop around it is about "
            f"{seconds_text(_LOOP_S)}; measure a larger shape",
        )
    if stepped:
        yield (
            WarningKind.CLOCK_STEPPED,
            f"in {count(stepped, 'sample')} the clock did not move forward; they were "
            "dropped; check whether something sets the machine's time",
        )


def _of_machine(latency: Latency, left_over: float) -> _Found:
    """Yield what the system, the device and other threads did."""
    before, after = latency.before or DeviceState(), latency.after or DeviceState()
    faults, dropped = latency.minor_faults_ratio, latency.throttled_epochs
    if faults is not None and faults >= 1:
        yield (
            WarningKind.PAGE_FAULTS,
            f"{count(round(faults), 'page fault')} per call: the time includes the system's work "
            "on them; use glibc, or compare only with times measured in the same way",
        )
    reasons = sorted({*(before.throttled_by or ()), *(after.throttled_by or ())})
    if dropped or reasons:
        effect = f"{count(dropped, 'epoch')} were dropped because " if dropped else ""
        why = f" ({', '.join(reasons)})" if reasons else ""
        yield (
            WarningKind.THROTTLED,
            f"{effect}the device was throttled{why}; let it cool, or compare the ratio alone",
        )
    if after.on_battery:
        yield WarningKind.POWER_SAVING, "the machine runs on battery; plug it in"
    elif after.governor in _SLOW_GOVERNORS:
        yield (
            WarningKind.POWER_SAVING,
            f"the CPU's frequency governor is {after.governor!r}; set it to performance, or "
            "compare only times measured under it",
        )
    if left_over:
        yield (
            WarningKind.OTHER_THREADS,
            f"after it returned, other threads computed for {left_over:.1f} times its own CPU "
            "time: invalid. It leaves work to threads, or has raised the number of threads above "
            "the 1 of this case; have it wait for its threads and leave their number alone",
        )
    elif latency.others_ratio:
        yield (
            WarningKind.OTHER_THREADS,
            f"{percent_text(latency.others_ratio)} of its CPU time is spent in other threads; the "
            "time is the sum over all threads, without the time that one waits for another",
        )
    if after.other_processes:
        processes = count(after.other_processes, "other process", "other processes")
        yield (
            WarningKind.SHARED_GPU,
            f"the GPU is shared with {processes}; measure when no other uses it",
        )
    launch_s = latency.launch_s or 0.0
    if launch_s > latency.per_call_s.value:
        yield (
            WarningKind.LAUNCH_BOUND,
            f"the host takes {seconds_text(launch_s)} to issue what the device does in "
            f"{seconds_text(latency.per_call_s.value)}; in a model the host's time counts, unless "
            "the call is replayed from a graph",
        )
