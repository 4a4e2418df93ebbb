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


class Groups(dict[Scenario, list[Record]]):
    """The records of each scenario, in the order of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._tried: dict[tuple[Scenario, float], _Tried] = {}

    def tried(self, scenario: Scenario, max_condition: float) -> _Tried:
        """Return what was tried in a scenario, with inputs up to a condition number.

        It is kept: each scenario is evidence for many, and a run has tens of thousands of records.
        """
        key = scenario, max_condition
        if key not in self._tried:
            self._tried[key] = _tried(self[scenario], max_condition)
        return self._tried[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What was tried in a scenario."""

    records: dict[CandidateName, tuple[Record, ...]]
    """By candidate."""
    measured: dict[tuple[CandidateName, str], list[Record]]
    """By candidate and distribution; the list is empty if the records there are of failed cases."""
    distributions: dict[str, None]
    """On which any candidate was measured, in order."""


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


def scenarios_of(records: Iterable[Record]) -> Groups:
    """Group records by scenario, in the order of the run."""
    groups = Groups()
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
    own = groups.tried(scenario, max_condition)
    names = groups.tried(scenario, inf).records
    tried = set(groups.tried(scenario, inf).distributions)
    verified = dict(own.distributions)
    elsewhere: dict[CandidateName, list[Record]] = {name: [] for name in names}
    for other in _similar(scenario, groups):
        similar = groups.tried(other, max_condition)
        new = [each for each in similar.distributions if each not in tried]
        tried.update(new)
        verified |= dict.fromkeys(new)
        for name, records in elsewhere.items():
            for distribution in new:
                records += _measured(similar, name, distribution)
    return Evidence(
        own={name: own.records.get(name, ()) for name in names},
        elsewhere={name: tuple(records) for name, records in elsewhere.items()},
        distributions=tuple(verified),
    )


def _tried(records: Sequence[Record], max_condition: float) -> _Tried:
    by_name: dict[CandidateName, list[Record]] = {}
    measured: dict[tuple[CandidateName, str], list[Record]] = {}
    distributions: dict[str, None] = {}
    for record in records:
        if not is_required(record, max_condition):
            continue
        name, distribution = candidate_name(record), record.case.distribution
        by_name.setdefault(name, []).append(record)
        on_distribution = measured.setdefault((name, distribution), [])
        if record.status.is_measured:
            on_distribution.append(record)
            distributions[distribution] = None
    return _Tried(
        records={name: tuple(own) for name, own in by_name.items()},
        measured=measured,
        distributions=distributions,
    )


def _measured(tried: _Tried, name: CandidateName, distribution: str) -> Sequence[Record]:
    """Return the measured records of a candidate on a distribution.

    If a compiled candidate was only run eagerly there, its eager records count.
    """
    found = tried.measured.get((name, distribution))
    return tried.measured.get(((name[0], Mode.EAGER), distribution), ()) if found is None else found


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
