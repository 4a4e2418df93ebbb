"""Warnings about a latency: each says what was measured and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
_LOOP_S = 30e-9  # of the loop around the calls, measured: 20 to 40 ns per call
_SLOW_GOVERNORS = {"powersave", "conservative"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the warnings about a latency are derived from."""

    latency: Latency
    budget: Budget
    before: DeviceState
    """Of the device, before the samples."""
    after: DeviceState
    """Of the device, after them."""
    wall_s: float
    """Between the two."""
    stepped: int
    """Samples that were dropped because the clock did not move forward in them."""
    left_over: float = 0.0
    """CPU time of other threads after some calls, over that of the calls."""

    @property
    def epochs(self) -> int:
        return len(self.latency.process_of_epoch)

    def values(self, role: ArmRole, *, cpu: bool) -> list[float] | None:
        """Return the value of each epoch of an arm, by CPU or wall clock."""
        arms = (arm for arm in self.latency.arms if arm.role is role)
        return next((epoch_values(arm, cpu=cpu) for arm in arms), None)


def warnings_of(seen: Seen) -> tuple[MeasurementWarning, ...]:
    """Return the warnings about a latency."""
    advices = ((kind, advice_on(seen)) for kind, advice_on in _WARNINGS)
    return tuple(MeasurementWarning(kind=kind, advice=advice) for kind, advice in advices if advice)


def nothing_measured(after: DeviceState, stepped: int) -> MeasurementWarning:
    """Return the warning that no sample was usable; arguments as in :class:`Seen`."""
    why = [f"in {count(stepped, 'sample')} the clock did not move forward"] if stepped else []
    if after.throttled_by:
        why.append(f"the device was throttled ({', '.join(after.throttled_by)})")
    advice = f"no sample was usable: {' and '.join(why)}; nothing was measured"
    return MeasurementWarning(kind=WarningKind.TOO_FEW_SAMPLES, advice=advice)


def _too_few(seen: Seen) -> str | None:
    if seen.epochs >= seen.budget.min_epochs:
        return None
    return (
        f"{seen.epochs} of the {seen.budget.min_epochs} epochs that an interval needs were "
        f"sampled in {seen.budget.limit_s:g} s; give the case more time"
    )


def _wide(seen: Seen) -> str | None:
    if seen.latency.converged or _too_few(seen):
        return None
    return (
        f"the interval is wider than ±{seen.budget.target_ratio:.1%} after "
        f"{count(seen.epochs, 'epoch')}; give the case more time or more processes, or stop other "
        "work on the machine"
    )


def _noisy(seen: Seen) -> str | None:
    subject = seen.latency.arms[0]
    if seen.latency.clock is Clock.THREAD_CPU and subject.cpu_s:
        busy = median_estimate(epoch_values(subject, cpu=False)).value
        if busy > _BUSY * seen.latency.per_call_s.value:
            return (
                f"wall time is {busy / seen.latency.per_call_s.value:.2f} times CPU time: "
                "another process used the core, so the CPU time is reported"
            )
    if seen.before.steal_s is None or seen.after.steal_s is None or not seen.wall_s:
        return None
    stolen = (seen.after.steal_s - seen.before.steal_s) / seen.wall_s
    if stolen <= _STOLEN:
        return None
    return (
        f"the hypervisor gave {percent_text(stolen)} of a CPU's time to other machines; compare "
        "the ratio instead of the time, or measure on another machine"
    )


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


def _changed(seen: Seen) -> str | None:
    if seen.epochs < 4:  # each half needs two for an interval
        return None
    cpu = seen.latency.clock.is_cpu
    subject = epoch_values(seen.latency.arms[0], cpu=cpu)
    reference = seen.values(ArmRole.REFERENCE, cpu=cpu)
    values = ratios(subject, reference) if reference else subject
    middle = len(values) // 2
    early, late = estimate(values[:middle]), estimate(values[middle:])
    low, high = sorted((early, late), key=lambda half: half.value)
    if high.value < _CHANGED * low.value or not low.high < high.low:
        return None
    relative = "relative to the reference" if reference else "without a reference to compare with"
    return (
        f"it took {late.value / early.value:.2f} times as long in the later epochs as in the "
        f"earlier ones, {relative}; it warms up late or caches results: check which"
    )


def _coarse(seen: Seen) -> str | None:
    subject = seen.latency.arms[0]
    sample_s = median(subject.wall_s) * subject.calls_per_sample
    step_s = seen.latency.resolution_s or 0.0
    if step_s > _COARSE * sample_s:
        return (
            f"the clock moves in steps of {seconds_text(step_s)}, "
            f"{percent_text(step_s / sample_s)} of a sample; compare such short calls by "
            "--instructions or in a CUDA graph"
        )
    per_call_s = seen.latency.per_call_s.value
    if seen.latency.clock is not Clock.CUDA_EVENT and per_call_s < 10 * _LOOP_S:
        return (
            f"a call takes {seconds_text(per_call_s)}, of which the loop around it is about "
            f"{seconds_text(_LOOP_S)}; measure a larger shape"
        )
    return None


def _stepped(seen: Seen) -> str | None:
    if not seen.stepped:
        return None
    return (
        f"in {count(seen.stepped, 'sample')} the clock did not move forward; they were dropped; "
        "check whether something sets the machine's time"
    )


def _faults(seen: Seen) -> str | None:
    faults = seen.latency.minor_faults_ratio
    if faults is None or faults < 1:
        return None
    return (
        f"{count(round(faults), 'page fault')} per call: the time includes the system's work on "
        "them; use glibc, or compare only with times measured in the same way"
    )


def _too_fast(seen: Seen) -> str | None:
    if seen.latency.is_valid or seen.left_over:
        return None
    return (
        f"{seen.latency.ceiling_ratio:.2f} times as fast as a copy of the bytes it must move: "
        "invalid; look for work that is not done, or not waited for"
    )


def _throttled(seen: Seen) -> str | None:
    reasons = sorted({*(seen.before.throttled_by or ()), *(seen.after.throttled_by or ())})
    if not seen.latency.throttled_epochs and not reasons:
        return None
    why = f" ({', '.join(reasons)})" if reasons else ""
    dropped = seen.latency.throttled_epochs
    effect = f"{count(dropped, 'epoch')} were dropped because " if dropped else ""
    return f"{effect}the device was throttled{why}; let it cool, or compare the ratio alone"


def _saving(seen: Seen) -> str | None:
    if seen.after.on_battery:
        return "the machine runs on battery; plug it in"
    if seen.after.governor not in _SLOW_GOVERNORS:
        return None
    return (
        f"the CPU's frequency governor is {seen.after.governor!r}; set it to performance, or "
        "compare only times measured under it"
    )


def _other_threads(seen: Seen) -> str | None:
    if seen.left_over:
        return (
            f"after it returned, other threads computed for {seen.left_over:.1f} times its own CPU "
            "time: invalid. It leaves work to threads, or has raised the number of threads above "
            "the 1 of this case; have it wait for its threads and leave their number alone"
        )
    if not seen.latency.others_ratio:
        return None
    advice = (
        f"{percent_text(seen.latency.others_ratio)} of its CPU time is spent in other threads; the "
        "time is the sum over all threads, without the time that one waits for another"
    )
    subject, reference = (
        seen.values(role, cpu=False) for role in (ArmRole.SUBJECT, ArmRole.REFERENCE)
    )
    if not (subject and reference):
        return advice
    by_wall = estimate(ratios(subject, reference)).value
    return f"{advice}: by the wall clock it takes {by_wall:.2f} times as long as the reference"


def _shared(seen: Seen) -> str | None:
    others = seen.after.other_processes
    if not others:
        return None
    processes = count(others, "other process", "other processes")
    return f"the GPU is shared with {processes}; measure when no other uses it"


def _launch_bound(seen: Seen) -> str | None:
    launch_s = seen.latency.launch_s
    if launch_s is None or launch_s <= seen.latency.per_call_s.value:
        return None
    return (
        f"the host takes {seconds_text(launch_s)} to issue what the device does in "
        f"{seconds_text(seen.latency.per_call_s.value)}; in a model the host's time counts, unless "
        "the call is replayed from a graph"
    )


_WARNINGS: tuple[tuple[WarningKind, Callable[[Seen], str | None]], ...] = (
    (WarningKind.FASTER_THAN_COPY, _too_fast),
    (WarningKind.TOO_FEW_SAMPLES, _too_few),
    (WarningKind.NOT_CONVERGED, _wide),
    (WarningKind.UNEVEN, lambda seen: uneven_advice(seen.latency)),
    (WarningKind.CHANGED_SPEED, _changed),
    (WarningKind.NOISY, _noisy),
    (WarningKind.TIMER_TOO_COARSE, _coarse),
    (WarningKind.CLOCK_STEPPED, _stepped),
    (WarningKind.PAGE_FAULTS, _faults),
    (WarningKind.THROTTLED, _throttled),
    (WarningKind.POWER_SAVING, _saving),
    (WarningKind.OTHER_THREADS, _other_threads),
    (WarningKind.SHARED_GPU, _shared),
    (WarningKind.LAUNCH_BOUND, _launch_bound),
)
