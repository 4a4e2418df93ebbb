"""Times of one scenario on one scale: the ratio to the reference, which was timed in turn.

The seconds of two cases may be minutes of a machine's life apart. Their ratios to the same
reference are free of what befell that one as well, such as a slower clock; what befalls one alone,
a cache that a neighbour fills or where code and heap came to lie in its process, is in the ratio
too. Over several processes the interval shows it; over one process nothing does, so that a least
width is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from harness.records import OUR_TIMER, Estimate, Latency, Mode, Record
from harness.selection.scenarios import Name, name_of

__all__ = ["LONG_FLOOR", "SHORT_FLOOR", "Times", "counts", "times_of", "widened"]

_REFERENCE = "native"  # what a ratio is taken to where a record does not say
# ours: what processes differ by, either way; ratios of one function spread by up to 3 % over
# processes where calls are short, and by 6 or 7 % where they leave the cache
SHORT_FLOOR = 1.03
LONG_FLOOR = 1.10
_LONG_S = 1e-3  # ours: longer calls leave the cache, where neighbours decide what they find


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one scenario, by candidate."""

    records: dict[Name, Record]
    """That the times are of."""
    costs: dict[Name, Estimate]
    """Seconds, on a scale that the candidates have in common."""
    not_believed: dict[Name, Record]
    """Timed, and not to be believed."""


def counts(record: Record) -> bool:
    """Whether a record has a time that is believed."""
    latency = record.latency
    if latency is None or not latency.is_valid:
        return False
    figures = [latency.per_call_s, *filter(None, [latency.reference_ratio])]
    return all(0 < each.value < inf for each in figures)


def widened(time: Estimate, record: Record) -> Estimate:
    """Return a time of ``record`` with what processes differ by, where only one was asked."""
    latency = record.latency
    if latency is None or latency.processes > 1:
        return time
    floor = LONG_FLOOR if latency.per_call_s.value > _LONG_S else SHORT_FLOOR
    return replace(time, low=time.low / floor, high=time.high * floor)


def times_of(records: Sequence[Record]) -> Times:
    """Return the times to compare.

    Candidates meet on the same inputs, by the same timer and clock: where most of them do, and of
    two timers with as many by ours.
    """
    believed = [each for each in records if counts(each)]
    points = Counter(map(_meeting, believed))
    most = max(points, key=lambda point: (points[point], OUR_TIMER in point), default=None)
    met = {name_of(each): each for each in believed if _meeting(each) == most}
    return Times(
        records=met,
        costs=_costs({name: each.latency for name, each in met.items() if each.latency}),
        not_believed={
            name_of(each): each for each in records if each.latency is not None and not counts(each)
        },
    )


def _meeting(record: Record) -> tuple[object, ...]:
    case, latency = record.case, record.latency
    assert latency is not None  # only timed records are asked
    inputs = (case.distribution, case.grad_output, case.parameters, case.seed)
    return (*inputs, latency.timer, latency.clock, latency.cache, latency.allocation)


def _costs(latencies: Mapping[Name, Latency]) -> dict[Name, Estimate]:
    """Return seconds on one scale: ratios to the reference, timed in turn, where all have one."""
    ratios = {name: _ratio(name, each) for name, each in latencies.items()}
    references = {each.reference or _REFERENCE for each in latencies.values()}
    if len(references) != 1 or None in ratios.values():
        return {name: each.per_call_s for name, each in latencies.items()}
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    unit_s = _reference_s(latencies, known)
    return {name: _scaled(ratio, unit_s) for name, ratio in known.items()}


def _ratio(name: Name, latency: Latency) -> Estimate | None:
    if latency.reference_ratio is None and name == (_REFERENCE, Mode.EAGER):
        return Estimate(value=1.0, low=1.0, high=1.0)
    return latency.reference_ratio


def _reference_s(latencies: Mapping[Name, Latency], ratios: Mapping[Name, Estimate]) -> float:
    """Seconds that the reference takes: as timed itself, or as the others' ratios imply."""
    own = latencies.get((_REFERENCE, Mode.EAGER))
    if own is not None:
        return own.per_call_s.value / ratios[_REFERENCE, Mode.EAGER].value
    return median(each.per_call_s.value / ratios[name].value for name, each in latencies.items())


def _scaled(ratio: Estimate, unit_s: float) -> Estimate:
    return replace(
        ratio, value=ratio.value * unit_s, low=ratio.low * unit_s, high=ratio.high * unit_s
    )
