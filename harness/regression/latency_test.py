"""Latency against a stored baseline: screen every case, then have the suspects measured again.

A case is judged by the logarithm of its time over the reference's, one value a process: the epochs
of one process share where code and heap lie, and tell little about the next process. Two stages,
since a single look at a thousand unchanged cases suspects twenty of them: a suspect fails only if
every one of several fresh processes is beyond all that the baseline has seen, and they moved by
more than a least effect, and by clearly more than they differ among themselves: on a machine that
is busier than it was for the baseline all may be slower, and no two alike. By a noisy baseline
a case has to move far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log, log1p, sqrt
from statistics import median

from harness.measure.sample_statistics import epoch_values, ratios, t_quantile
from harness.records import ArmRole, Case, Estimate, Latency, Record, WarningKind
from harness.regression.changes import ChangeKind
from harness.regression.findings import (
    Finding,
    count_of,
    inconclusive_latency,
    latency_finding,
    percent,
)
from harness.regression.noise import FAR, Noise, noise_of, spread_of

__all__ = [
    "BASELINE_PROCESSES",
    "CONFIRMING_PROCESSES",
    "Shift",
    "examine",
    "has_machine_changed",
    "is_everywhere",
    "is_steady",
    "latency_change",
    "process_ratios",
]

BASELINE_PROCESSES = 10  # ours: their maximum is what a confirmation has to be beyond
CONFIRMING_PROCESSES = 5  # ours: a sixth costs as much, and decides nothing more
_SUSPECT = log1p(0.03)  # ours: suspects one unchanged case in 50 or fewer, each costs 5 processes
_SPREADS = 2.0  # ours: with it, so does a case whose processes spread by 2 or 3 %
_LEAST_EFFECT = log1p(0.04)  # ours: less is within what a new place of code and heap can do
# ours, of the fresh processes: on a machine loaded since its baseline, unchanged cases of which all
# five lay beyond it had moved by less than 1; cases 10 % slower move by 4.5 or more
_AGREEING_SPREADS = 2.0
_CLEAR_SPREADS = 3.0  # ours: as far as one in fifty unchanged cases that spread by 1 % or more
_CHANGED_SHARE = 0.1  # ours: five times as many as chance makes


@dataclass(frozen=True)
class Shift:
    """How a case's ratio to the reference moved."""

    case: Case
    before: tuple[float, ...]
    """The ratio in each of the baseline's processes."""
    after: tuple[float, ...]
    """In each of the run's."""
    reference: str
    """What it is taken to."""
    unsteady: str | None = None
    """Why it is told and never judged; None if it is judged."""
    noise: Noise | None = None
    """Why it is judged only if it moved far."""

    @property
    def is_suspect(self) -> bool:
        return self.is_beyond(_SPREADS)

    def is_beyond(self, spreads: float) -> bool:
        """Whether it moved by more than so many spreads, and than a least worth a second look."""
        least = max(_SUSPECT, spreads * self.spread, self.noise.least if self.noise else 0.0)
        return abs(_moved(self.before, self.after)) > least

    @property
    def is_far(self) -> bool:
        """Whether it moved by more than a change of the machine explains."""
        return self.is_suspect and abs(_moved(self.before, self.after)) > FAR

    @cached_property
    def spread(self) -> float:
        """Between the baseline's processes."""
        return spread_of(self.before)

    def estimate(self, after: Sequence[float]) -> Estimate:
        """Time now over time before, and its interval, by Welch's t of the logarithms.

        One process now is taken to spread as those of the baseline did.
        """
        moved = _moved(self.before, after)
        if len(self.before) < 2:
            return Estimate(value=exp(moved), low=0.0, high=inf)
        degrees = len(self.before) - 1
        first = self.spread**2 / len(self.before)
        second = self.spread**2
        if len(after) > 1:
            second = spread_of(after) ** 2 / len(after)
            degrees = _welch_degrees((first, degrees), (second, len(after) - 1))
        half = t_quantile(degrees) * sqrt(first + second)
        return Estimate(value=exp(moved), low=exp(moved - half), high=exp(moved + half))


def process_ratios(latency: Latency) -> tuple[float, ...]:
    """Time over the reference's in each process, from the raw samples.

    Without samples there is the one figure over all processes. Empty where there is no reference,
    or where a figure is no positive number.
    """
    if latency.reference_ratio is None:
        return ()
    if not latency.arms:
        value = latency.reference_ratio.value
        return (value,) if 0 < value < inf else ()
    arms = {each.role: each for each in latency.arms}
    cpu = latency.clock.is_cpu
    by_process: dict[int, list[float]] = {}
    try:
        subject = epoch_values(arms[ArmRole.SUBJECT], cpu=cpu)
        reference = epoch_values(arms[ArmRole.REFERENCE], cpu=cpu)
        if not all(0 < each < inf for each in (*subject, *reference)):
            return ()
        found = ratios(subject, reference)
        for process, ratio in zip(latency.process_of_epoch, found, strict=True):
            by_process.setdefault(process, []).append(log(ratio))
    except (KeyError, ValueError):  # samples that do not fit together: a file made by hand
        return ()
    return tuple(exp(median(each)) for each in by_process.values())


def examine(before: Record, after: Record, least_processes: int) -> Shift | Finding | None:
    """Return how a case's latency moved, why that cannot be told, or None if it was not timed.

    Both records are of one machine with the same software.
    """
    old, new = before.latency, after.latency
    if old is None:
        return None
    if new is None:
        return inconclusive_latency("it was timed before, and not now")
    if why := _why_incomparable(old, new):
        return latency_finding(ChangeKind.NOT_COMPARABLE, why, None)
    first, second = process_ratios(old), process_ratios(new)
    for whose, figures in (("baseline", first), ("run", second)):
        if not figures:
            return inconclusive_latency(f"the {whose} has samples that are not positive numbers")
    if len(first) < least_processes:
        return inconclusive_latency(
            f"the baseline timed it in {count_of(len(first))}, and {least_processes} are needed to "
            "know how processes differ"
        )
    stepped = [whose for whose, each in (("run", after), ("baseline", before)) if _stepped(each)]
    return Shift(
        before.case,
        first,
        second,
        str(new.reference),
        f"the clock jumped while the {stepped[0]} was timed" if stepped else None,
        noise_of(before, spread_of(first)),
    )


def is_steady(baseline: Record) -> bool:
    """Whether small changes of a case that was timed can be judged by this baseline."""
    assert baseline.latency is not None  # it was timed
    spread = spread_of(process_ratios(baseline.latency))
    return noise_of(baseline, spread) is None and not _stepped(baseline)


def has_machine_changed(shifts: Sequence[Shift]) -> bool:
    """Whether more cases moved than a change of one implementation explains.

    A change of the machine moves those of all, as one of code that they share does; and clearly,
    since two spreads are often chance.
    """
    moved = [each.case for each in shifts if each.is_beyond(_CLEAR_SPREADS)]
    # what is noisy and did not move far may have moved as well
    told = [each.case for each in shifts if not each.noise or each.is_suspect]
    return is_everywhere(moved, told)


def is_everywhere(moved: Sequence[Case], cases: Sequence[Case]) -> bool:
    """Whether more of some cases moved than those of one implementation.

    The implementation that moved most is left out, and more than a tenth of the other cases must
    have moved. One alone may be chance.
    """
    if not moved:
        return False
    ((most, count),) = Counter(each.implementation for each in moved).most_common(1)
    others = sum(each.implementation != most for each in cases)
    return len(moved) - count > max(1.0, _CHANGED_SHARE * others)


def latency_change(
    shift: Shift, confirmed: Sequence[float] | str | None, *, has_machine_changed: bool = False
) -> Finding:
    """Return what became of a case's latency.

    Args:
        shift: as it was found at first sight.
        confirmed: of a suspect, the ratio to the reference in each of some fresh processes, or why
            there is none; None for a case that is no suspect.
        has_machine_changed: or may have; then only what moved far is judged.
    """
    first_sight = _words(shift, shift.after)
    if shift.noise and not shift.is_suspect:
        return inconclusive_latency(
            f"{first_sight}; {shift.noise.reason}", shift.estimate(shift.after)
        )
    if confirmed is None and len(shift.before) < 2:
        why = f"{first_sight}; one process before does not tell what processes differ by"
        return inconclusive_latency(why, shift.estimate(shift.after))
    if confirmed is None:
        text = f"{first_sight}, within what processes differ by"
        return latency_finding(ChangeKind.UNCHANGED, text, shift.estimate(shift.after))
    if isinstance(confirmed, str):
        return inconclusive_latency(f"{first_sight}; {confirmed}", shift.estimate(shift.after))
    if len(confirmed) < CONFIRMING_PROCESSES or not all(0 < each < inf for each in confirmed):
        why = f"{count_of(len(confirmed))} of {CONFIRMING_PROCESSES} could time it to confirm it"
        return inconclusive_latency(f"{first_sight}; {why}", shift.estimate(shift.after))
    slower = _moved(shift.before, shift.after) > 0
    extreme = max(shift.before) if slower else min(shift.before)
    beyond = min(confirmed) > extreme if slower else max(confirmed) < extreme
    moved = _moved(shift.before, confirmed)
    among = f"{min(confirmed):.3f} to {max(confirmed):.3f} in {len(confirmed)} fresh processes"
    least = max(_LEAST_EFFECT, _AGREEING_SPREADS * spread_of(confirmed))
    if shift.noise:
        least = max(least, shift.noise.least)
    if has_machine_changed:
        least = max(least, FAR)
    if not (beyond and (moved if slower else -moved) > least):
        text = f"{first_sight}; not confirmed: {percent(moved)}, {among}"
        return inconclusive_latency(text, shift.estimate(shift.after))
    kind = ChangeKind.SLOWER if slower else ChangeKind.FASTER
    text = (
        f"{_words(shift, confirmed)} ({among}, beyond all {len(shift.before)} of the "
        f"baseline, of which the {'slowest' if slower else 'fastest'} took {extreme:.3f})"
    )
    return latency_finding(kind, text, shift.estimate(confirmed))


def _why_incomparable(old: Latency, new: Latency) -> str | None:
    """Why two latencies of one machine do not measure the same thing."""
    if old.timer != new.timer:
        return f"timed by {old.timer} before and by {new.timer} now, and timers are not mixed"
    for when, latency in (("before", old), ("now", new)):
        if not latency.is_valid:
            return f"faster {when} than its bytes can be copied, which is not to be believed"
        if latency.reference_ratio is None:
            return f"no reference was timed beside it {when}, and times alone are not compared"
    for name in ("reference", "clock", "cache", "allocation"):
        first, second = getattr(old, name), getattr(new, name)
        if first != second:
            return f"its {name} was {first} before and is {second} now"
    return None


def _stepped(record: Record) -> bool:
    return any(each.kind is WarningKind.CLOCK_STEPPED for each in record.warnings)


def _welch_degrees(*parts: tuple[float, int]) -> int:
    """Degrees of freedom of a sum of squared errors, each with its own (Satterthwaite 1946)."""
    total = sum(error for error, _ in parts)
    if not total:
        return sum(degrees for _, degrees in parts)
    return round(total**2 / sum(error**2 / degrees for error, degrees in parts))


def _moved(before: Sequence[float], after: Sequence[float]) -> float:
    """By how much the middle of some ratios moved, as a logarithm; positive is slower."""
    return log(median(after) / median(before))


def _words(shift: Shift, after: Sequence[float]) -> str:
    return (
        f"{percent(_moved(shift.before, after))}, {median(shift.before):.3f} of the time of "
        f"{shift.reference} before and {median(after):.3f} now"
    )
