"""The estimates that follow from raw samples of arms that were timed in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.sample_statistics import (
    epoch_values,
    estimate,
    has_converged,
    ratio_estimate,
)
from harness.measure.unevenness import unevenness
from harness.records import Arm, ArmRole, Budget, Estimate

__all__ = ["Estimates", "estimates_of"]


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
    found = unevenness(arms, cpu=cpu, least=budget.uneven_ratio)
    uneven_ratio = found.uneven_ratio if found else None
    mean = uneven_ratio is not None
    values = {arm.role: epoch_values(arm, cpu=cpu, mean=mean) for arm in arms}
    subject, reference = values[ArmRole.SUBJECT], values.get(ArmRole.REFERENCE)
    per_call_s = estimate(subject, process_of_epoch, mean=mean)
    ratio = None
    if reference is not None:
        ratio = ratio_estimate(subject, reference, process_of_epoch, mean=mean)
    is_doubtful = found is not None and found.is_doubtful
    return Estimates(
        per_call_s=per_call_s,
        reference_ratio=ratio,
        uneven_ratio=uneven_ratio,
        is_doubtful=is_doubtful,
        converged=not is_doubtful and has_converged(per_call_s, ratio, budget),
    )
