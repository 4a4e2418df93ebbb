"""Which of several candidates to run: the fastest; ties are broken by accuracy, then by memory.

Accuracy and memory decide only between candidates that are close to the fastest. A wide interval
overlaps many others, but does not make its candidate as fast as they are. Scenarios, workloads
and the report all rank here.

Times are compared on one scale: the ratio to the reference, timed in turn with each case. The
seconds of two cases may be minutes apart. A change of the machine in between, such as a slower
clock, affects a case and its reference alike, and cancels in their ratio. What affects only one of
them, such as a cache used by a neighbour or the memory layout of its process, stays in the ratio.
An interval over several processes includes that; one over a single process does not, so it is
widened by a fixed ratio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, inf, log
from statistics import median

from harness.records import OUR_TIMER, Estimate, Latency, Mode, Record
from harness.records.text import as_speed
from harness.selection.evidence import (
    Accuracy,
    CandidateName,
    Disqualification,
    candidate_name,
    point_of,
)

# trade-off: how much time a smaller error or less memory may cost at most
CLOSE_RATIO = 1.1
# trade-off: a smaller difference between two errors depends on the inputs that were drawn
_SAME_ERROR = 1.1
_ROUNDED_ULP = 0.5  # correctly rounded: no error below it is better

REFERENCE_NAME = "native"  # the reference of a record that does not name one
NATIVE: CandidateName = (REFERENCE_NAME, Mode.EAGER)
_ITSELF = Estimate(value=1.0, low=1.0, high=1.0)  # the ratio of the reference to itself
# Differences between processes, either way. In results/baselines/ci-epyc.parquet the standard
# deviation over processes is below 3 % in 87 of 94 short cases, and up to 5.4 % in long ones.
SHORT_FLOOR = 1.03
LONG_FLOOR = 1.10
_LONG_S = 1e-3  # trade-off: longer calls are treated as exceeding the cache


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


def label_of(name: CandidateName) -> str:
    """Return an implementation and its mode as text."""
    implementation, mode = name
    return f"{implementation} (compiled)" if mode is Mode.COMPILED else implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Which candidate is chosen, and what decided it."""

    best: Candidate | None = None
    """None where no candidate is eligible."""
    decider: Decider | None = None
    """What decided the choice; None where there is none."""
    tied: tuple[tuple[Candidate, Decider], ...] = ()
    """Candidates whose intervals overlap the interval of the fastest, and why each lost."""
    candidates: tuple[Candidate, ...]
    """The fastest first; those without a time are last."""
    eligible: tuple[Candidate, ...]
    """The fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A choice among candidates."""

    ranking: Ranking

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self.ranking.candidates

    @property
    def best(self) -> Candidate | None:
        return self.ranking.best

    def candidate(self, name: CandidateName) -> Candidate | None:
        """Return the candidate of that name; None if there is none."""
        return next((one for one in self.candidates if one.name == name), None)


def rank(unordered: Iterable[Candidate]) -> Ranking:
    """Choose among the eligible candidates by time, then accuracy, then memory."""
    candidates = tuple(sorted(unordered, key=cost_of))  # stable: equal costs keep their order
    eligible = tuple(one for one in candidates if one.disqualification is None)
    ranking = Ranking(candidates=candidates, eligible=eligible)
    if not eligible:
        return ranking
    fastest = eligible[0]
    tied = [candidate for candidate in eligible if is_tie(candidate, fastest)]
    left = [one for one in tied if one is fastest or is_close(one, fastest)]
    defeated = [(candidate, Decider.ESTIMATE) for candidate in tied if candidate not in left]
    decider = Decider.ONLY if len(eligible) == 1 else Decider.TIME
    if defeated:
        decider = Decider.ESTIMATE
    for criterion, best_of in ((Decider.ACCURACY, _most_accurate), (Decider.MEMORY, _leanest)):
        kept = best_of(left)
        if len(kept) < len(left):
            decider = criterion
            defeated += [(candidate, criterion) for candidate in left if candidate not in kept]
            left = kept
    if len(left) > 1:
        # if the first has a wide interval, the two cannot be called equal
        decider = Decider.NOTHING if is_close(left[0], left[0]) else Decider.ESTIMATE
        defeated += [(candidate, decider) for candidate in left[1:]]
    return replace(ranking, best=left[0], decider=decider, tied=tuple(defeated))


def cost_of(candidate: Candidate | None) -> float:
    """Return the estimate of a candidate's time, to sort by; infinite if there is none."""
    return inf if candidate is None or candidate.cost is None else candidate.cost.value


def is_tie(one: Candidate, other: Candidate) -> bool:
    """Whether the intervals of the two overlap."""
    ours, theirs = one.widened_cost, other.widened_cost
    return bool(ours and theirs and ours.low <= theirs.high and theirs.low <= ours.high)


def is_close(candidate: Candidate, other: Candidate) -> bool:
    """Whether the interval of ``candidate`` ends within ``CLOSE_RATIO`` times the other's time.

    The interval is the measured one: differences between processes affect both alike.
    """
    ours, theirs = candidate.cost, other.cost
    return bool(ours and theirs and ours.high <= CLOSE_RATIO * theirs.value)


def speed_of(candidate: Candidate, native: Estimate | None) -> Estimate | None:
    """Return the speed relative to native, with the interval that candidates are compared by.

    None if one of the two has no time.

    Args:
        candidate: its cost is on the scale of ``native``.
        native: the cost of native.
    """
    if candidate.name == NATIVE:
        return _ITSELF
    cost, widened_cost = candidate.cost, candidate.widened_cost
    if native is None or cost is None or widened_cost is None or not native.value > 0:
        return None
    ratio = Estimate(
        value=cost.value / native.value,
        low=widened_cost.low / native.high,
        high=widened_cost.high / native.low,
    )
    return as_speed(ratio)


def worst_in_common(candidates: Sequence[Candidate]) -> list[float]:
    """Return the largest error of each candidate in ulp where each has a bound.

    Empty where there is no such point.
    """
    bounded = [
        {
            point_of(record.case): error
            for record in candidate.evidence
            if record.status in Accuracy.INACCURATE.accepted
            and (error := record.worst_ulp) is not None
        }
        for candidate in candidates
    ]
    common = set.intersection(*map(set, bounded))
    return [max(own[point] for point in common) for own in bounded] if common else []


def _most_accurate(candidates: list[Candidate]) -> list[Candidate]:
    errors = worst_in_common(candidates)
    if not errors:
        return candidates
    allowed = _SAME_ERROR * max(_ROUNDED_ULP, min(errors))
    return [one for one, error in zip(candidates, errors, strict=True) if error <= allowed]


def _leanest(candidates: list[Candidate]) -> list[Candidate]:
    """Keep the candidates with the least peak memory; all if the memory of one is unknown."""
    known = [one.peak_bytes for one in candidates if one.peak_bytes is not None]
    if len(known) < len(candidates):
        return candidates
    return [candidate for candidate in candidates if candidate.peak_bytes == min(known)]


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return an estimate and its interval times a factor."""
    return _of_ends(lambda ends: ends[0] * factor, estimate)


def total(parts: Sequence[Estimate]) -> Estimate:
    """Add times; the ends of the intervals are added as fully correlated."""
    return _of_ends(sum, *parts)


def geometric_mean(parts: Sequence[Estimate]) -> Estimate:
    """Average ratios; the ends of the intervals are averaged as fully correlated."""

    def mean(values: Sequence[float]) -> float:
        return exp(sum(map(log, values)) / len(values)) if min(values) > 0 else 0.0

    return _of_ends(mean, *parts)


def _of_ends(function: Callable[[Sequence[float]], float], *parts: Estimate) -> Estimate:
    """Return a function of the values of some estimates, and of either end of their intervals."""
    ends = zip(*((part.value, part.low, part.high) for part in parts), strict=True)
    value, low, high = map(function, ends)
    return replace(parts[0], value=value, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one scenario, by candidate."""

    records: dict[CandidateName, Record]
    """Records that the times are from."""
    costs: dict[CandidateName, Estimate]
    """Seconds, on a scale that all candidates share."""
    invalid: dict[CandidateName, Record]
    """Records whose time is not believable."""
    reference_s: float | None
    """Seconds of the reference on that scale; None if not all have a ratio to one reference."""
    native_s: Estimate | None
    """Seconds of native on that scale; None if it is not known."""


def has_valid_time(record: Record) -> bool:
    """Whether a record has a time, and the time is believable."""
    latency = record.latency
    if latency is None or not latency.is_valid:
        return False
    estimates = [latency.per_call_s, *filter(None, [latency.reference_ratio])]
    return all(0 < estimate.value < inf for estimate in estimates)


def widened(time: Estimate, record: Record) -> Estimate:
    """Return ``time``; if ``record`` is of one process, with a wider interval."""
    latency = record.latency
    if latency is None or latency.processes > 1:
        return time
    floor = LONG_FLOOR if latency.per_call_s.value > _LONG_S else SHORT_FLOOR
    return replace(time, low=time.low / floor, high=time.high * floor)


def times_of(records: Sequence[Record]) -> Times:
    """Return the times to compare: on the same inputs, by the same timer and clock.

    If not all times are of one kind, the kind with the most candidates is taken; of two kinds with
    as many, the one of this project's timer.
    """
    valid = [record for record in records if has_valid_time(record)]
    counts = Counter(map(_kind_of_time, valid))
    commonest = max(counts, key=lambda kind: (counts[kind], OUR_TIMER in kind), default=None)
    compared = {candidate_name(one): one for one in valid if _kind_of_time(one) == commonest}
    invalid = {
        candidate_name(record): record
        for record in records
        if record.latency is not None and not has_valid_time(record)
    }
    latencies = {name: one.latency for name, one in compared.items() if one.latency}
    costs, native_s, reference_s = _times_on_device(latencies)
    # no eager call costs less than the host takes to issue it
    launches = {name: latency.launch_s for name, latency in latencies.items()}
    costs = {name: _at_least(cost, launches[name]) for name, cost in costs.items()}
    if native_s is not None:
        slowed = _at_least(native_s, launches.get(NATIVE))
        reference_s = slowed.value if reference_s == native_s.value else reference_s
        native_s = slowed
    return Times(
        records=compared, costs=costs, invalid=invalid, reference_s=reference_s, native_s=native_s
    )


def _kind_of_time(record: Record) -> tuple[object, ...]:
    """Return the inputs and the method of a time; only times with equal ones are compared."""
    case, latency = record.case, record.latency
    assert latency is not None  # it has a valid time
    inputs = (case.distribution, case.grad_output, case.parameters, case.seed)
    return (*inputs, latency.timer, latency.clock, latency.cache, latency.allocation)


def _at_least(cost: Estimate, launch_s: float | None) -> Estimate:
    """Return a cost that is not below the seconds of a launch, if these are known."""
    return _of_ends(lambda ends: max(ends[0], launch_s or 0.0), cost)


def _times_on_device(
    latencies: dict[CandidateName, Latency],
) -> tuple[dict[CandidateName, Estimate], Estimate | None, float | None]:
    """Return seconds of the candidates, native and the reference, without what the host takes.

    The scale is ratios times the reference's seconds, where all have a ratio to one reference.
    """
    ratios = {name: one.reference_ratio for name, one in latencies.items() if one.reference_ratio}
    if NATIVE in latencies:
        ratios.setdefault(NATIVE, _ITSELF)
    references = {latency.reference or REFERENCE_NAME for latency in latencies.values()}
    if len(references) != 1 or len(ratios) < len(latencies):
        costs = {name: latency.per_call_s for name, latency in latencies.items()}
        return costs, costs.get(NATIVE), None
    # the seconds of the reference: as timed, or as the ratios of the others imply
    implied = {name: one.per_call_s.value / ratios[name].value for name, one in latencies.items()}
    reference_s = implied.get(NATIVE, median(implied.values()))
    costs = {name: scaled(ratio, reference_s) for name, ratio in ratios.items()}
    native_s = costs.get(NATIVE)
    if references == {REFERENCE_NAME}:  # the interval of a ratio to native includes that of native
        native_s = scaled(_ITSELF, reference_s)
    return costs, native_s, reference_s
