"""Times of one scenario on one scale: the ratio to the reference, timed in turn with each case.

The seconds of two cases may be minutes apart. A change of the machine in between, such as a slower
clock, affects a case and its reference alike, and cancels in their ratio. What affects only one of
them, such as a cache used by a neighbour or the memory layout of its process, stays in the ratio.
An interval over several processes includes that; one over a single process does not, so it is
widened by a fixed ratio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from harness.records import OUR_TIMER, Estimate, Latency, Mode, Record
from harness.selection.ranking import CandidateName
from harness.selection.scenarios import candidate_name

__all__ = [
    "LONG_FLOOR",
    "NATIVE",
    "REFERENCE_NAME",
    "SHORT_FLOOR",
    "Times",
    "has_valid_time",
    "reference_ratio_of",
    "times_of",
    "widened",
]

REFERENCE_NAME = "native"  # the reference of a record that does not name one
NATIVE: CandidateName = (REFERENCE_NAME, Mode.EAGER)
# Differences between processes, either way. Measured: ratios of one function spread by up to 3 %
# over processes where calls are short, and by 6 or 7 % where their data exceed the cache.
SHORT_FLOOR = 1.03
LONG_FLOOR = 1.10
_LONG_S = 1e-3  # trade-off: longer calls are treated as exceeding the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one scenario, by candidate."""

    records: dict[CandidateName, Record]
    """Records that the times are from."""
    costs: dict[CandidateName, Estimate]
    """Seconds, on a scale that all candidates share."""
    invalid: dict[CandidateName, Record]
    """Records whose time is not believable."""
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


def reference_ratio_of(record: Record) -> Estimate | None:
    """Return the ratio to the time of the reference, which itself has 1; None if unknown."""
    latency = record.latency
    if latency is None:
        return None
    if latency.reference_ratio is None and candidate_name(record) == NATIVE:
        return Estimate(value=1.0, low=1.0, high=1.0)
    return latency.reference_ratio


def times_of(records: Sequence[Record]) -> Times:
    """Return the times to compare: on the same inputs, by the same timer and clock.

    If not all times are of one kind, the kind with the most candidates is taken; of two kinds with
    as many, the one of this project's timer.
    """
    valid = [record for record in records if has_valid_time(record)]
    counts = Counter(map(_kind_of_time, valid))
    commonest = max(counts, key=lambda kind: (counts[kind], OUR_TIMER in kind), default=None)
    compared = {candidate_name(each): each for each in valid if _kind_of_time(each) == commonest}
    costs, native_s = _costs(compared)
    return Times(
        records=compared,
        costs=costs,
        native_s=native_s,
        invalid={
            candidate_name(record): record
            for record in records
            if record.latency is not None and not has_valid_time(record)
        },
    )


def _kind_of_time(record: Record) -> tuple[object, ...]:
    """Return the inputs and the method of a time; only times with equal ones are compared."""
    case, latency = record.case, record.latency
    assert latency is not None  # it has a valid time
    inputs = (case.distribution, case.grad_output, case.parameters, case.seed)
    return (*inputs, latency.timer, latency.clock, latency.cache, latency.allocation)


def _costs(
    records: Mapping[CandidateName, Record],
) -> tuple[dict[CandidateName, Estimate], Estimate | None]:
    """Return seconds on one scale, and the seconds of native on it.

    The scale is ratios times the reference's seconds, where all have a ratio to one reference.
    """
    latencies = {name: each.latency for name, each in records.items() if each.latency is not None}
    ratios = {
        name: ratio
        for name, record in records.items()
        if (ratio := reference_ratio_of(record)) is not None
    }
    references = {latency.reference or REFERENCE_NAME for latency in latencies.values()}
    if len(references) != 1 or len(ratios) < len(latencies):
        costs = {name: latency.per_call_s for name, latency in latencies.items()}
        return costs, costs.get(NATIVE)
    reference_s = _reference_s(latencies, ratios)
    costs = {
        name: replace(
            ratio,
            value=ratio.value * reference_s,
            low=ratio.low * reference_s,
            high=ratio.high * reference_s,
        )
        for name, ratio in ratios.items()
    }
    if references != {REFERENCE_NAME}:
        return costs, costs.get(NATIVE)
    # the interval of a ratio to native includes that of native
    return costs, Estimate(value=reference_s, low=reference_s, high=reference_s)


def _reference_s(
    latencies: Mapping[CandidateName, Latency], ratios: Mapping[CandidateName, Estimate]
) -> float:
    """Return the seconds of the reference: as timed, or as the ratios of the others imply."""
    implied = {name: each.per_call_s.value / ratios[name].value for name, each in latencies.items()}
    return implied.get(NATIVE, median(implied.values()))
