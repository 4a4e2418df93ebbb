"""The scenarios of a run, and the records that are evidence for each.

A scenario is a shape, dtype, device and direction with its settings, in one environment. Its own
records are the evidence for it. On distributions that were not tried in a scenario, records of the
most similar scenario count too: they can disqualify a candidate but never qualify it, because
cancellation does not depend on the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log

from harness.records import OUR_TIMER, Case, Direction, Mode, Record
from harness.records.text import shape_text
from harness.selection.ranking import CandidateName
from harness.selection.requirement import is_required
from harness.store import Results

__all__ = [
    "Evidence",
    "Groups",
    "Scenario",
    "candidate_name",
    "evidence_for",
    "merged_records",
    "scenarios_of",
    "was_timed",
]

_USUAL = Case(implementation="", shape=())
_RELATED: Mapping[Direction, tuple[Direction, ...]] = {
    Direction.FORWARD: (Direction.FORWARD,),
    Direction.BACKWARD: (Direction.BACKWARD, Direction.FORWARD_BACKWARD, Direction.FORWARD),
    Direction.FORWARD_BACKWARD: (
        Direction.FORWARD_BACKWARD,
        Direction.BACKWARD,
        Direction.FORWARD,
    ),
}
"""Directions whose errors are evidence for a direction, the most similar first."""

Groups = Mapping["Scenario", Sequence[Record]]
"""The records of each scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A shape, dtype, device and direction with its settings, in one environment."""

    case: Case
    """Its axes; those that differ between candidates and between inputs have their usual values."""
    environment: str
    """Fingerprint of the environment."""

    @property
    def text(self) -> str:
        """The scenario in one line, without its environment."""
        case = self.case
        axes = [shape_text(case.shape), case.dtype, case.device, case.direction]
        return " ".join([*axes, *self.settings])

    @property
    def settings(self) -> tuple[str, ...]:
        """The axes beyond shape, dtype, device and direction that differ from the usual."""
        return replace(self.case, device=_USUAL.device).settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The records that are evidence for a scenario, by candidate."""

    own: dict[CandidateName, tuple[Record, ...]]
    """Measured in the scenario itself."""
    elsewhere: dict[CandidateName, tuple[Record, ...]]
    """Measured in similar scenarios, on distributions that were not tried in this one."""
    distributions: tuple[str, ...]
    """Distributions that any candidate was verified on."""


def merged_records(results: Sequence[Results]) -> tuple[Record, ...]:
    """Return the records of all files; of a case measured twice in one environment, the later.

    A record of another timer is kept beside it, and does not replace it.
    """
    kept: dict[tuple[str, str, str], Record] = {}
    for result in results:
        kept.update({
            (record.case.id, record.environment, _timer_of(record)): record
            for record in result.records
        })
    return tuple(kept.values())


def _timer_of(record: Record) -> str:
    return OUR_TIMER if record.latency is None else record.latency.timer


def scenarios_of(records: Iterable[Record]) -> dict[Scenario, list[Record]]:
    """Group records by scenario, in the order of the run."""
    groups: dict[Scenario, list[Record]] = {}
    for record in records:
        groups.setdefault(_scenario_of(record), []).append(record)
    return groups


def was_timed(records: Sequence[Record]) -> bool:
    """Whether times were measured, or may have been: records of failed cases cannot tell."""
    return any(record.latency is not None for record in records) or not any(
        record.status.is_measured for record in records
    )


def evidence_for(scenario: Scenario, groups: Groups, max_condition: float = inf) -> Evidence:
    """Return the evidence for a scenario: records of inputs up to ``max_condition``."""
    names = dict.fromkeys(map(candidate_name, groups[scenario]))
    tried = _distributions(groups[scenario])
    own = _conditioned(groups[scenario], max_condition)
    verified = _distributions(own)
    elsewhere: dict[CandidateName, tuple[Record, ...]] = dict.fromkeys(names, ())
    for other in _similar(scenario, groups):
        records = _conditioned(groups[other], max_condition)
        new = {each: None for each in _distributions(records) if each not in tried}
        tried |= new
        verified |= new
        by_place = _by_place(records)
        for name in names:
            elsewhere[name] += tuple(
                record
                for distribution in new
                for record in _records_of(name, by_place.get((name[0], distribution), []))
                if record.status.is_measured
            )
    return Evidence(
        own={name: tuple(each for each in own if candidate_name(each) == name) for name in names},
        elsewhere=elsewhere,
        distributions=tuple(verified),
    )


def _distributions(records: Sequence[Record]) -> dict[str, None]:
    """Return the distributions on which any of ``records`` was measured, in order."""
    return {record.case.distribution: None for record in records if record.status.is_measured}


def _scenario_of(record: Record) -> Scenario:
    case = replace(
        record.case,
        implementation="",
        mode=Mode.EAGER,
        distribution=_USUAL.distribution,
        grad_output=_USUAL.grad_output,
        parameters=_USUAL.parameters,
        seed=_USUAL.seed,
    )
    return Scenario(case=case, environment=record.environment)


def candidate_name(record: Record) -> CandidateName:
    """Return the name of the candidate that was measured."""
    return record.case.implementation, record.case.mode


def _by_place(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Group records by implementation and distribution."""
    places: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        place = record.case.implementation, record.case.distribution
        places.setdefault(place, []).append(record)
    return places


def _records_of(name: CandidateName, own: Sequence[Record]) -> Sequence[Record]:
    """Return the records of a candidate among those of its implementation on a distribution.

    If a compiled candidate was only run eagerly there, its eager records count.
    """
    same_mode = [record for record in own if record.case.mode is name[1]]
    return same_mode or [record for record in own if record.case.mode is Mode.EAGER]


def _similar(scenario: Scenario, groups: Groups) -> list[Scenario]:
    """Return the other scenarios whose errors are evidence for this one, the most similar first."""
    directions = _RELATED[scenario.case.direction]
    case, family = scenario.case, _family(scenario.case)
    similar = [
        other
        for other in groups
        # the cheap comparisons first: every pair of scenarios is compared
        if (other.case.dtype, other.case.device) == (case.dtype, case.device)
        and other.case.direction in directions
        and other.environment == scenario.environment
        and other != scenario
        and _family(other.case) == family
    ]

    def distance(other: Scenario) -> tuple[int, float]:
        ratio = max(other.case.hidden, 1) / max(case.hidden, 1)
        return directions.index(other.case.direction), abs(log(ratio))

    return sorted(similar, key=distance)


def _family(case: Case) -> Case:
    """Return the case without the axes that cancellation does not depend on."""
    return replace(case, shape=(), normalized_dims=0, direction=Direction.FORWARD, threads=1)


def _conditioned(records: Sequence[Record], max_condition: float) -> list[Record]:
    """Return the records of inputs that have to be served."""
    return [record for record in records if is_required(record, max_condition)]
