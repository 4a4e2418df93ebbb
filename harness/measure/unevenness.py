"""Find calls that do the work of others: an estimate from a low quantile does not show them.

If every fourth call pays for the next three, three samples in four are fast. So the mean over the
low quantile of the samples is compared with that of the reference, timed in the same epochs: what
disturbs the machine affects both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from harness.measure.sample_statistics import epoch_value, samples_by_epoch
from harness.records import Arm, ArmRole

__all__ = ["Unevenness", "unevenness"]

_CLEAR_ERRORS = 3.0  # standard errors; simulated in experiments/estimates/uneven_calls.py
_NOISE = 4  # trade-off: the three longest samples count as if they were as long as the fourth


@dataclass(frozen=True, slots=True)
class Unevenness:
    """How much more uneven the calls of a subject are than those of its reference."""

    ratio: float
    """Mean over low quantile of the samples, over the same of the reference."""
    uneven_ratio: float | None
    """The same ratio if calls are clearly uneven; None if not."""
    least: float
    """Calls count as uneven beyond this ratio, or below its inverse."""

    @property
    def is_doubtful(self) -> bool:
        """Whether calls look uneven, and more samples are needed to know."""
        return self.uneven_ratio is None and _is_beyond(self.ratio, self.least)


def unevenness(arms: Sequence[Arm], *, cpu: bool, least: float) -> Unevenness | None:
    """Compare the subject with the reference or, without one, with the copy.

    Each sample is divided by the low quantile of its epoch, so that drift does not count. All
    epochs count together, because a call that pays for many others is missing from most epochs.
    Calls are clearly uneven only if they still are with the few longest samples cut.

    Args:
        arms: timed in turn, each in the same epochs.
        cpu: whether by CPU or by wall clock.
        least: the ratio beyond which calls count as uneven.

    Returns:
        None if there is nothing to compare with.
    """
    by_role = {arm.role: arm for arm in arms}
    other = by_role.get(ArmRole.REFERENCE) or by_role.get(ArmRole.CEILING)
    if other is None or not other.epochs:
        return None
    ours = _over_quantile(by_role[ArmRole.SUBJECT], cpu=cpu)
    others = _over_quantile(other, cpu=cpu)
    most = np.sort(np.concatenate([ours, others]))[-_NOISE:][0]
    mean, error = _mean_and_error(np.minimum(ours, most))
    other_mean, other_error = _mean_and_error(np.minimum(others, most))
    is_clear = abs(mean - other_mean) > _CLEAR_ERRORS * hypot(error, other_error)
    ratio = float(ours.mean() / others.mean())
    is_uneven = is_clear and _is_beyond(mean / other_mean, least)
    return Unevenness(ratio=ratio, uneven_ratio=ratio if is_uneven else None, least=least)


def _is_beyond(ratio: float, least: float) -> bool:
    return max(ratio, 1 / ratio) > least


def _over_quantile(arm: Arm, *, cpu: bool) -> NDArray[np.float64]:
    """Return all samples, each divided by the quantile of its epoch."""
    epochs = samples_by_epoch(arm, cpu=cpu)
    return np.concatenate([np.asarray(each) / epoch_value(each) for each in epochs])


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and its standard error, which is 0 for a single value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), spread / sqrt(len(values))
