"""What a noisy baseline may hide: how far a case has to move before its latency is judged by it.

Noise raises what has to be seen and takes no case out of the gate: what became three times as slow
has to fail on a noisy machine too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p
from statistics import stdev

from harness.records import Record, WarningKind

__all__ = ["FAR", "NOISY_SPREAD", "Noise", "noise_of", "spread_of"]

NOISY_SPREAD = 0.03  # ours: of processes; beyond it 10 % are found in less than half the cases
# ours: a machine that was busier than the baseline's moved ratios by up to 19 %
FAR = log1p(0.5)
_SPREADS = 4.0  # ours: ten processes do not always show how far off the next one can be


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """That little can be told by a baseline."""

    reason: str
    least: float
    """By how much a case has to move, as a logarithm."""


def noise_of(baseline: Record, spread: float) -> Noise | None:
    """Return why a case that was timed has to move far to be judged by this baseline.

    Args:
        baseline: its record.
        spread: of its processes.
    """
    latency = baseline.latency
    assert latency is not None  # it was timed
    far = _SPREADS * spread
    # of these the processes may all have had as much as one another, and the next may have none
    warnings = {each.kind: each.advice for each in baseline.warnings}
    if WarningKind.NOISY in warnings:
        reason = f"noisy in the baseline: {warnings[WarningKind.NOISY]}"
        return Noise(reason=reason, least=max(FAR, far))
    if latency.minor_faults_ratio is not None and not latency.minor_faults_ratio < 1:
        reason = f"noisy: {latency.minor_faults_ratio:.0f} page faults a call in the baseline"
        return Noise(reason=reason, least=max(FAR, far))
    if spread > NOISY_SPREAD:
        return Noise(
            reason=f"noisy: the baseline's processes spread by {spread:.1%}",
            least=far,
        )
    if not latency.converged:
        reason = "noisy: the baseline's interval is wider than was asked of it"
        return Noise(reason=reason, least=far)
    return None


def spread_of(ratios: Sequence[float]) -> float:
    """Standard deviation of the logarithms of some ratios; of one alone 0."""
    return stdev(map(log, ratios)) if len(ratios) > 1 else 0.0
