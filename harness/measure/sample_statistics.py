"""Statistics of raw samples; the samples themselves are all kept.

The estimate is the median over epochs of a low quantile within each epoch. The machine is assumed
not to change during an epoch, about 8 ms per arm. The quantile discards preempted samples, the
median discards disturbed epochs, and slow drift moves neither.

Calls that do the work of others are uneven, which a low quantile does not show: if every fourth
call pays for the next three, three samples in four are fast. So the mean over the low quantile of
the samples is compared with that of the reference, timed in the same epochs: what disturbs the
machine affects both alike. Where calls are uneven, the estimate is the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, hypot, log, pi, sqrt
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.records import Arm, ArmRole, Budget, Clock, Estimate, Latency

EPOCH_QUANTILE = 0.10  # trade-off: few of the samples, and more than one

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

# How much wider an interval around the median has to be than one around the mean, for 2 to 30
# values. Simulated with 4 million normal samples of each size, so that 95 % of the intervals hold
# the centre. Even sizes need less, since their median is a mean of two values.
_MEDIAN_RATIO = (
    1.000, 1.027, 1.029, 1.089, 1.072, 1.131, 1.104, 1.156, 1.128, 1.173,
    1.145, 1.184, 1.159, 1.194, 1.169, 1.201, 1.177, 1.206, 1.184, 1.211,
    1.190, 1.215, 1.194, 1.218, 1.198, 1.220, 1.202, 1.222, 1.205,
)  # fmt: skip
_MEDIAN_LIMIT = sqrt(pi / 2)  # the limit for many values

# Least standard deviation between processes, of the logarithm, that an interval across them
# assumes. Few processes may agree by chance: experiments/estimates has the coverage without it.
# With it five processes can reach the default target of 1 %.
LEAST_SPREAD = 0.007
LONG_CALL_S = 1e-3  # longer calls exceed the cache, which other processes share

_CLEAR_ERRORS = 3.0  # standard errors; simulated in experiments/estimates/uneven_calls.py
_NOISE = 4  # trade-off: the three longest samples count as if they were as long as the fourth
_AS_FAST = 1.05  # a copy is itself measured to within a few per cent only


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t; above 30 degrees, the value at 30."""
    if degrees < 1:
        return float("inf")
    return _T_975[min(degrees, len(_T_975)) - 1]


def median_quantile(count: int) -> float:
    """Return half the width of a 95 % interval of the median, in standard errors of the mean."""
    if count < 2:
        return float("inf")
    return t_quantile(count - 1) * median_ratio(count)


def median_ratio(count: int) -> float:
    """Return how much wider an interval around a median is than one around a mean; 1 for one."""
    if count < 2:
        return 1.0
    return _MEDIAN_RATIO[count - 2] if count - 2 < len(_MEDIAN_RATIO) else _MEDIAN_LIMIT


def epoch_value(samples: Sequence[float]) -> float:
    """Return the value of one epoch: the low quantile of its samples, interpolated linearly."""
    ordered = sorted(samples)
    position = EPOCH_QUANTILE * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def epoch_values(arm: Arm, *, cpu: bool, mean: bool = False) -> list[float]:
    """Return the seconds per call of each epoch of ``arm``, in order, by CPU or wall clock.

    The value of an epoch is the low quantile of its samples or, with ``mean``, their mean.
    """
    value = fmean if mean else epoch_value
    return [value(samples) for samples in samples_by_epoch(arm, cpu=cpu)]


def samples_by_epoch(arm: Arm, *, cpu: bool) -> list[list[float]]:
    """Return the seconds per call of each sample of each epoch, by CPU or wall clock."""
    samples = arm.cpu_s if cpu else arm.wall_s
    if samples is None:
        raise ValueError(f"{arm.name} was not timed by the CPU clock")
    by_epoch: dict[int, list[float]] = {}
    for epoch, sample in zip(arm.epochs, samples, strict=True):
        by_epoch.setdefault(epoch, []).append(sample)
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def median_estimate(values: Sequence[float], *, least_spread: float = 0.0) -> Estimate:
    """Return the median of positive values, with a t interval of their logarithms.

    The interval assumes that the logarithms have at least a standard deviation of
    ``least_spread``. With one value it is from 0 to infinity: nothing is known of the spread.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    centre = float(np.median(logs))
    if len(logs) < 2:
        return Estimate(value=exp(centre), low=0.0, high=float("inf"))
    spread = max(float(np.std(logs, ddof=1)), least_spread)
    half = median_quantile(len(logs)) * spread / sqrt(len(logs))
    return Estimate(value=exp(centre), low=exp(centre - half), high=exp(centre + half))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of positive values, with a t interval whose ends are positive."""
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(value=mean, low=0.0, high=float("inf"))
    error = float(np.std(values, ddof=1)) / sqrt(len(values))
    half = t_quantile(len(values) - 1) * error / mean
    return Estimate(value=mean, low=mean * exp(-half), high=mean * exp(half))


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Return the ratio of two arms in each epoch."""
    return [above / below for above, below in zip(numerator, denominator, strict=True)]


def estimate(
    values: Sequence[float], process_of_epoch: Sequence[int] = (), *, mean: bool = False
) -> Estimate:
    """Estimate the centre of positive values, one per epoch.

    If they come from several processes, each process contributes the median of its epochs, and the
    interval is across processes. What differs between processes, such as the addresses of code and
    heap, is the same in all epochs of a process, so an interval within one is too narrow. Processes
    that agree by chance count as if they spread by ``LEAST_SPREAD``.

    Args:
        values: in order of epoch.
        process_of_epoch: the process of each epoch; empty if there was only one.
        mean: whether the centre of the epochs of a process is their mean rather than their median.
    """
    by_process: dict[int, list[float]] = {}
    for process, value in zip(process_of_epoch, values, strict=bool(process_of_epoch)):
        by_process.setdefault(process, []).append(value)
    if len(by_process) < 2:
        return mean_estimate(values) if mean else median_estimate(values)
    centres = [centre(epochs, mean=mean) for epochs in by_process.values()]
    return median_estimate(centres, least_spread=LEAST_SPREAD)


def centre(values: Sequence[float], *, mean: bool = False) -> float:
    """Return the value of a process: the mean or the median of its epochs."""
    return fmean(values) if mean else exp(median(map(log, values)))


def has_converged(per_call_s: Estimate, reference_ratio: Estimate | None, budget: Budget) -> bool:
    """Whether the interval is as narrow as the budget asks.

    The interval is of the ratio to the reference or, without a reference, of the time per call.
    """
    decisive, target = reference_ratio or per_call_s, budget.target_ratio
    if budget.long_target_ratio is not None and reference_ratio is not None:
        reference_s = per_call_s.value / reference_ratio.value if reference_ratio.value else 0.0
        target = budget.long_target_ratio if reference_s >= LONG_CALL_S else target
    return decisive.high / decisive.value - 1 < target


def is_faster(copy_ratio: Estimate | None) -> bool:
    """Whether a call took less time than a copy of its bytes, by more than the interval allows."""
    return copy_ratio is not None and copy_ratio.value > _AS_FAST and copy_ratio.low > 1


def unevenness(arms: Sequence[Arm], *, cpu: bool, least: float) -> tuple[float | None, bool]:
    """Compare the unevenness of the subject's calls with the reference's or else the copy's.

    Each sample is divided by the low quantile of its epoch, so that drift does not count. All
    epochs count together, because a call that pays for many others is missing from most epochs.
    Calls are clearly uneven only if they still are with the few longest samples cut.

    Args:
        arms: timed in turn, each in the same epochs.
        cpu: whether by CPU or by wall clock.
        least: calls count as uneven beyond this ratio, or below its inverse.

    Returns:
        The mean over the low quantile of the samples, over the same of the other arm, if calls are
        clearly uneven; None if not. And whether more samples are needed to know.
    """
    by_role = {arm.role: arm for arm in arms}
    other = by_role.get(ArmRole.REFERENCE) or by_role.get(ArmRole.CEILING)
    if other is None or not other.epochs:
        return None, False
    ours = _over_quantile(by_role[ArmRole.SUBJECT], cpu=cpu)
    others = _over_quantile(other, cpu=cpu)
    most = np.sort(np.concatenate([ours, others]))[-_NOISE:][0]
    mean, error = _mean_and_error(np.minimum(ours, most))
    other_mean, other_error = _mean_and_error(np.minimum(others, most))
    is_clear = abs(mean - other_mean) > _CLEAR_ERRORS * hypot(error, other_error)
    ratio = float(ours.mean() / others.mean())
    if is_clear and _is_beyond(mean / other_mean, least):
        return ratio, False
    return None, _is_beyond(ratio, least)


def _is_beyond(ratio: float, least: float) -> bool:
    return max(ratio, 1 / ratio) > least


def _over_quantile(arm: Arm, *, cpu: bool) -> NDArray[np.float64]:
    """Return all samples, each divided by the quantile of its epoch."""
    epochs = samples_by_epoch(arm, cpu=cpu)
    return np.concatenate([np.asarray(samples) / epoch_value(samples) for samples in epochs])


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and its standard error, which is 0 for a single value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), spread / sqrt(len(values))


@dataclass(frozen=True, slots=True)
class Estimates:
    """The time of a subject, and its ratio to the reference."""

    per_call_s: Estimate
    reference_ratio: Estimate | None
    """None without a reference."""
    uneven_ratio: float | None
    """Mean over low quantile, if calls are uneven; then the estimates are means. None if not."""
    is_doubtful: bool
    """Whether calls look uneven, and more samples are needed to know."""
    converged: bool
    """Whether calls do not look uneven, and the interval is as narrow as the budget asks."""


def estimates_of(
    arms: Sequence[Arm], budget: Budget, *, cpu: bool, process_of_epoch: Sequence[int] = ()
) -> Estimates:
    """Estimate time and ratio of the subject among ``arms``.

    Args:
        arms: timed in turn, each in the same epochs; at least one.
        budget: how narrow the interval has to be, and from which ratio on calls are uneven.
        cpu: whether by CPU or by wall clock.
        process_of_epoch: the process of each epoch; empty if there was only one.
    """
    uneven_ratio, is_doubtful = unevenness(arms, cpu=cpu, least=budget.uneven_ratio)
    mean = uneven_ratio is not None
    values = {arm.role: epoch_values(arm, cpu=cpu, mean=mean) for arm in arms}
    subject, reference = values[ArmRole.SUBJECT], values.get(ArmRole.REFERENCE)
    per_call_s = estimate(subject, process_of_epoch, mean=mean)
    ratio = None
    if reference is not None:
        ratio = estimate(ratios(subject, reference), process_of_epoch, mean=mean)
    return Estimates(
        per_call_s=per_call_s,
        reference_ratio=ratio,
        uneven_ratio=uneven_ratio,
        is_doubtful=is_doubtful,
        converged=not is_doubtful and has_converged(per_call_s, ratio, budget),
    )


# --- several processes -------------------------------------------------------------------------


def joined(parts: Sequence[Latency], budget: Budget) -> Latency | None:
    """Join the samples of the processes that timed a case; the estimates are across processes."""
    if not parts:
        return None

    def known(name: str) -> list[Any]:
        return [value for part in parts if (value := getattr(part, name)) is not None]

    def across(name: str) -> Estimate | None:
        values = [getattr(value, "value", value) for value in known(name)]
        return estimate(values) if values else None

    starts = accumulate((part.processes for part in parts), initial=0)
    process_of_epoch = tuple(
        start + process
        for start, part in zip(starts, parts, strict=False)
        for process in part.process_of_epoch
    )
    arms = tuple(_joined_arm(arm.role, parts) for arm in parts[0].arms)
    clocks = known("clock")
    clock = Clock.PROCESS_CPU if Clock.PROCESS_CPU in clocks else clocks[0]
    found = estimates_of(arms, budget, cpu=clock.is_cpu, process_of_epoch=process_of_epoch)
    ceiling, is_valid = across("ceiling_ratio"), all(part.is_valid for part in parts)
    if not is_valid:
        # one process may be faster than a copy by chance, so the ratio across processes decides;
        # on a GPU, where a short copy is mostly its launch, that may be above 1 in valid ones
        leaves_work = any(
            not part.is_valid and not (part.ceiling_ratio or 0.0) > 1 for part in parts
        )
        is_valid = not is_faster(ceiling) and not leaves_work
    return replace(
        parts[0],
        clock=clock,
        per_call_s=found.per_call_s,
        reference_ratio=found.reference_ratio,
        uneven_ratio=found.uneven_ratio,
        ceiling_ratio=ceiling.value if ceiling else None,
        converged=found.converged,
        processes=sum(part.processes for part in parts),
        process_of_epoch=process_of_epoch,
        minor_faults_ratio=max(known("minor_faults_ratio"), default=None),
        others_ratio=max(known("others_ratio"), default=None),
        throttled_epochs=sum(known("throttled_epochs")),
        replay_s=across("replay_s"),
        replay_ratio=across("replay_ratio"),
        is_valid=is_valid,
        arms=arms,
    )


def _joined_arm(role: ArmRole, parts: Sequence[Latency]) -> Arm:
    """Concatenate the samples of several processes, with consecutive epochs."""
    arms = [next(arm for arm in part.arms if arm.role is role) for part in parts]
    starts = accumulate((len(part.process_of_epoch) for part in parts), initial=0)
    return replace(
        arms[0],
        wall_s=tuple(sample for arm in arms for sample in arm.wall_s),
        cpu_s=tuple(sample for arm in arms for sample in arm.cpu_s or ()) or None,
        epochs=tuple(
            start + epoch for start, arm in zip(starts, arms, strict=False) for epoch in arm.epochs
        ),
    )
