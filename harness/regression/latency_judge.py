"""Judge latencies: screen every case once, then time the suspects again in fresh processes.

Two gates share the rule and differ in their constants. ``check`` compares with a stored baseline:
a case is judged by the logarithm of its time over the reference's time, one value per process.
Epochs of one process share the addresses of code and heap, so they cannot show how much processes
differ. ``ab`` times base and head in turn in one process: what differs between processes is the
same for both, so their ratio varies ten times less, on a busy machine too. What favours one of the
two in every process, such as being imported first, is found by swapping their roles in some.

There are two stages, because a single look at a thousand unchanged cases suspects about twenty. A
suspect fails only if every one of several fresh processes lies beyond a limit, and their median
moved by more than a least effect and by clearly more than they differ among themselves. The last
condition matters on a machine that is busier than it was for the baseline: all processes may be
slower there, but by different amounts. Noise raises the threshold but takes no case out of the
gate: a case that became three times as slow has to fail on a noisy machine too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, fsum, inf, isfinite, log, log1p, sqrt
from statistics import fmean, median, stdev

from harness.measure import (
    LONG_CALL_S,
    centre,
    epoch_values,
    median_estimate,
    median_ratio,
    ratios,
    t_quantile,
)
from harness.records import ArmRole, Budget, Case, Estimate, Latency, Record, WarningKind
from harness.records.text import count, grouped, percent_text, speed_text
from harness.regression.changes import Change, ChangeKind, latency_change

# --- constants -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The constants of a gate. Moves are logarithms of ratios of times."""

    suspect: float
    """Least move at first sight that makes a case a suspect."""
    spreads: float
    """Least move at first sight in spreads of the case."""
    least: float
    """Least move of the median of the fresh processes that confirms a suspect."""
    least_in_each: float | None
    """Least move of every fresh process; None if it has to exceed every process of a baseline."""
    agreement: float
    """Least move of their median in standard deviations of the fresh processes."""


# Trade-offs between false failures and small changes; experiments/gates measures both.
AGAINST_BASELINE = Limits(
    suspect=log1p(0.03),
    spreads=2.0,  # to suspect a case whose processes spread by more than 1.5 %
    least=log1p(0.04),
    least_in_each=None,
    agreement=2.0,  # trade-off: a machine that is busier than its baseline moves all five a little
)
BASELINE_PROCESSES = 10  # of one recording; a confirmation has to exceed their maximum
CONFIRMING_PROCESSES = 5  # as in the simulations

# Trade-offs between false failures and small changes; experiments/gates measures both.
IN_TURN = Limits(
    suspect=log1p(0.01),  # half of the least effect that can fail
    # standard errors; trade-off: with more, a busy moment hides a slower case, and fresh processes
    # clear unchanged ones
    spreads=1.0,
    least=log1p(0.02),  # far beyond the error of a ratio to itself: experiments/timers
    # Base and head swap roles in two of five processes: a bias of a role moves those the other way.
    least_in_each=0.0,
    # three standard errors of the median
    agreement=3 * median_ratio(CONFIRMING_PROCESSES) / sqrt(CONFIRMING_PROCESSES),
)
LONG_IN_TURN = replace(IN_TURN, least=log1p(0.05))  # long calls differ more between processes
# Base and head are mostly one algorithm, so their calls are alike: experiments/estimates counts
# how many recorded measurements, each split in two halves, differ clearly and by more than 5 %.
UNEVEN_IN_TURN_RATIO = 1.05
# Six epochs, 0.1 s, decide most short calls. More are sampled where the interval, of about 2.5
# standard errors, is wider than the target: a short call that is 3 % slower, or a long one that is
# 5 % slower, is then at least three standard errors beyond what is suspected.
SCREENING_IN_TURN = Budget(
    target_ratio=0.015,
    long_target_ratio=0.025,
    min_epochs=6,
    max_epochs=24,
    limit_s=4.0,
    uneven_ratio=UNEVEN_IN_TURN_RATIO,
)

_CERTAIN = 2.0  # standard errors of the first look; one unchanged case in twenty lies beyond
_CLEAR_SPREADS = 3.0  # trade-off: few unchanged cases exceed it by chance
_CHANGED_SHARE = 0.1  # trade-off: far above the share that exceeds _CLEAR_SPREADS by chance
# standard deviation between processes; trade-off: beyond it, small changes are missed
NOISY_SPREAD = 0.03
FAR = log1p(0.5)  # trade-off: beyond what a machine busier than the baseline's moves ratios by
_NOISY_SPREADS = 4.0  # trade-off: few unchanged cases exceed it by chance
# Simulated by experiments/gates/recordings.py: with three recordings at most 0.01 % of unchanged
# cases fail, with one up to 18 %.
_BETWEEN_RECORDINGS = 4.0
ENOUGH_RECORDINGS = 3  # they show what disturbed one of them

_NOT_POSITIVE = "it has samples that are not positive numbers"
_CLOCK_JUMPED = "the clock jumped while it was timed"

# --- the first look ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far the latency of a case moved at first sight, and what would confirm it."""

    case: Case
    limits: Limits
    ratio: Estimate
    """Time now over time before; where there is a reference, of times relative to it."""
    spread: float
    """Standard deviation of the ratio's logarithm without a change: between the baseline's
    processes, or of the centre of the epochs in turn. Infinite if a single epoch hides it."""
    before: tuple[float, ...] = ()
    """The ratio to the reference in each process of the baseline; empty if timed in turn."""
    reference: str = ""
    """The implementation that times are relative to; empty if timed in turn with the base."""
    is_uneven: bool = False
    """Whether some calls take much longer than most, so that means are compared."""
    least: float = 0.0
    """How far it has to move in both stages, because of noise."""
    noise: str = ""
    """Why a small change would not show; empty if it would."""
    unsteady: str = ""
    """Why the latency is shown but not judged; empty if it is judged."""

    @property
    def moved(self) -> float:
        """The logarithm of the ratio: positive is slower."""
        return log(self.ratio.value)

    @property
    def is_suspect(self) -> bool:
        """Whether it is to be timed again."""
        return not self.unsteady and self.is_beyond(self.limits.spreads)

    def is_beyond(self, spreads: float) -> bool:
        """Whether it moved by more than ``spreads`` and by more than the least suspected effect."""
        # with a single epoch the spread is unknown: the fresh processes decide
        margin = spreads * self.spread if isfinite(self.spread) else self.limits.least
        return abs(self.moved) > max(self.limits.suspect, margin, self.least)

    @property
    def least_shown(self) -> float:
        """The least slowdown that can fail, as a logarithm."""
        spread = self.limits.spreads * self.spread if isfinite(self.spread) else 0.0
        slowest = log(max(self.before) / median(self.before)) if self.before else 0.0
        return max(self.limits.suspect, self.needed, spread, slowest)

    @property
    def needed(self) -> float:
        """How far the median of the fresh processes has to move."""
        return max(self.limits.least, self.least)

    @property
    def needed_in_each(self) -> float:
        """How far every fresh process has to move."""
        least = self.limits.least_in_each
        return max(self.moves_of(self.before)) if least is None else least

    def moves_of(self, fresh: Sequence[float]) -> list[float]:
        """Return how far processes moved in the direction of the first look, as logarithms."""
        level = median(self.before) if self.before else 1.0
        sign = 1 if self.moved > 0 else -1
        return [sign * log(ratio / level) for ratio in fresh]

    def is_refuted(self, fresh: Sequence[float]) -> bool:
        """Whether these fresh processes rule out that all five confirm the suspicion."""
        if not all(0 < ratio < inf for ratio in fresh):
            return False
        moves = self.moves_of(fresh)
        are_most_short = sum(move <= self.needed for move in moves) > CONFIRMING_PROCESSES // 2
        return are_most_short or any(move <= self.needed_in_each for move in moves)

    def text(self, moved: float) -> str:
        """Return a move in words."""
        if not self.reference:
            uneven = " on average, with uneven calls" if self.is_uneven else ""
            return f"{slower_text(moved)} than the base{uneven}"
        before = median(self.before)
        return (
            f"{slower_text(moved)}, {speed_text(1 / before, 3)} the speed of {self.reference} "
            f"before and {speed_text(exp(-moved) / before, 3)} now"
        )


Confirm = Callable[[Sequence[Shift]], Mapping[str, Sequence[float]] | str]
"""Times suspects again. Returns for each case's id the ratio to the reference in each fresh
process, up to the one that refutes it; or why that cannot be done."""


def screen_against_baseline(before: Record, after: Record) -> Shift | Change | None:
    """Return how far the latency of a case moved, or that it cannot be judged.

    None if the case was not timed before.
    """
    case, old, new = before.case, before.latency, after.latency
    if old is None:
        return None
    if new is None:
        return _inconclusive(case, "it was timed before, but not now")
    why = why_not_comparable(old, new)
    if before.environment != after.environment:
        why = "measured on another machine or with other software"
    if why:
        return latency_change(case, ChangeKind.NOT_COMPARABLE, why)
    first, second = process_ratios(old), process_ratios(new)
    if not (first and second):
        return _inconclusive(case, _NOT_POSITIVE)
    noise, least = noise_of(before, first)
    return Shift(
        case=case,
        limits=AGAINST_BASELINE,
        ratio=ratio_between(first, second),
        spread=spread_of(first),
        before=first,
        reference=str(new.reference),
        least=least,
        noise=noise,
        unsteady=_CLOCK_JUMPED if _stepped(before) or _stepped(after) else "",
    )


def screen_in_turn(record: Record) -> Shift | Change:
    """Return how far a case moved that was timed in turn with its base in one process.

    Without a usable ratio, return that it cannot be judged.
    """
    latency = record.latency
    if latency is None or latency.reference_ratio is None:
        why = [note.advice for note in record.warnings]
        if not record.status.is_measured:
            why = [record.reason]
        text = "; ".join(["it could not be timed in turn with the base", *why])
        return _inconclusive(record.case, text)
    ratio, epochs = latency.reference_ratio, len(latency.process_of_epoch)
    if not 0 < ratio.value < inf:
        return _inconclusive(record.case, _NOT_POSITIVE)
    # of the median of the epochs, or of their mean if calls are uneven
    error = log(ratio.high / ratio.value) / t_quantile(epochs - 1) if isfinite(ratio.high) else inf
    # a call so long that only large effects can be confirmed
    is_long = latency.per_call_s.value / ratio.value >= LONG_CALL_S
    limits = LONG_IN_TURN if is_long else IN_TURN
    noise, margin = "", _CERTAIN * error
    if not margin <= limits.least:
        known = f"known to within {_ratio_text(margin)}" if isfinite(margin) else "a single epoch"
        noise = f"noisy: {known}, so a change of {_ratio_text(limits.least)} would not show"
    return Shift(
        case=record.case,
        limits=limits,
        ratio=ratio,
        spread=error,
        is_uneven=latency.uneven_ratio is not None,
        noise=noise,
        unsteady=_CLOCK_JUMPED if _stepped(record) else "",
    )


def noise_of(baseline: Record, processes: Sequence[float]) -> tuple[str, float]:
    """Return why a baseline can judge only large changes of a case, and how large, as a logarithm.

    The reason is empty if it can judge small ones.

    Args:
        baseline: the record of a case that was timed.
        processes: the ratio to the reference in each of its processes.
    """
    latency = baseline.latency
    assert latency is not None  # it was timed
    spread = spread_of(processes)
    far = _NOISY_SPREADS * spread
    # these two disturbances may be alike in all processes of a recording and absent in the next one
    are_few = len(processes) < ENOUGH_RECORDINGS * BASELINE_PROCESSES
    warnings = {warning.kind: warning.advice for warning in baseline.warnings}
    if are_few and WarningKind.NOISY in warnings:
        return f"noisy in the baseline: {warnings[WarningKind.NOISY]}", max(FAR, far)
    faults = latency.minor_faults_ratio
    if are_few and faults is not None and not faults < 1:
        return f"noisy: {faults:.0f} page faults per call in the baseline", max(FAR, far)
    if spread > NOISY_SPREAD:
        return f"noisy: the baseline's processes spread by {percent_text(spread)}", far
    if not latency.converged:
        return "noisy: the baseline's interval is wider than its target", far
    return "", 0.0


def with_recordings(shifts: Sequence[Shift]) -> list[Shift]:
    """Return shifts that have to move further than recordings of a baseline differ.

    A case's own two or three recordings may agree by chance. So the difference is that of its own
    or the root mean square of all cases, whichever is larger.
    """
    own = {shift.case.id: between_recordings(shift.before) for shift in shifts}
    squares = [spread**2 for spread in own.values() if spread is not None]
    pooled = sqrt(fmean(squares)) if squares else 0.0

    def judged(shift: Shift) -> Shift:
        spread = own[shift.case.id]
        if spread is None:
            return shift
        spread = max(spread, pooled)
        least = _BETWEEN_RECORDINGS * spread
        why = f"noisy: the baseline's recordings differ by {percent_text(spread)}"
        noise = shift.noise or (why if least > shift.limits.least else "")
        return replace(shift, least=max(shift.least, least), noise=noise)

    return [judged(shift) for shift in shifts]


def between_recordings(processes: Sequence[float]) -> float | None:
    """Return the standard deviation between recordings, of their medians' logarithms.

    None of a single one.
    """
    number, rest = divmod(len(processes), BASELINE_PROCESSES)
    if number < 2 or rest:
        return None
    starts = range(0, len(processes), BASELINE_PROCESSES)
    return spread_of([median(processes[start : start + BASELINE_PROCESSES]) for start in starts])


def is_steady(baseline: Record) -> bool:
    """Whether this baseline can judge small changes of a case that it timed."""
    noise, _ = noise_of(baseline, process_ratios(baseline.latency))
    return not noise and not _stepped(baseline)


COMPARED_WITH = ("reference", "clock", "cache", "allocation")
"""Fields of a latency that are equal wherever two latencies are compared, beside the timer."""


def why_not_comparable(old: Latency, new: Latency) -> str | None:
    """Return why two latencies of one machine do not measure the same thing; None if they do."""
    if old.timer != new.timer:
        return f"timed by {old.timer} before and by {new.timer} now; timers are not mixed"
    for when, latency in (("before", old), ("now", new)):
        if not latency.is_valid:
            return f"not valid {when}: less time than a copy of its bytes takes"
        if latency.reference_ratio is None:
            return f"no reference was timed {when}, and times alone are not compared"
    for name in COMPARED_WITH:
        first, second = getattr(old, name), getattr(new, name)
        if first != second:
            return f"its {name} was {first} before and is {second} now"
    return None


# --- many cases ----------------------------------------------------------------------------------


def has_machine_changed(shifts: Sequence[Shift]) -> bool:
    """Whether more cases moved than a change of one implementation explains.

    A change of the machine, or of code that implementations share, moves the cases of all. Only
    clear moves count, since a move of two spreads is often chance. The implementation with the most
    moved cases is left out. Of the other cases, more than a tenth and at least two must have moved,
    since one may be chance.
    """
    clear = [shift for shift in shifts if shift.is_beyond(_CLEAR_SPREADS)]
    moved = Counter(shift.case.implementation for shift in clear)
    if not moved:
        return False
    ((most, number),) = moved.most_common(1)
    # a noisy case that did not move far may have moved as well, so it is not counted at all
    others = sum(
        shift.case.implementation != most for shift in shifts if not shift.noise or shift.is_suspect
    )
    return moved.total() - number > max(1.0, _CHANGED_SHARE * others)


def judge_all(screened: Collection[Shift | Change], confirm: Confirm | None) -> dict[str, Change]:
    """Have the suspects timed again; return how each latency changed, by the case's id."""
    suspects = [one for one in screened if isinstance(one, Shift) and one.is_suspect]
    fresh: Mapping[str, Sequence[float]] | str = "suspected, but not confirmed"
    if suspects and confirm is not None:
        fresh = confirm(suspects)

    def judged(shift: Shift) -> Change:
        return judge(shift, fresh if isinstance(fresh, str) else fresh.get(shift.case.id, ()))

    return {one.case.id: judged(one) if isinstance(one, Shift) else one for one in screened}


# --- the verdict ---------------------------------------------------------------------------------


def judge(shift: Shift, fresh: Sequence[float] | str) -> Change:
    """Return how the latency of a case changed.

    Args:
        shift: the first look at the case.
        fresh: for a suspect, the ratio in each fresh process, or why there is none.
    """
    first = shift.text(shift.moved)

    def inconclusive(why: str, ratio: Estimate = shift.ratio) -> Change:
        return _inconclusive(shift.case, f"{first}; {why}", ratio)

    if not shift.is_suspect:
        if why := shift.unsteady or shift.noise:
            return inconclusive(why)
        if len(shift.before) == 1:
            return inconclusive("one process before does not show how much processes differ")
        within = "differences between processes" if shift.before else "precision of one process"
        text = f"{first}, within the {within}"
        return latency_change(shift.case, ChangeKind.UNCHANGED, text, shift.ratio)
    if isinstance(fresh, str):
        return inconclusive(fresh)
    valid = sum(0 < ratio < inf for ratio in fresh)
    if not (shift.is_refuted(fresh) or valid == len(fresh) >= CONFIRMING_PROCESSES):
        return inconclusive(f"only {valid} of {CONFIRMING_PROCESSES} processes could time it again")
    moves, sign = shift.moves_of(fresh), 1 if shift.moved > 0 else -1
    middle = median(moves)
    moved = sign * middle
    ratio = ratio_between(shift.before, fresh) if shift.before else median_estimate(fresh)
    speeds = dict.fromkeys(speed_text(1 / end(fresh), 3) for end in (max, min))
    processes = count(len(fresh), "fresh process", "fresh processes")
    among = f"{' to '.join(speeds)} in {processes}"
    needed = max(shift.needed, shift.limits.agreement * spread_of(fresh))
    if not (min(moves) > shift.needed_in_each and middle > needed):
        each = _ratio_text(shift.needed_in_each) if shift.needed_in_each else "the same direction"
        return inconclusive(
            f"not confirmed: {slower_text(moved)}, {among}; a median of {_ratio_text(needed)}, and "
            f"{each} in each of {CONFIRMING_PROCESSES}, is needed",
            ratio,
        )
    if shift.before:
        extreme, end = ("slowest", max) if sign > 0 else ("fastest", min)
        among += (
            f", beyond all {len(shift.before)} of the baseline, of which the {extreme} ran at "
            f"{speed_text(1 / end(shift.before), 3)}"
        )
    kind = ChangeKind.SLOWER if sign > 0 else ChangeKind.FASTER
    return latency_change(shift.case, kind, f"{shift.text(moved)} ({among})", ratio)


def _inconclusive(case: Case, why: str, ratio: Estimate | None = None) -> Change:
    return latency_change(case, ChangeKind.INCONCLUSIVE, why, ratio)


# --- statistics ----------------------------------------------------------------------------------


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
    try:
        subject = epoch_values(arms[ArmRole.SUBJECT], cpu=cpu, mean=mean)
        reference = epoch_values(arms[ArmRole.REFERENCE], cpu=cpu, mean=mean)
        if not all(0 < time_s < inf for time_s in (*subject, *reference)):
            return ()
        epochs = zip(latency.process_of_epoch, ratios(subject, reference), strict=True)
        by_process = grouped(epochs)
    except (KeyError, ValueError):  # samples and epochs that do not match: a file edited by hand
        return ()
    return tuple(centre(values, mean=mean) for values in by_process.values())


def spread_of(values: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms of ratios; 0 for a single one."""
    return stdev(map(log, values)) if len(values) > 1 else 0.0


def ratio_between(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the ratio of two medians over processes and its interval, by Welch's t of logarithms.

    Standard errors are those of medians, which are larger than those of means. A single process
    now is assumed to spread as the processes before did, and now as a whole to differ from before
    as the recordings of a baseline do.
    """
    moved = log(median(after) / median(before))
    if len(before) < 2:
        return Estimate(value=exp(moved), low=0.0, high=inf)
    of_before = len(before) - 1
    if len(after) > 1:
        squared = [(_squared_error(before), of_before), (_squared_error(after), len(after) - 1)]
    else:
        squared = [(_squared_error(before) + spread_of(before) ** 2, of_before)]
    if between := between_recordings(before):
        recordings = len(before) // BASELINE_PROCESSES
        squared.append((between**2 * (1 + 1 / recordings), recordings - 1))
    variance = fsum(part for part, _ in squared)
    errors = fsum(part**2 / degrees for part, degrees in squared)
    degrees = round(variance**2 / errors) if errors else of_before  # Satterthwaite 1946
    half = t_quantile(degrees) * sqrt(variance)
    return Estimate(value=exp(moved), low=exp(moved - half), high=exp(moved + half))


def _squared_error(values: Sequence[float]) -> float:
    """Return the squared standard error of the median of the logarithms of ratios."""
    return (median_ratio(len(values)) * spread_of(values)) ** 2 / len(values)


def _stepped(record: Record) -> bool:
    return any(warning.kind is WarningKind.CLOCK_STEPPED for warning in record.warnings)


def slower_text(moved: float) -> str:
    """Return the logarithm of a ratio of times as "10 % slower" or "10 % faster"."""
    share = round(abs(expm1(moved)), 3)  # trade-off: less than 0.1 % is of no interest
    return f"{percent_text(share)} {'slower' if moved > 0 else 'faster'}"


def _ratio_text(move: float) -> str:
    return percent_text(expm1(move))
