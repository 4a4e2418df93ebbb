"""Statistics of raw samples, in one place. Nothing here keeps or drops a sample for good.

Per epoch (25 ms in which the machine is taken to be one machine) a low quantile, then the median
over epochs: the quantile discards preempted samples, the median discards disturbed epochs, and
neither is moved by slow drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, pi, sqrt
from statistics import median

import numpy as np

from harness.records import Arm, Budget, Estimate

__all__ = [
    "EPOCH_QUANTILE",
    "epoch_value",
    "epoch_values",
    "estimate",
    "has_converged",
    "median_estimate",
    "median_quantile",
    "ratio_estimate",
    "ratios",
    "t_quantile",
]

EPOCH_QUANTILE = 0.10  # ours: less spread from run to run than minimum, median or mean

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

# By how much an interval around the median has to be wider than one around the mean, for 2 to 30
# values: ours, of 4 million normal samples of each 95 % of the intervals hold the centre. An even
# number does better, since its median is a mean of two.
_MEDIAN_RATIO = (
    1.000, 1.027, 1.029, 1.089, 1.072, 1.131, 1.104, 1.156, 1.128, 1.173,
    1.145, 1.184, 1.159, 1.194, 1.169, 1.201, 1.177, 1.206, 1.184, 1.211,
    1.190, 1.215, 1.194, 1.218, 1.198, 1.220, 1.202, 1.222, 1.205,
)  # fmt: skip
_MEDIAN_LIMIT = sqrt(pi / 2)  # of very many


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t; the value at 30 serves all above."""
    if degrees < 1:
        return float("inf")
    return _T_975[min(degrees, len(_T_975)) - 1]


def median_quantile(count: int) -> float:
    """Return the standard errors of a mean that a two-sided 95 % interval of the median reaches."""
    if count < 2:
        return float("inf")
    known = count - 2 < len(_MEDIAN_RATIO)
    return t_quantile(count - 1) * (_MEDIAN_RATIO[count - 2] if known else _MEDIAN_LIMIT)


def epoch_value(samples: Sequence[float]) -> float:
    """The figure of one epoch: the low quantile of its samples, interpolated linearly."""
    ordered = sorted(samples)
    place = EPOCH_QUANTILE * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def epoch_values(arm: Arm, *, cpu: bool) -> list[float]:
    """Seconds per call for each epoch of ``arm``, by CPU or wall clock, in order of epoch."""
    samples = arm.cpu_s if cpu else arm.wall_s
    if samples is None:
        raise ValueError(f"{arm.name} was not timed by the CPU clock")
    by_epoch: dict[int, list[float]] = {}
    for epoch, sample in zip(arm.epochs, samples, strict=True):
        by_epoch.setdefault(epoch, []).append(sample)
    return [epoch_value(by_epoch[epoch]) for epoch in sorted(by_epoch)]


def median_estimate(values: Sequence[float]) -> Estimate:
    """Median of positive values, with an interval of their logarithms around it, by their t.

    With one value the interval is unbounded above and reaches 0: nothing is known of the spread.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    centre = float(np.median(logs))
    if len(logs) < 2:
        return Estimate(value=exp(centre), low=0.0, high=float("inf"))
    half = median_quantile(len(logs)) * float(np.std(logs, ddof=1)) / sqrt(len(logs))
    return Estimate(value=exp(centre), low=exp(centre - half), high=exp(centre + half))


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Ratio of two arms in each of the epochs in which both were timed."""
    return [above / below for above, below in zip(numerator, denominator, strict=True)]


def estimate(values: Sequence[float], process_of_epoch: Sequence[int] = ()) -> Estimate:
    """What positive values, one an epoch, come to.

    Several processes make one value each, the median of their epochs, and the interval is over
    these: whatever differs from process to process (where code and heap lie) is in every epoch
    of one process, so that its epochs alone know nothing of it.

    Args:
        values: in order of epoch.
        process_of_epoch: for each the process it ran in; empty where there was one.
    """
    by_process: dict[int, list[float]] = {}
    for process, value in zip(process_of_epoch, values, strict=bool(process_of_epoch)):
        by_process.setdefault(process, []).append(value)
    if len(by_process) < 2:
        return median_estimate(values)
    return median_estimate([exp(median(map(log, each))) for each in by_process.values()])


def ratio_estimate(
    numerator: Sequence[float], denominator: Sequence[float], process_of_epoch: Sequence[int] = ()
) -> Estimate:
    """Ratio of two arms that were timed in the same epochs, and its interval."""
    return estimate(ratios(numerator, denominator), process_of_epoch)


def has_converged(per_call_s: Estimate, reference_ratio: Estimate | None, budget: Budget) -> bool:
    """Whether the interval that decides is as narrow as the budget asks.

    It is that of the ratio to the reference or, without a reference, that of the time per call.
    """
    decisive = reference_ratio or per_call_s
    return decisive.high / decisive.value - 1 < budget.target_ratio
