"""Judge the latency of two revisions that were timed in turn in one process.

What differs between processes, such as the addresses of code and heap, is the same for both
revisions. Their ratio therefore varies ten times less than that of either to the usual reference,
on a busy machine too.

There are two stages. The first look at unchanged code suspects a few cases in a hundred. A suspect
fails only if every one of several fresh processes agrees with the first look, by more than half of
a least effect, and their median by more than their spread and by more than that effect. Simulated
over recorded processes of unchanged code, with eight epochs in the first look and without the half,
this gives no false failure in 100,000 short calls, and 2 in 100,000 long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, log1p, sqrt
from statistics import median, stdev

from harness.measure.sample_statistics import LONG_CALL_S, median_estimate, median_quantile
from harness.records import Budget, Case, Estimate, Record, WarningKind
from harness.records.text import count, percent_text
from harness.regression.agreement import (
    CONFIRMING_PROCESSES,
    rules_out,
    speeds_text,
    why_too_few,
)
from harness.regression.changes import ChangeKind, Finding, inconclusive_latency, latency_finding
from harness.regression.text import slower_text

__all__ = ["SCREENING", "UNEVEN_RATIO", "Look", "confirmed_change", "look_at"]

# Base and head are mostly one algorithm, so their calls are alike: of 844 recorded measurements,
# each split in two halves, none differed clearly and by more than 5 %.
UNEVEN_RATIO = 1.05
# Six epochs, 0.1 s, decide most short calls. More are sampled where the interval, of about 2.5
# standard errors, is wider than the target: a short call that is 3 % slower, or a long one that is
# 5 % slower, is then at least three standard errors beyond what is suspected. In 96 recorded cases
# of 24 epochs, a least number of 6 suspected as many unchanged and more slowed cases than 8.
SCREENING = Budget(
    target_ratio=0.015,
    long_target_ratio=0.025,
    min_epochs=6,
    max_epochs=24,
    limit_s=4.0,
    uneven_ratio=UNEVEN_RATIO,
)
_SUSPECT = log1p(0.01)  # half of the least effect that can fail
_ERRORS = 2.0  # standard errors; one noisy unchanged case in twenty lies beyond
_CLEAR_ERRORS = 3.0  # standard errors of the median of the fresh processes, as simulated
_LEAST_SHORT = log1p(0.02)  # twice the measured ratio of two functions of equal speed
_LEAST_LONG = log1p(0.05)  # one process in a hundred is off by as much
# Of the least effect, in each fresh process. Of 93 cases that were 3 or 10 % slower, on a quiet and
# on a loaded machine, none had less than 1.4 % in any; an unchanged one beside busy neighbours had
# 0.7 to 2.7 % in all five.
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The latency of a case in the first process."""

    case: Case
    ratio: Estimate
    """Time now over time of the base."""
    error: float
    """Standard error of the ratio's logarithm, from the epochs; infinite if there is only one."""
    is_long: bool
    """Whether a call of the base takes so long that only large effects can be confirmed."""
    is_uneven: bool = False
    """Whether some calls of one revision take much longer than most, so that means are compared."""
    unsteady: str | None = None
    """Why the latency is reported but not judged; None if it is judged."""

    @property
    def moved(self) -> float:
        """The logarithm of the ratio: positive is slower."""
        return log(self.ratio.value)

    @property
    def is_suspect(self) -> bool:
        # with a single epoch the error is unknown: the fresh processes decide
        margin = _ERRORS * self.error if isfinite(self.error) else self.least_effect
        return abs(self.moved) > max(_SUSPECT, margin)

    @property
    def least_effect(self) -> float:
        """The least effect that can be confirmed, as a logarithm."""
        return _LEAST_LONG if self.is_long else _LEAST_SHORT

    def is_refuted(self, confirmed: Sequence[float]) -> bool:
        """Whether these fresh processes rule out that all five confirm the suspicion."""
        is_slower = self.moved > 0
        least = self.least_effect if is_slower else -self.least_effect
        each, middle = exp(_LEAST_SHARE * least), exp(least)
        return rules_out(confirmed, each=each, middle=middle, is_slower=is_slower)


def look_at(record: Record) -> Look | Finding:
    """Return the first look, from the record of a case timed in turn with its base.

    A finding is returned instead where the record holds no usable ratio.
    """
    latency = record.latency
    if latency is None or latency.reference_ratio is None:
        why = [record.reason] if record.reason else [each.advice for each in record.warnings]
        return inconclusive_latency(
            "; ".join(["it could not be timed in turn with the base", *why])
        )
    ratio, epochs = latency.reference_ratio, len(latency.process_of_epoch)
    if not 0 < ratio.value < inf:
        return inconclusive_latency("its samples are not positive numbers")
    error = log(ratio.high / ratio.value) / median_quantile(epochs) if isfinite(ratio.high) else inf
    stepped = any(each.kind is WarningKind.CLOCK_STEPPED for each in record.warnings)
    return Look(
        case=record.case,
        ratio=ratio,
        error=error,
        is_long=latency.per_call_s.value / ratio.value >= LONG_CALL_S,
        is_uneven=latency.uneven_ratio is not None,
        unsteady="the clock jumped while it was timed" if stepped else None,
    )


def confirmed_change(look: Look, confirmed: Sequence[float] | str | None) -> Finding:
    """Return how a case's latency changed.

    Args:
        look: the first look at the case.
        confirmed: for a suspect, the ratio to the base in each fresh process, or why there is
            none; None for a case that is not suspect.
    """
    text = f"{slower_text(look.moved)} than the base"
    if look.is_uneven:
        text += " on average, with uneven calls"
    if look.unsteady:
        return inconclusive_latency(f"{text}; {look.unsteady}", look.ratio)
    if confirmed is None:
        return _unsuspected(look, text)
    if isinstance(confirmed, str):
        return inconclusive_latency(f"{text} at first sight; {confirmed}", look.ratio)
    is_refuted = look.is_refuted(confirmed)
    if not is_refuted and (why := why_too_few(confirmed)):
        return inconclusive_latency(f"{text} at first sight; {why}", look.ratio)
    logs = [log(each) for each in confirmed]
    moved, ratio, needed = median(logs), median_estimate(confirmed), look.least_effect
    if not is_refuted:
        needed = max(needed, _CLEAR_ERRORS * stdev(logs) / sqrt(len(logs)))
    processes = count(len(logs), "fresh process", "fresh processes")
    among = f"{speeds_text(confirmed)} its speed in {processes}"
    if is_refuted or abs(moved) <= needed:
        each = percent_text(exp(_LEAST_SHARE * look.least_effect) - 1)
        needs = (
            f"a median of {percent_text(exp(needed) - 1)}, and {each} in each of "
            f"{CONFIRMING_PROCESSES}, is needed"
        )
        why = f"{slower_text(moved)}, {among}; {needs}"
        return inconclusive_latency(f"{text} at first sight; not confirmed: {why}", ratio)
    kind = ChangeKind.SLOWER if moved > 0 else ChangeKind.FASTER
    return latency_finding(kind, f"{slower_text(moved)} than the base ({among})", ratio)


def _unsuspected(look: Look, text: str) -> Finding:
    """Return "unchanged", or "inconclusive" if the process could not show the least effect."""
    margin = _ERRORS * look.error
    if not margin <= look.least_effect:
        known = (
            f"known to within {percent_text(exp(margin) - 1)}"
            if isfinite(margin)
            else "from a single epoch"
        )
        hidden = f"so a change of {percent_text(exp(look.least_effect) - 1)} would not show"
        return inconclusive_latency(f"noisy: {text}, {known}, {hidden}", look.ratio)
    return latency_finding(
        ChangeKind.UNCHANGED, f"{text}, within the precision of one process", look.ratio
    )
