"""Whether a candidate is eligible: the one place where evidence disqualifies an implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from math import inf, isinf
from operator import attrgetter

from harness.records import Case, Estimate, Record, Status

__all__ = [
    "Attainable",
    "Disqualification",
    "DisqualificationKind",
    "attainable_by",
    "disqualification_of",
    "point_of",
    "time_disqualification",
]

_FAILURES = (
    Status.CRASHED,
    Status.TIMEOUT,
    Status.ERROR,
    Status.OUT_OF_MEMORY,
    Status.UNSUPPORTED,
)


Point = tuple[object, ...]
"""The axes of a case, all but the candidate."""


class DisqualificationKind(StrEnum):
    """Why a candidate is not eligible, the worst first."""

    WRONG = "wrong"
    """A result is outside its error bound."""
    OUT_OF_GUARANTEE = "out_of_guarantee"
    """Its bound is vacuous where the bound of another candidate is not, or everywhere."""
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    """It declines a case that another candidate runs."""
    UNVERIFIED = "unverified"
    """Its errors were not measured, or not on every distribution where others were verified."""
    INACCURATE = "inaccurate"
    """It is within its bound, but its error is above the requirement."""
    INVALID_TIME = "invalid_time"
    """It was timed, and the time is not believable."""
    TOO_FEW_SAMPLES = "too_few_samples"
    """It was timed, but its time has no interval."""
    UNTIMED = "untimed"
    """It was not timed on the inputs, or by the timer, that the others were timed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disqualification:
    """Why a candidate is not eligible."""

    kind: DisqualificationKind
    records: tuple[Record, ...] = ()
    """Records that show it."""
    missing: tuple[str, ...] = ()
    """Distributions on which others were verified and this candidate was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """The points at which at least one candidate succeeded."""

    possible: frozenset[Point]
    """Points at which a candidate ran."""
    guaranteed: frozenset[Point]
    """Points at which a candidate was within a bound that is not vacuous."""


point_of: Callable[[Case], Point] = attrgetter(
    *(each.name for each in fields(Case) if each.name not in {"implementation", "mode"})
)
"""Return the axes of a case beside its implementation and mode: equal for all candidates."""


def attainable_by(records: Sequence[Record]) -> Attainable:
    """Return the points at which at least one candidate of ``records`` succeeded."""
    points = [
        (point_of(record.case), record.status) for record in records if record.status.is_measured
    ]
    return Attainable(
        possible=frozenset(point for point, _ in points),
        guaranteed=frozenset(point for point, status in points if status is Status.OK),
    )


def disqualification_of(
    own: Sequence[Record], attainable: Attainable, max_error_ulp: float | None = None
) -> Disqualification | None:
    """Return the worst reason that makes a candidate ineligible; None if it is eligible.

    A wrong result always disqualifies. A case that no candidate can run, such as values beyond the
    range of the dtype, or that no bound covers, disqualifies no candidate that is right elsewhere.

    Args:
        own: records of the candidate.
        attainable: the points at which at least one candidate succeeded.
        max_error_ulp: largest allowed error of the worst output, scaled.
    """
    measured = [record for record in own if record.status.is_measured]
    wrong = [record for record in measured if record.status is Status.WRONG]
    if wrong:
        return Disqualification(kind=DisqualificationKind.WRONG, records=tuple(wrong))
    is_right_somewhere = any(record.status is Status.OK for record in measured)
    vacuous = [
        record
        for record in measured
        if record.status is Status.OUT_OF_GUARANTEE
        and (not is_right_somewhere or point_of(record.case) in attainable.guaranteed)
    ]
    if vacuous:
        return Disqualification(kind=DisqualificationKind.OUT_OF_GUARANTEE, records=tuple(vacuous))
    for status in _FAILURES:
        failed = [
            record
            for record in own
            if record.status is status
            and (not measured or point_of(record.case) in attainable.possible)
        ]
        if failed:
            return Disqualification(kind=DisqualificationKind(status.value), records=tuple(failed))
    if all(record.worst_ulp is None for record in measured):
        return Disqualification(kind=DisqualificationKind.UNVERIFIED)
    if max_error_ulp is None:
        return None
    if unknown := tuple(record for record in measured if record.worst_ulp is None):
        return Disqualification(kind=DisqualificationKind.UNVERIFIED, records=unknown)
    above = tuple(record for record in measured if not (record.worst_ulp or 0.0) <= max_error_ulp)
    return Disqualification(kind=DisqualificationKind.INACCURATE, records=above) if above else None


def time_disqualification(cost: Estimate) -> Disqualification | None:
    """Return why a time cannot be compared; None if it is finite and has an interval."""
    if 0 <= cost.low <= cost.value <= cost.high < inf and cost.value > 0:
        return None
    if 0 < cost.value < inf and isinf(cost.high):
        return Disqualification(kind=DisqualificationKind.TOO_FEW_SAMPLES)
    return Disqualification(kind=DisqualificationKind.INVALID_TIME)
