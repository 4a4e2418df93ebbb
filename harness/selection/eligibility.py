"""What speaks against running an implementation: the one place where evidence excludes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isinf

from harness.records import Case, Estimate, Mode, Record, Status

__all__ = [
    "Attainable",
    "Disqualification",
    "DisqualificationKind",
    "attainable_by",
    "disqualification_of",
    "error_ulp",
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


class DisqualificationKind(StrEnum):
    """Why an implementation is not to be relied on, the worst first."""

    WRONG = "wrong"
    """Outside its error bound."""
    OUT_OF_GUARANTEE = "out_of_guarantee"
    """It promises nothing where another does, or promises nothing anywhere."""
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    """It declines what another runs."""
    UNVERIFIED = "unverified"
    """Its errors were not measured where they have to be."""
    INACCURATE = "inaccurate"
    """Within its bound, and further off than was asked for."""
    NOT_BELIEVED = "not_believed"
    """It was timed, and the time is not believable."""
    TOO_FEW_SAMPLES = "too_few_samples"
    """It was timed, and nothing is known of how far off the time is."""
    UNTIMED = "untimed"
    """It was not timed where the others were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disqualification:
    """What speaks against an implementation."""

    kind: DisqualificationKind
    records: tuple[Record, ...] = ()
    """Where it shows."""
    missing: tuple[str, ...] = ()
    """Distributions on which it was not verified, and others were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """What the candidates together could do, by point."""

    possible: frozenset[Case]
    """Where one of them ran."""
    promised: frozenset[Case]
    """Where one of them was right within a promise."""


def point_of(case: Case) -> Case:
    """What a case asks of every candidate: the case without who answers it."""
    return replace(case, implementation="", mode=Mode.EAGER)


def attainable_by(records: Sequence[Record]) -> Attainable:
    """Return what those who answered ``records`` could do together."""
    points = [(point_of(each.case), each.status) for each in records if each.status.is_measured]
    return Attainable(
        possible=frozenset(point for point, _ in points),
        promised=frozenset(point for point, status in points if status is Status.OK),
    )


def disqualification_of(
    own: Sequence[Record], field: Attainable, max_error_ulp: float | None = None
) -> Disqualification | None:
    """Return the worst that speaks against an implementation; None if nothing does.

    Being wrong always does. A point that nobody could run, such as values that the dtype cannot
    hold, or that nobody promises anything for, speaks against no one who is right elsewhere.

    Args:
        own: its records.
        field: what all candidates could do.
        max_error_ulp: largest error of its worst output, scaled, that is allowed.
    """
    measured = [each for each in own if each.status.is_measured]
    wrong = [each for each in measured if each.status is Status.WRONG]
    if wrong:
        return Disqualification(kind=DisqualificationKind.WRONG, records=tuple(wrong))
    is_right_somewhere = any(each.status is Status.OK for each in measured)
    vacuous = [
        each
        for each in measured
        if each.status is Status.OUT_OF_GUARANTEE
        and (not is_right_somewhere or point_of(each.case) in field.promised)
    ]
    if vacuous:
        return Disqualification(kind=DisqualificationKind.OUT_OF_GUARANTEE, records=tuple(vacuous))
    for status in _FAILURES:
        failed = [
            each
            for each in own
            if each.status is status and (not measured or point_of(each.case) in field.possible)
        ]
        if failed:
            return Disqualification(kind=DisqualificationKind(status.value), records=tuple(failed))
    errors = [(each, error_ulp(each)) for each in measured]
    if all(error is None for _, error in errors):
        return Disqualification(kind=DisqualificationKind.UNVERIFIED)
    if max_error_ulp is None:
        return None
    unknown = tuple(each for each, error in errors if error is None)
    if unknown:
        return Disqualification(kind=DisqualificationKind.UNVERIFIED, records=unknown)
    far = tuple(each for each, error in errors if error is not None and not error <= max_error_ulp)
    return Disqualification(kind=DisqualificationKind.INACCURATE, records=far) if far else None


def time_disqualification(cost: Estimate) -> Disqualification | None:
    """Return what speaks against a time itself; None if it has an interval to compare it by."""
    if 0 <= cost.low <= cost.value <= cost.high < inf and cost.value > 0:
        return None
    if 0 < cost.value < inf and isinf(cost.high):
        return Disqualification(kind=DisqualificationKind.TOO_FEW_SAMPLES)
    return Disqualification(kind=DisqualificationKind.NOT_BELIEVED)


def error_ulp(record: Record) -> float | None:
    """Error of the worst output, scaled; infinite where one is not finite and should be.

    None where it was not measured.
    """
    return record.worst_ulp
