"""Latency against a stored baseline: screen every case, then time the suspects again.

A case is judged by the logarithm of its time over the reference's time, one value per process.
Epochs of one process share the addresses of code and heap, so they cannot show how much processes
differ.

The test has two stages, because a single look at a thousand unchanged cases suspects about twenty.
A suspect fails only if all of several fresh processes lie beyond every process of the baseline, and
their median moved by more than a least effect and by clearly more than they differ among
themselves. The last condition matters on a machine that is busier than it was for the baseline: all
processes may be slower there, but by different amounts. With a noisy baseline a case has to move
far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log, log1p, sqrt
from statistics import median

from harness.measure.sample_statistics import centre, epoch_values, median_ratio, ratios, t_quantile
from harness.records import ArmRole, Case, Estimate, Latency, Record, WarningKind
from harness.records.speed import speed_text
from harness.records.text import count
from harness.regression.agreement import rules_out, speeds_text, why_too_few
from harness.regression.changes import ChangeKind, Finding, inconclusive_latency, latency_finding
from harness.regression.noise import FAR, Noise, noise_of, spread_of
from harness.regression.text import slower_text

__all__ = [
    "BASELINE_PROCESSES",
    "Shift",
    "examine",
    "has_machine_changed",
    "is_everywhere",
    "is_steady",
    "latency_change",
    "process_ratios",
    "why_not_comparable",
]

# These were simulated over processes recorded on a shared machine, with five fresh ones. Of 1000
# checks of unchanged cases 24 were suspects and 0.03 failed; of short calls 5 % slower 97 % failed.
BASELINE_PROCESSES = 10  # a confirmation has to exceed their maximum
_SUSPECT = log1p(0.03)
_LEAST_EFFECT = log1p(0.04)
_SPREADS = 2.0  # of the baseline's processes, to suspect a case that spreads by more than 1.5 %
# Of the fresh processes. Measured on a machine that was loaded after its baseline: unchanged cases
# with all five processes beyond it moved by less than 1 spread; cases 10 % slower by 4.5 or more.
_AGREEING_SPREADS = 2.0
_CLEAR_SPREADS = 3.0  # exceeded by one unchanged case in fifty among those that spread by over 1 %
_CHANGED_SHARE = 0.1  # trade-off: five times the share that exceeds _CLEAR_SPREADS by chance


@dataclass(frozen=True)
class Shift:
    """How much the ratio of a case to the reference moved."""

    case: Case
    before: tuple[float, ...]
    """The ratio in each process of the baseline."""
    after: tuple[float, ...]
    """The ratio in each process of the run."""
    reference: str
    unsteady: str | None = None
    """Why the latency is shown but not judged; None if it is judged."""
    noise: Noise | None = None
    """Why the latency is judged only if it moved far; None if small changes are judged."""

    @property
    def is_suspect(self) -> bool:
        return self.is_beyond(_SPREADS)

    def is_beyond(self, spreads: float) -> bool:
        """Whether it moved by more than ``spreads`` and by more than the least suspected effect."""
        least = max(_SUSPECT, spreads * self.spread, self.noise.least if self.noise else 0.0)
        return abs(_moved(self.before, self.after)) > least

    @property
    def is_far(self) -> bool:
        """Whether it moved by more than a change of the machine explains."""
        return self.is_suspect and abs(_moved(self.before, self.after)) > FAR

    @cached_property
    def spread(self) -> float:
        """Standard deviation between the baseline's processes, as a logarithm."""
        return spread_of(self.before)

    def is_refuted(self, confirmed: Sequence[float]) -> bool:
        """Whether these fresh processes rule out that all five confirm the suspicion."""
        is_slower = _moved(self.before, self.after) > 0
        return rules_out(
            confirmed,
            each=max(self.before) if is_slower else min(self.before),
            middle=median(self.before) * exp(_LEAST_EFFECT if is_slower else -_LEAST_EFFECT),
            is_slower=is_slower,
        )

    def estimate(self, after: Sequence[float]) -> Estimate:
        """Return time now over time before and its interval, by Welch's t of the logarithms.

        Standard errors are those of medians, which are larger than those of means. A single process
        now is assumed to spread as the baseline's processes did.
        """
        moved = _moved(self.before, after)
        if len(self.before) < 2:
            return Estimate(value=exp(moved), low=0.0, high=inf)
        degrees = len(self.before) - 1
        first = _squared_error(self.spread, len(self.before))
        second = self.spread**2
        if len(after) > 1:
            second = _squared_error(spread_of(after), len(after))
            degrees = _welch_degrees((first, degrees), (second, len(after) - 1))
        half = t_quantile(degrees) * sqrt(first + second)
        return Estimate(value=exp(moved), low=exp(moved - half), high=exp(moved + half))


def process_ratios(latency: Latency | None) -> tuple[float, ...]:
    """Return time over the reference's time in each process, from the raw samples.

    Without samples, return the one ratio over all processes. Empty if the case was not timed, if
    there is no reference, or if a sample is not a positive number.
    """
    if latency is None or latency.reference_ratio is None:
        return ()
    if not latency.arms:
        value = latency.reference_ratio.value
        return (value,) if 0 < value < inf else ()
    arms = {arm.role: arm for arm in latency.arms}
    cpu, mean = latency.clock.is_cpu, latency.uneven_ratio is not None
    by_process: dict[int, list[float]] = {}
    try:
        subject = epoch_values(arms[ArmRole.SUBJECT], cpu=cpu, mean=mean)
        reference = epoch_values(arms[ArmRole.REFERENCE], cpu=cpu, mean=mean)
        if not all(0 < time_s < inf for time_s in (*subject, *reference)):
            return ()
        epochs = zip(latency.process_of_epoch, ratios(subject, reference), strict=True)
        for process, ratio in epochs:
            by_process.setdefault(process, []).append(ratio)
    except (KeyError, ValueError):  # samples and epochs that do not match: a file edited by hand
        return ()
    return tuple(centre(each, mean=mean) for each in by_process.values())


def examine(before: Record, after: Record, least_processes: int) -> Shift | Finding | None:
    """Return how much the latency of a case moved, or the finding that it cannot be judged.

    None if the case was not timed before. Both records must be of one machine with the same
    software.
    """
    old, new = before.latency, after.latency
    if old is None:
        return None
    if new is None:
        return inconclusive_latency("it was timed before, but not now")
    if why := why_not_comparable(old, new):
        return latency_finding(ChangeKind.NOT_COMPARABLE, why)
    first, second = process_ratios(old), process_ratios(new)
    for name, process_values in (("baseline", first), ("run", second)):
        if not process_values:
            return inconclusive_latency(f"the {name} has samples that are not positive numbers")
    if len(first) < least_processes:
        return inconclusive_latency(
            f"the baseline timed it in {count(len(first), 'process', 'processes')}, and "
            f"{least_processes} are needed to know how much processes differ"
        )
    stepped = [name for name, record in (("run", after), ("baseline", before)) if _stepped(record)]
    return Shift(
        before.case,
        first,
        second,
        str(new.reference),
        f"the clock jumped while the {stepped[0]} was timed" if stepped else None,
        noise_of(before, spread_of(first)),
    )


def is_steady(baseline: Record) -> bool:
    """Whether this baseline can judge small changes of a case that it timed."""
    spread = spread_of(process_ratios(baseline.latency))
    return noise_of(baseline, spread) is None and not _stepped(baseline)


def has_machine_changed(shifts: Sequence[Shift]) -> bool:
    """Whether more cases moved than a change of one implementation explains.

    A change of the machine, or of code that implementations share, moves the cases of all. Only
    clear moves count, since a move of two spreads is often chance.
    """
    moved = [shift.case for shift in shifts if shift.is_beyond(_CLEAR_SPREADS)]
    # a noisy case that did not move far may have moved as well, so it is not counted at all
    known = [shift.case for shift in shifts if not shift.noise or shift.is_suspect]
    return is_everywhere(moved, known)


def is_everywhere(moved: Sequence[Case], cases: Sequence[Case]) -> bool:
    """Whether cases of more than one implementation moved.

    The implementation with the most moved cases is left out. Of the other cases, more than a tenth
    and at least two must have moved, since one may be chance.
    """
    if not moved:
        return False
    ((most, number),) = Counter(case.implementation for case in moved).most_common(1)
    others = sum(case.implementation != most for case in cases)
    return len(moved) - number > max(1.0, _CHANGED_SHARE * others)


def latency_change(
    shift: Shift, confirmed: Sequence[float] | str | None, *, has_machine_changed: bool = False
) -> Finding:
    """Return how the latency of a case changed.

    Args:
        shift: the result of the screening.
        confirmed: for a suspect, the ratio to the reference in each fresh process, or why there is
            none; None for a case that is not suspect.
        has_machine_changed: True if it may have; then only a case that moved far is judged.
    """
    screened = _shift_text(shift, shift.after)

    def inconclusive(why: str) -> Finding:
        return inconclusive_latency(f"{screened}; {why}", shift.estimate(shift.after))

    if shift.noise and not shift.is_suspect:
        return inconclusive(shift.noise.reason)
    if confirmed is None and len(shift.before) < 2:
        return inconclusive("one process before does not show how much processes differ")
    if confirmed is None:
        text = f"{screened}, within the differences between processes"
        return latency_finding(ChangeKind.UNCHANGED, text, shift.estimate(shift.after))
    if isinstance(confirmed, str):
        return inconclusive(confirmed)
    if not shift.is_refuted(confirmed) and (why := why_too_few(confirmed)):
        return inconclusive(why)
    slower = _moved(shift.before, shift.after) > 0
    extreme = max(shift.before) if slower else min(shift.before)
    beyond = min(confirmed) > extreme if slower else max(confirmed) < extreme
    moved = _moved(shift.before, confirmed)
    processes = count(len(confirmed), "fresh process", "fresh processes")
    among = f"{speeds_text(confirmed)} in {processes}"
    least = max(_LEAST_EFFECT, _AGREEING_SPREADS * spread_of(confirmed))
    if shift.noise:
        least = max(least, shift.noise.least)
    if has_machine_changed:
        least = max(least, FAR)
    if not (beyond and (moved if slower else -moved) > least):
        return inconclusive(f"not confirmed: {slower_text(moved)}, {among}")
    kind = ChangeKind.SLOWER if slower else ChangeKind.FASTER
    first = f"the {'slowest' if slower else 'fastest'} ran at {speed_text(1 / extreme, 3)}"
    text = (
        f"{_shift_text(shift, confirmed)} ({among}, beyond all {len(shift.before)} of the "
        f"baseline, of which {first})"
    )
    return latency_finding(kind, text, shift.estimate(confirmed))


def why_not_comparable(old: Latency, new: Latency) -> str | None:
    """Return why two latencies of one machine do not measure the same thing; None if they do."""
    if old.timer != new.timer:
        return f"timed by {old.timer} before and by {new.timer} now; timers are not mixed"
    for when, latency in (("before", old), ("now", new)):
        if not latency.is_valid:
            return f"not valid {when}: less time than a copy of its bytes takes"
        if latency.reference_ratio is None:
            return f"no reference was timed {when}, and times alone are not compared"
    for name in ("reference", "clock", "cache", "allocation"):
        first, second = getattr(old, name), getattr(new, name)
        if first != second:
            return f"its {name} was {first} before and is {second} now"
    return None


def _stepped(record: Record) -> bool:
    return any(warning.kind is WarningKind.CLOCK_STEPPED for warning in record.warnings)


def _squared_error(spread: float, number: int) -> float:
    """Return the squared standard error of the median of so many processes."""
    return (median_ratio(number) * spread) ** 2 / number


def _welch_degrees(*parts: tuple[float, int]) -> int:
    """Return the degrees of freedom of a sum of squared errors (Satterthwaite 1946).

    Each part is a squared error and its degrees of freedom.
    """
    total = sum(error for error, _ in parts)
    if not total:
        return sum(degrees for _, degrees in parts)
    return round(total**2 / sum(error**2 / degrees for error, degrees in parts))


def _moved(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the logarithm of how much the median ratio grew; positive is slower."""
    return log(median(after) / median(before))


def _shift_text(shift: Shift, after: Sequence[float]) -> str:
    before = median(shift.before)
    return (
        f"{slower_text(_moved(shift.before, after))}, {speed_text(1 / before, 3)} the speed of "
        f"{shift.reference} before and {speed_text(1 / median(after), 3)} now"
    )
