"""What a run asks of every implementation, and whose records bear upon the answer.

A scenario is a shape, dtype, device and direction with its settings, in one environment. Its own
records answer it; on distributions that it was not tried on, those of the most alike scenario of
the run that was can only speak against: cancellation does not ask for the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from harness.records import OUR_TIMER, Case, Direction, Mode, Record
from harness.store import Results

__all__ = [
    "Evidence",
    "Groups",
    "Name",
    "Scenario",
    "evidence_for",
    "merged_records",
    "name_of",
    "scenarios_of",
    "was_timed",
]

_USUAL = Case(implementation="", shape=())
# whose errors bear upon a direction, the nearest first: a backward is verified from its forward on
_NEAR: Mapping[Direction, tuple[Direction, ...]] = {
    Direction.FORWARD: (Direction.FORWARD,),
    Direction.BACKWARD: (Direction.BACKWARD, Direction.FORWARD_BACKWARD, Direction.FORWARD),
    Direction.FORWARD_BACKWARD: (
        Direction.FORWARD_BACKWARD,
        Direction.BACKWARD,
        Direction.FORWARD,
    ),
}

Groups = Mapping["Scenario", Sequence[Record]]
Name = tuple[str, Mode]
"""Who answers: the implementation, and how it is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is asked of every candidate."""

    case: Case
    """Its axes; those of the inputs' values, and of who answers, at their usual values."""
    environment: str
    """Fingerprint of where it was asked."""

    @property
    def words(self) -> str:
        """The scenario in one line, without its environment."""
        case = self.case
        shape = "x".join(map(str, case.shape)) or "scalar"
        return " ".join([shape, case.dtype, case.device, case.direction, *self.settings])

    @property
    def settings(self) -> tuple[str, ...]:
        """The axes beyond shape, dtype, device and direction that are not as usual."""
        return replace(self.case, device=_USUAL.device).settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The records that bear upon a scenario, by candidate."""

    own: dict[Name, tuple[Record, ...]]
    """Measured for the scenario itself."""
    elsewhere: dict[Name, tuple[Record, ...]]
    """Of distributions that it was not tried on."""
    distributions: tuple[str, ...]
    """That any candidate was verified on."""


def merged_records(results: Sequence[Results]) -> tuple[Record, ...]:
    """Lay files side by side: a case measured twice in one environment counts once, the later.

    What another timer measured stands beside it, and takes no place of ours.
    """
    kept: dict[tuple[str, str, str], Record] = {}
    for each in results:
        kept.update({
            (record.case.id, record.environment, _timer_of(record)): record
            for record in each.records
        })
    return tuple(kept.values())


def _timer_of(record: Record) -> str:
    return OUR_TIMER if record.latency is None else record.latency.timer


def scenarios_of(records: Iterable[Record]) -> dict[Scenario, list[Record]]:
    """Sort records by the scenario that they answer, in the order of the run."""
    groups: dict[Scenario, list[Record]] = {}
    for record in records:
        groups.setdefault(_scenario_of(record), []).append(record)
    return groups


def was_timed(records: Sequence[Record]) -> bool:
    """Whether time was asked for, as far as records tell: of failed cases none is there."""
    return any(each.latency is not None for each in records) or not any(
        each.status.is_measured for each in records
    )


def evidence_for(
    scenario: Scenario, groups: Groups, max_condition: float | None = None
) -> Evidence:
    """Gather what bears upon a scenario; nothing of inputs conditioned worse than allowed."""
    own = groups[scenario]
    tried = {each.case.distribution for each in own if each.status.is_measured}
    own = [each for each in own if _is_conditioned(each, max_condition)]
    names = dict.fromkeys(map(name_of, groups[scenario]))
    near = [
        [each for each in groups[other] if _is_conditioned(each, max_condition)]
        for other in _nearest(scenario, groups)
    ]
    elsewhere: dict[Name, tuple[Record, ...]] = dict.fromkeys(names, ())
    distributions = dict.fromkeys(each.case.distribution for each in own if each.status.is_measured)
    for records in near:
        fresh = dict.fromkeys(
            each.case.distribution
            for each in records
            if each.status.is_measured and each.case.distribution not in tried
        )
        tried |= set(fresh)
        distributions |= fresh
        for name in names:
            found = [
                record
                for distribution in fresh
                for record in _of(name, distribution, records)
                if record.status.is_measured
            ]
            elsewhere[name] += tuple(found)
    return Evidence(
        own={name: tuple(each for each in own if name_of(each) == name) for name in names},
        elsewhere=elsewhere,
        distributions=tuple(distributions),
    )


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


def name_of(record: Record) -> Name:
    """Return who answered."""
    return record.case.implementation, record.case.mode


def _of(name: Name, distribution: str, records: Sequence[Record]) -> list[Record]:
    """Records of a candidate, or where it was only run eagerly there, of its eager form."""
    own = [
        each
        for each in records
        if each.case.implementation == name[0] and each.case.distribution == distribution
    ]
    same_mode = [each for each in own if each.case.mode is name[1]]
    return same_mode or [each for each in own if each.case.mode is Mode.EAGER]


def _nearest(scenario: Scenario, groups: Groups) -> list[Scenario]:
    """Other scenarios whose errors bear upon this one, the most alike first."""
    directions = _NEAR[scenario.case.direction]
    case, family = scenario.case, _family(scenario.case)
    alike = [
        each
        for each in groups
        # the cheap ones first: there are as many pairs as scenarios squared
        if (each.case.dtype, each.case.device) == (case.dtype, case.device)
        and each.case.direction in directions
        and each.environment == scenario.environment
        and each != scenario
        and _family(each.case) == family
    ]

    def distance(other: Scenario) -> tuple[int, float]:
        ratio = max(other.case.hidden, 1) / max(case.hidden, 1)
        return directions.index(other.case.direction), abs(log(ratio))

    return sorted(alike, key=distance)


def _family(case: Case) -> Case:
    """The case without what cancellation does not ask for."""
    return replace(case, shape=(), normalized_dims=0, direction=Direction.FORWARD, threads=1)


def _is_conditioned(record: Record, max_condition: float | None) -> bool:
    errors = record.errors
    if max_condition is None or errors is None:
        return True
    return errors.condition_max_ratio <= max_condition
