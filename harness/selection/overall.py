"""One implementation for all cases of a device, dtype and direction, as the report shows it.

Its time is the geometric mean of its ratios to the reference. It is eligible only if it is
eligible for every timed scenario, and was timed in as many cases as the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from harness.records import Direction, Estimate, Record
from harness.selection.choose import Choice
from harness.selection.eligibility import (
    Disqualification,
    DisqualificationKind,
    attainable_by,
    disqualification_of,
    point_of,
    time_disqualification,
)
from harness.selection.ranking import Candidate, CandidateName, Ranking, geometric_mean, rank
from harness.selection.requirement import is_required
from harness.selection.scenarios import Groups, Scenario, candidate_name, scenarios_of
from harness.selection.times import has_valid_time, reference_ratio_of, widened

__all__ = ["OverallChoice", "Place", "choose_overall"]


@dataclass(frozen=True, slots=True)
class Place:
    """A device, dtype and direction in one environment."""

    environment: str
    """Fingerprint."""
    device: str
    dtype: str
    direction: Direction

    @classmethod
    def of(cls, scenario: Scenario) -> Place:
        """Return the place of a scenario."""
        case = scenario.case
        return cls(scenario.environment, case.device, case.dtype, case.direction)


Faults = Mapping[CandidateName, Disqualification]
"""Why candidates are disqualified in a scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallChoice:
    """The choice for all timed cases of a place."""

    ranking: Ranking
    faster: tuple[Candidate, ...]
    """Disqualified candidates that are faster than the best; those with too few cases are last."""
    timed_cases: int
    """Cases in which any candidate was timed."""
    fastest_in: int
    """Cases in which no eligible candidate is faster than the best beyond the intervals."""
    candidates: tuple[Candidate, ...]
    """Those that were timed, the fastest first."""

    def candidate(self, name: CandidateName) -> Candidate | None:
        """Return the candidate of that name; None if it was not timed."""
        return next((each for each in self.candidates if each.name == name), None)


def choose_overall(
    records: Sequence[Record],
    choices: Sequence[Choice],
    max_condition: float,
    groups: Groups | None = None,
) -> dict[Place, OverallChoice]:
    """Choose for every place in which a ratio to the reference was timed.

    Args:
        records: of all implementations.
        choices: those for each timed scenario of ``records``.
        max_condition: records of inputs with a larger condition number disqualify no candidate.
        groups: the records of each scenario, if they were grouped before.
    """
    places: dict[Place, list[Record]] = {}
    for scenario, own in (groups or scenarios_of(records)).items():
        places.setdefault(Place.of(scenario), []).extend(own)
    disqualified: dict[Place, list[Faults]] = {}
    for choice in choices:
        disqualified.setdefault(Place.of(choice.scenario), []).append({
            candidate.name: candidate.disqualification
            for candidate in choice.candidates
            if candidate.disqualification is not None
        })
    return {
        place: _choice(own, disqualified[place], max_condition)
        for place, own in places.items()
        if any(_ratio(record) for record in own)
    }


def _choice(
    records: Sequence[Record], disqualified: Sequence[Faults], max_condition: float
) -> OverallChoice:
    candidates = sorted(_candidates(records, disqualified, max_condition), key=_cost)
    ranking = rank(candidates)
    best = ranking.best
    faster = [
        candidate
        for candidate in candidates
        if candidate.disqualification is not None
        and (best is None or _cost(candidate) < _cost(best))
    ]
    faster.sort(key=_is_untimed)
    return OverallChoice(
        ranking=ranking,
        faster=tuple(faster),
        timed_cases=len({point for each in candidates for point in _ratios(each)}),
        fastest_in=_fastest_in(best, ranking.eligible) if best else 0,
        candidates=tuple(candidates),
    )


def _candidates(
    records: Sequence[Record], disqualified: Sequence[Faults], max_condition: float
) -> Iterator[Candidate]:
    by_name: dict[CandidateName, list[Record]] = {}
    for record in records:
        by_name.setdefault(candidate_name(record), []).append(record)
    timed = {
        name: [record for record in own if _ratio(record) is not None]
        for name, own in by_name.items()
    }
    every = [record for record in records if timed[candidate_name(record)]]
    compared = [record for record in every if is_required(record, max_condition)]
    attainable = attainable_by(compared)
    points = {point_of(record.case) for own in timed.values() for record in own}
    for name, own in by_name.items():
        if not timed[name]:
            continue
        required = [record for record in own if is_required(record, max_condition)]
        ratios = [(ratio, record) for record in timed[name] if (ratio := _ratio(record))]
        cost = geometric_mean([ratio for ratio, _ in ratios])
        in_scenarios = (
            reasons[name]
            for reasons in disqualified
            # a mean over fewer cases is judged below
            if name in reasons and reasons[name].kind is not DisqualificationKind.UNTIMED
        )
        disqualification = disqualification_of(required, attainable) or next(in_scenarios, None)
        if disqualification is None and {point_of(each.case) for each in timed[name]} != points:
            disqualification = Disqualification(kind=DisqualificationKind.UNTIMED)
        peaks = [record.memory.peak_extra_bytes for record in timed[name] if record.memory]
        yield Candidate(
            implementation=name[0],
            mode=name[1],
            cost=cost,
            widened_cost=geometric_mean([widened(ratio, record) for ratio, record in ratios]),
            disqualification=disqualification or time_disqualification(cost),
            evidence=tuple(required),
            timed=tuple(timed[name]),
            peak_bytes=max(peaks) if len(peaks) == len(timed[name]) else None,
        )


def _ratio(record: Record) -> Estimate | None:
    """Return the ratio to the time of the reference; None if it is unknown or not valid."""
    return reference_ratio_of(record) if has_valid_time(record) else None


def _ratios(candidate: Candidate) -> dict[object, Estimate]:
    """Return the ratio to the reference in each case, with the interval that is compared."""
    return {
        point_of(record.case): widened(ratio, record)
        for record in candidate.timed
        if (ratio := _ratio(record)) is not None
    }


def _fastest_in(best: Candidate, eligible: Sequence[Candidate]) -> int:
    others = [_ratios(candidate) for candidate in eligible]
    return sum(
        all(point not in other or ratio.low <= other[point].high for other in others)
        for point, ratio in _ratios(best).items()
    )


def _cost(candidate: Candidate) -> float:
    return inf if candidate.cost is None else candidate.cost.value


def _is_untimed(candidate: Candidate) -> bool:
    reason = candidate.disqualification
    return reason is not None and reason.kind is DisqualificationKind.UNTIMED
