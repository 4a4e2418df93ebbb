"""How far a case has to move before a noisy baseline can judge its latency.

Noise raises the threshold but takes no case out of the gate: a case that became three times as slow
has to fail on a noisy machine too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p
from statistics import stdev

from harness.records import Record, WarningKind
from harness.records.text import percent_text

__all__ = ["FAR", "NOISY_SPREAD", "Noise", "noise_of", "spread_of"]

# Standard deviation between processes. Simulated over recorded processes: beyond it, less than half
# of the cases that take 10 % longer are found.
NOISY_SPREAD = 0.03
FAR = log1p(0.5)  # measured: a machine busier than the baseline's moved ratios by up to 19 %
# Simulated with 400 000 unchanged cases each for spreads of 4, 8 and 15 %: 1 false failure. Of
# cases three times as slow 95 % or more were found.
_SPREADS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Why a baseline can judge only large changes of a case."""

    reason: str
    least: float
    """How far the case has to move, as a logarithm."""


def noise_of(baseline: Record, spread: float) -> Noise | None:
    """Return why a timed case has to move far to be judged; None if small changes can be judged.

    Args:
        baseline: the record of the case.
        spread: standard deviation between its processes, as a logarithm.
    """
    latency = baseline.latency
    assert latency is not None  # it was timed
    far = _SPREADS * spread
    # these two disturbances may have been alike in all processes and be absent in the next one
    warnings = {warning.kind: warning.advice for warning in baseline.warnings}
    if WarningKind.NOISY in warnings:
        reason = f"noisy in the baseline: {warnings[WarningKind.NOISY]}"
        return Noise(reason=reason, least=max(FAR, far))
    if latency.minor_faults_ratio is not None and not latency.minor_faults_ratio < 1:
        reason = f"noisy: {latency.minor_faults_ratio:.0f} page faults per call in the baseline"
        return Noise(reason=reason, least=max(FAR, far))
    if spread > NOISY_SPREAD:
        return Noise(
            reason=f"noisy: the baseline's processes spread by {percent_text(spread)}", least=far
        )
    if not latency.converged:
        return Noise(reason="noisy: the baseline's interval is wider than its target", least=far)
    return None


def spread_of(ratios: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms of ratios; 0 for a single one."""
    return stdev(map(log, ratios)) if len(ratios) > 1 else 0.0
