"""Latency of two revisions that took turns in one process: a first look, then what settles it.

What differs from process to process, where code and heap lie, is the same for both, so that the
ratio of the two is ten times as steady as that of either to anything else, on a busy machine too.
A first look at unchanged code suspects a few cases in a hundred; a suspect fails only if every one
of several fresh processes agrees with it, by more than they differ and than a least effect.
Simulated over recorded processes of unchanged code that is no false failure in 100 000 short
calls, and 2 in 100 000 long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, log1p, sqrt
from statistics import median, stdev

from harness.measure.sample_statistics import median_estimate, median_quantile
from harness.records import Budget, Case, Estimate, Record, WarningKind
from harness.regression.changes import ChangeKind, Finding, inconclusive_latency, latency_finding
from harness.regression.latency_test import why_too_few
from harness.regression.text import slower_text

__all__ = ["SCREENING", "Look", "judge", "look_at"]

# ours: 0.2 s where calls are short, three times that where the epochs differ; then the interval, of
# 2.4 errors, is what decides who is suspect, since two errors are less
SCREENING = Budget(target_ratio=0.01, min_epochs=8, max_epochs=24, limit_s=4.0)
_SUSPECT = log1p(0.01)  # ours: half of what fails
_ERRORS = 2.0  # ours: with it, one unchanged case in twenty that spreads more than that
_CLEAR_ERRORS = 3.0  # ours: what the median of the fresh processes has to be beyond
_SHORT_S = 1e-3  # ours: longer calls leave the cache, where neighbours decide what they find
_LEAST_SHORT = log1p(0.02)  # ours: twice what two functions of equal speed came to
_LEAST_LONG = log1p(0.05)  # ours: a process alone is off by as much one time in a hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one process found of a case."""

    case: Case
    ratio: Estimate
    """Time now over time of the base."""
    error: float
    """Standard error of its logarithm, from the epochs; infinite where there was but one."""
    is_long: bool
    """Whether a call of the base takes so long that little can be told."""
    unsteady: str | None = None
    """Why it is told and never judged; None if it is judged."""

    @property
    def moved(self) -> float:
        """The logarithm of the ratio: positive is slower."""
        return log(self.ratio.value)

    @property
    def is_suspect(self) -> bool:
        # of so long a call that one epoch is all there was time for, only fresh processes can tell
        blur = _ERRORS * self.error if isfinite(self.error) else self.least_effect
        return abs(self.moved) > max(_SUSPECT, blur)

    @property
    def least_effect(self) -> float:
        """What has to be confirmed at least, as a logarithm."""
        return _LEAST_LONG if self.is_long else _LEAST_SHORT


def look_at(record: Record) -> Look | Finding:
    """Return what a record of a case beside its base says, or why it says nothing."""
    latency = record.latency
    if latency is None or latency.reference_ratio is None:
        why = [record.reason] if record.reason else [each.advice for each in record.warnings]
        return inconclusive_latency("; ".join(["it could not be timed beside the base", *why]))
    ratio, epochs = latency.reference_ratio, len(latency.process_of_epoch)
    if not 0 < ratio.value < inf:
        return inconclusive_latency("its samples are not positive numbers")
    error = log(ratio.high / ratio.value) / median_quantile(epochs) if isfinite(ratio.high) else inf
    stepped = any(each.kind is WarningKind.CLOCK_STEPPED for each in record.warnings)
    return Look(
        case=record.case,
        ratio=ratio,
        error=error,
        is_long=latency.per_call_s.value / ratio.value >= _SHORT_S,
        unsteady="the clock jumped while it was timed" if stepped else None,
    )


def judge(look: Look, confirmed: Sequence[float] | str | None) -> Finding:
    """Return what became of a case's latency.

    Args:
        look: the first.
        confirmed: of a suspect, the ratio to the base in each of some fresh processes, or why
            there is none; None for a case that is no suspect.
    """
    seen = f"{slower_text(look.moved)} than the base"
    if look.unsteady:
        return inconclusive_latency(f"{seen}; {look.unsteady}", look.ratio)
    if confirmed is None:
        return _unsuspected(look, seen)
    if isinstance(confirmed, str):
        return inconclusive_latency(f"{seen} at first sight; {confirmed}", look.ratio)
    if why := why_too_few(confirmed):
        return inconclusive_latency(f"{seen} at first sight; {why}", look.ratio)
    logs = [log(each) for each in confirmed]
    moved, ratio = median(logs), median_estimate(confirmed)
    needed = max(look.least_effect, _CLEAR_ERRORS * stdev(logs) / sqrt(len(logs)))
    among = f"{min(confirmed):.3f} to {max(confirmed):.3f} of its time in {len(logs)} processes"
    agree = min(logs) > 0 if look.moved > 0 else max(logs) < 0
    if not (agree and abs(moved) > needed):
        tells = f"{exp(needed) - 1:.1%} the same way in all of them would tell"
        why = f"{slower_text(moved)}, {among}, where {tells}"
        return inconclusive_latency(f"{seen} at first sight; not confirmed: {why}", ratio)
    kind = ChangeKind.SLOWER if moved > 0 else ChangeKind.FASTER
    return latency_finding(kind, f"{slower_text(moved)} than the base ({among})", ratio)


def _unsuspected(look: Look, seen: str) -> Finding:
    """Say that nothing was seen, if there was anything to see it by."""
    blur = _ERRORS * look.error
    if not blur <= look.least_effect:
        about = f"to within {exp(blur) - 1:.1%}" if isfinite(blur) else "in one epoch alone"
        hidden = f"so that {exp(look.least_effect) - 1:.0%} would not show"
        return inconclusive_latency(f"noisy: {seen}, known {about}, {hidden}", look.ratio)
    return latency_finding(
        ChangeKind.UNCHANGED, f"{seen}, within what one process tells", look.ratio
    )
