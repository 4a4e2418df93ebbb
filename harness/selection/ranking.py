"""Which of several candidates to run: the fastest; ties are broken by accuracy, then by memory.

Accuracy and memory decide only between candidates that are close to the fastest. A wide interval
overlaps many others, but does not make its candidate as fast as they are. Scenarios, workloads
and the report all rank here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log

from harness.records import Estimate, Mode, Record, Status
from harness.records.speed import as_speed
from harness.selection.eligibility import Disqualification, point_of, time_disqualification

__all__ = [
    "CLOSE_RATIO",
    "Candidate",
    "CandidateName",
    "Decider",
    "Ranking",
    "geometric_mean",
    "is_close",
    "is_tie",
    "label_of",
    "rank",
    "speed_of",
    "weighted_sum",
    "worst_in_common",
]

# trade-off: how much time a smaller error or less memory may cost at most
CLOSE_RATIO = 1.1
# trade-off: a smaller difference between two errors depends on the inputs that were drawn
_SAME_ERROR = 1.1
_ROUNDED_ULP = 0.5  # correctly rounded: no error below it is better

CandidateName = tuple[str, Mode]
"""The implementation, and how it is run."""


class Decider(StrEnum):
    """What decided a choice, or why a candidate lost a tie."""

    TIME = "time"
    """The intervals do not overlap."""
    ACCURACY = "accuracy"
    """The intervals overlap, both are close to the fastest, and the errors differ."""
    MEMORY = "memory"
    """As for accuracy, but the errors are similar and the peak memory differs."""
    NOTHING = "nothing"
    """Neither errors nor memory decide; the smaller estimate of the time is taken."""
    ESTIMATE = "estimate"
    """The intervals overlap and one is wide; the smaller estimate of the time is taken."""
    ONLY = "only"
    """There is no other eligible candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An implementation in one mode, with its cost and evidence."""

    implementation: str
    mode: Mode = Mode.EAGER
    cost: Estimate | None
    """Its time, on a scale that all candidates share; None where there is none."""
    widened_cost: Estimate | None
    """The same, with an interval that includes the differences between processes."""
    disqualification: Disqualification | None
    """Why it is not eligible; None if it is."""
    evidence: tuple[Record, ...] = ()
    """Records of its accuracy."""
    timed: tuple[Record, ...] = ()
    """Records of its time."""
    peak_bytes: int | None = None
    """Most memory that a call holds at once beyond its inputs; None where not measured."""
    verified_on: int = 0
    """Number of distributions that it was verified on."""

    @property
    def name(self) -> CandidateName:
        return self.implementation, self.mode

    @property
    def label(self) -> str:
        return label_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Which candidate is chosen, and what decided it."""

    best: Candidate | None
    """None where no candidate is eligible."""
    decider: Decider | None
    """What decided the choice; None where there is none."""
    tied: tuple[tuple[Candidate, Decider], ...]
    """Candidates whose intervals overlap the interval of the fastest, and why each lost."""
    eligible: tuple[Candidate, ...]
    """The fastest first."""


def label_of(name: CandidateName) -> str:
    """Return an implementation and its mode as text."""
    implementation, mode = name
    return f"{implementation} (compiled)" if mode is Mode.COMPILED else implementation


def rank(candidates: Sequence[Candidate]) -> Ranking:
    """Choose among the eligible ``candidates`` by time, then accuracy, then memory."""
    timed = [
        (candidate.cost.value, candidate.label, candidate)
        for candidate in candidates
        if candidate.disqualification is None
        and candidate.cost is not None
        and time_disqualification(candidate.cost) is None
    ]
    eligible = tuple(candidate for *_, candidate in sorted(timed, key=lambda entry: entry[:2]))
    if not eligible:
        return Ranking(best=None, decider=None, tied=(), eligible=())
    fastest = eligible[0]
    tied = [each for each in eligible if is_tie(each, fastest)]
    left = [each for each in tied if each is fastest or is_close(each, fastest)]
    defeated = [(each, Decider.ESTIMATE) for each in tied if each not in left]
    decider = Decider.ONLY if len(eligible) == 1 else Decider.TIME
    if defeated:
        decider = Decider.ESTIMATE
    for criterion in (Decider.ACCURACY, Decider.MEMORY):
        kept = _most_accurate(left) if criterion is Decider.ACCURACY else _leanest(left)
        if len(kept) < len(left):
            decider = criterion
            defeated += [(each, criterion) for each in left if each not in kept]
            left = kept
    if len(left) > 1:
        # if the first has a wide interval, the two cannot be called equal
        decider = Decider.NOTHING if is_close(left[0], left[0]) else Decider.ESTIMATE
        defeated += [(each, decider) for each in left[1:]]
    return Ranking(best=left[0], decider=decider, tied=tuple(defeated), eligible=eligible)


def is_tie(one: Candidate, other: Candidate) -> bool:
    """Whether the intervals of the two overlap."""
    if one.widened_cost is None or other.widened_cost is None:
        return False
    return (
        one.widened_cost.low <= other.widened_cost.high
        and other.widened_cost.low <= one.widened_cost.high
    )


def is_close(candidate: Candidate, other: Candidate) -> bool:
    """Whether the interval of ``candidate`` ends within ``CLOSE_RATIO`` times the other's time.

    The interval is the measured one: differences between processes affect both alike.
    """
    if candidate.cost is None or other.cost is None:
        return False
    return candidate.cost.high <= CLOSE_RATIO * other.cost.value


def speed_of(candidate: Candidate, native: Estimate | None) -> Estimate | None:
    """Return the speed relative to native, with the interval that candidates are compared by.

    None if one of the two has no time.

    Args:
        candidate: its cost is on the scale of ``native``.
        native: the cost of native.
    """
    cost, widened = candidate.cost, candidate.widened_cost
    if native is None or cost is None or widened is None or not native.value > 0:
        return None
    ratio = Estimate(
        value=cost.value / native.value,
        low=widened.low / native.high,
        high=widened.high / native.low,
    )
    return as_speed(ratio)


def worst_in_common(candidates: Sequence[Candidate]) -> list[Record]:
    """Return, for each candidate, its record of the largest error where all of them are right.

    Empty where there is no such point.
    """
    right = [
        {
            point_of(record.case): record
            for record in candidate.evidence
            if record.status is Status.OK and record.worst_ulp is not None
        }
        for candidate in candidates
    ]
    first, *others = right or [{}]
    common = [point for point in first if all(point in other for other in others)]
    if not common:
        return []
    return [max((records[point] for point in common), key=_error_ulp) for records in right]


def weighted_sum(parts: Sequence[tuple[Estimate, float]]) -> Estimate:
    """Add times, each times its count; the ends of the intervals are added as fully correlated."""
    return Estimate(
        value=sum(each.value * count for each, count in parts),
        low=sum(each.low * count for each, count in parts),
        high=sum(each.high * count for each, count in parts),
    )


def geometric_mean(parts: Sequence[Estimate]) -> Estimate:
    """Average ratios; the ends of the intervals are averaged as fully correlated."""

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
    allowed = _SAME_ERROR * max(_ROUNDED_ULP, min(map(_error_ulp, worst)))
    return [
        each
        for each, record in zip(candidates, worst, strict=True)
        if _error_ulp(record) <= allowed
    ]


def _leanest(candidates: list[Candidate]) -> list[Candidate]:
    """Keep the candidates with the least peak memory; all if the memory of one is unknown."""
    known = [each.peak_bytes for each in candidates if each.peak_bytes is not None]
    if len(known) < len(candidates):
        return candidates
    return [each for each in candidates if each.peak_bytes == min(known)]


def _error_ulp(record: Record) -> float:
    assert record.worst_ulp is not None  # worst_in_common returns no others
    return record.worst_ulp
