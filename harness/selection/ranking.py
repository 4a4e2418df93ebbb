"""Which of several candidates to run: the fastest, ties broken by accuracy, then by memory.

Only what is close to the fastest can win by anything but time: an interval that is wide overlaps
many, and makes none of them as fast. The one place where this is decided: for a scenario, for a
workload and for the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log

from harness.records import Estimate, Mode, Record, Status
from harness.selection.eligibility import (
    Disqualification,
    error_ulp,
    point_of,
    time_disqualification,
)

__all__ = [
    "Candidate",
    "Decider",
    "Ranking",
    "geometric_mean",
    "is_close",
    "is_tie",
    "label_of",
    "rank",
    "weighted_sum",
    "worst_in_common",
]

_CLOSE = 1.1  # ours: as much time, a tenth, may a smaller error or less memory cost at most
_SAME_ERROR = 1.1  # ours: an error less than a tenth larger is the luck of the inputs drawn
_ROUNDED_ULP = 0.5  # correctly rounded: no error below it is better


class Decider(StrEnum):
    """What a choice, or the defeat of a candidate, rests on."""

    TIME = "time"
    """Its interval lies apart."""
    ACCURACY = "accuracy"
    """Intervals overlap, both are close to the fastest, errors differ."""
    MEMORY = "memory"
    """The same, but errors are alike, and the most memory held at once differs."""
    NOTHING = "nothing"
    """Nothing tells them apart; the smaller estimate of the time is taken."""
    ESTIMATE = "estimate"
    """Intervals overlap and are wide: one may be much slower; the smaller estimate is taken."""
    ONLY = "only"
    """There is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What can be chosen, and what is known of it."""

    implementation: str
    mode: Mode = Mode.EAGER
    cost: Estimate | None
    """Its time, on a scale that the candidates have in common; None where there is none."""
    span: Estimate | None
    """The same with the interval that tells it from others: what processes differ by is in it."""
    disqualification: Disqualification | None
    """Why it is not to be relied on; None where it is."""
    evidence: tuple[Record, ...] = ()
    """Records of its accuracy."""
    timed: tuple[Record, ...] = ()
    """Records of its time."""
    peak_bytes: int | None = None
    """Most memory that a call holds at once beyond its inputs; None where not measured."""
    measured_on: tuple[int, int] = (0, 0)
    """Distributions that it was verified on, and those that any candidate was."""

    @property
    def label(self) -> str:
        return label_of(self.implementation, self.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Who is chosen, and what that rests on."""

    best: Candidate | None
    """None where none is to be relied on."""
    decider: Decider | None
    """What told it from the others."""
    tied: tuple[tuple[Candidate, Decider], ...]
    """The others that time does not tell from it, and what did."""
    eligible: tuple[Candidate, ...]
    """All that are to be relied on, the fastest first."""


def label_of(implementation: str, mode: Mode) -> str:
    """Name an implementation and how it is run."""
    return f"{implementation} (compiled)" if mode is Mode.COMPILED else implementation


def rank(candidates: Sequence[Candidate]) -> Ranking:
    """Choose among ``candidates`` those without a disqualification, by time, accuracy and memory."""
    timed = [
        (each.cost.value, each.label, each)
        for each in candidates
        if each.disqualification is None
        and each.cost is not None
        and time_disqualification(each.cost) is None
    ]
    eligible = tuple(each for *_, each in sorted(timed, key=lambda entry: entry[:2]))
    if not eligible:
        return Ranking(best=None, decider=None, tied=(), eligible=())
    fastest = eligible[0]
    tied = [each for each in eligible if is_tie(each, fastest)]
    left = [each for each in tied if each is fastest or is_close(each, fastest)]
    defeated = [(each, Decider.ESTIMATE) for each in tied if each not in left]
    decider = Decider.ONLY if len(eligible) == 1 else Decider.TIME
    if defeated:
        decider = Decider.ESTIMATE
    for means in (Decider.ACCURACY, Decider.MEMORY):
        kept = _most_accurate(left) if means is Decider.ACCURACY else _leanest(left)
        if len(kept) < len(left):
            decider = means
            defeated += [(each, means) for each in left if each not in kept]
            left = kept
    if len(left) > 1:
        # the smaller estimate of two is no reason to call them alike if it has a wide interval
        decider = Decider.NOTHING if is_close(left[0], left[0]) else Decider.ESTIMATE
        defeated += [(each, decider) for each in left[1:]]
    return Ranking(best=left[0], decider=decider, tied=tuple(defeated), eligible=eligible)


def is_tie(one: Candidate, other: Candidate) -> bool:
    """Whether the intervals of the two overlap."""
    if one.span is None or other.span is None:
        return False
    return one.span.low <= other.span.high and other.span.low <= one.span.high


def is_close(candidate: Candidate, other: Candidate) -> bool:
    """Whether ``candidate`` takes little longer than the other, wherever in its interval it is.

    As measured: what processes differ by speaks for one as much as for the other.
    """
    if candidate.cost is None or other.cost is None:
        return False
    return candidate.cost.high <= _CLOSE * other.cost.value


def worst_in_common(candidates: Sequence[Candidate]) -> list[Record]:
    """Return, for each candidate, its record of the largest error where all of them are right.

    Empty where there is no such point.
    """
    right = [
        {
            point_of(record.case): record
            for record in each.evidence
            if record.status is Status.OK and error_ulp(record) is not None
        }
        for each in candidates
    ]
    common = set.intersection(*map(set, right)) if right else set()
    if not common:
        return []
    return [max((own[point] for point in common), key=_size) for own in right]


def weighted_sum(parts: Sequence[tuple[Estimate, float]]) -> Estimate:
    """Add times, each so many times; ends of the intervals are added as if all erred alike."""
    return Estimate(
        value=sum(each.value * count for each, count in parts),
        low=sum(each.low * count for each, count in parts),
        high=sum(each.high * count for each, count in parts),
    )


def geometric_mean(parts: Sequence[Estimate]) -> Estimate:
    """Average ratios; ends of the intervals are averaged as if all erred alike."""

    def mean(values: list[float]) -> float:
        return exp(sum(map(log, values)) / len(values)) if min(values) > 0 else 0.0

    return Estimate(
        value=mean([each.value for each in parts]),
        low=mean([each.low for each in parts]),
        high=mean([each.high for each in parts]),
    )


def _most_accurate(candidates: list[Candidate]) -> list[Candidate]:
    worst = worst_in_common(candidates)
    if not worst:
        return candidates
    allowed = _SAME_ERROR * max(_ROUNDED_ULP, min(map(_size, worst)))
    return [
        each for each, record in zip(candidates, worst, strict=True) if _size(record) <= allowed
    ]


def _leanest(candidates: list[Candidate]) -> list[Candidate]:
    """Keep those that hold least; all of them if of one it is not known."""
    held = [each.peak_bytes for each in candidates]
    known = [each for each in held if each is not None]
    if len(known) < len(held):
        return candidates
    return [each for each in candidates if each.peak_bytes == min(known)]


def _size(record: Record) -> float:
    error = error_ulp(record)
    assert error is not None  # only measured ones are asked
    return error
