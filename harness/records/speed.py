"""How people read a comparison of times: the speed relative to native; higher is faster.

A record stores time over the reference's time, so that below 1 is faster. Commands, the page and
the documents show its inverse: "1.31x" takes 1/1.31 of the time of native.
"""

from __future__ import annotations

from math import inf, isfinite

from harness.records.latency import Estimate

__all__ = ["as_speed", "speed_interval_text", "speed_text"]


def as_speed(time_ratio: Estimate) -> Estimate:
    """Return the speed that belongs to a time over the reference's time, with its interval."""
    return Estimate(
        value=_inverse(time_ratio.value),
        low=_inverse(time_ratio.high),
        high=_inverse(time_ratio.low),
        confidence=time_ratio.confidence,
    )


def speed_text(speed: float, decimals: int = 2) -> str:
    """Return a speed relative to another one: "1.31x", "12.3x", "0.0123x".

    Near 1 it has ``decimals``; gates, which judge changes of a few percent, write three.
    """
    if not isfinite(speed):
        return "unknown"
    return f"{speed:.{decimals}f}x" if 0.095 <= speed < 10 else f"{speed:.3g}x"


def speed_interval_text(speed: Estimate) -> str:
    """Return a speed with its interval: "1.31x [1.28x, 1.34x]"."""
    ends = ", ".join(
        speed_text(each) if isfinite(each) else "∞" for each in (speed.low, speed.high)
    )
    return f"{speed_text(speed.value)} [{ends}]"


def _inverse(value: float) -> float:
    return inf if value == 0 else 1 / value
