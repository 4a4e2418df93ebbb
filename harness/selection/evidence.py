"""The evidence for a choice: scenarios of a run, records that count for them, who is eligible.

A scenario is a shape, dtype, device and direction with its settings, in one environment. Its own
records are the evidence for it. On distributions that were not tried in a scenario, records of the
most similar scenario count too: they can disqualify a candidate but never qualify it, because
cancellation does not depend on the shape or the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import inf, isinf, log
from operator import attrgetter
from typing import TYPE_CHECKING

from harness.records import OUR_TIMER, Case, Direction, Estimate, Mode, Record, Status
from harness.records.text import grouped, shape_text

if TYPE_CHECKING:  # it imports pyarrow, which `--help` does not need
    from harness.store import Results

DEFAULT_MAX_CONDITION = 1e3
"""Largest condition number that an implementation has to serve, unless the user says otherwise.

The condition number of a row is 1/sin(a), where a is the angle between the row and the vector of
ones. Gupta et al. (Findings of EACL 2026, arXiv:2409.12951) measured that angle in language models
with LayerNorm and with RMSNorm: on average the rows have no component along the vector of ones, so
that the condition number is near 1. Activations that are 1e5 times the others (Sun et al., COLM
2024, arXiv:2402.17762) lower it, since they raise the variance more than the mean. Both papers are
about averages or single values, not about the worst row of every model, so this is three powers of
ten above what they measured. Bug reports show more (3e3 in ml-explore/mlx#2238, for instance).
"""
_SLACK_RATIO = 1.1
"""The worst of many rows of "normal plus 1e3" has a condition number a few percent above 1e3."""
_LEVELS = (10.0, 1e3, 1e6)
"""Requirements to show beside "all inputs": activations, the default, raw data with an offset."""
_MOST_RECORDS = 20_000  # trade-off: of more, each further level takes seconds

_OF_CANDIDATE = ("implementation", "mode")
_OF_INPUTS = ("distribution", "grad_output", "parameters", "seed")
_USUAL = Case(implementation="", shape=())
CandidateName = tuple[str, Mode]
"""The implementation, and how it is run."""
Point = tuple[object, ...]
"""The axes of a case, all but the candidate."""


class Accuracy(StrEnum):
    """Which results of a candidate are good enough."""

    RIGHT = "right"
    """Results within its error bound."""
    INACCURATE = "inaccurate"
    """Also those within the bound of the same algorithm with narrower statistics or sums."""

    @property
    def accepted(self) -> frozenset[Status]:
        """The statuses of such results."""
        right = frozenset({Status.OK})
        return right if self is Accuracy.RIGHT else right | {Status.INACCURATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of the user for the results of a candidate."""

    accuracy: Accuracy = Accuracy.RIGHT
    max_error_ulp: float | None = None
    """Largest allowed error of its worst output, scaled."""
    max_condition: float = DEFAULT_MAX_CONDITION
    """Records of inputs with a larger condition number are ignored; infinite for none."""


def is_required(record: Record, max_condition: float) -> bool:
    """Whether the inputs of ``record`` are among those that a candidate has to serve."""
    errors = record.errors
    return errors is None or not errors.condition_max_ratio > _SLACK_RATIO * max_condition


def requirement_levels(records: Sequence[Record], max_condition: float) -> tuple[float, ...]:
    """Return the largest condition numbers whose answers can differ, ``max_condition`` among them.

    A level is left out if no input was measured between it and the level before it. Of many records
    only two levels are shown: ``max_condition`` and all inputs.
    """
    wanted = _LEVELS if len(records) <= _MOST_RECORDS else ()
    measured = {record.errors.condition_max_ratio for record in records if record.errors}
    levels: list[float] = []
    low = 0.0
    for level in sorted({*wanted, inf, max_condition}):
        high = _SLACK_RATIO * level
        if level == max_condition or any(low < condition <= high for condition in measured):
            levels.append(level)
            low = high
    return tuple(levels)


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
class _Tried:
    """What was tried in a scenario, with inputs up to a condition number."""

    records: dict[CandidateName, list[Record]]
    """By candidate."""
    measured: dict[tuple[CandidateName, str], list[Record]]
    """By candidate and distribution; the list is empty if the records there are of failed cases."""
    distributions: dict[str, None]
    """On which any candidate was measured, in order."""


class Groups(dict[Scenario, list[Record]]):
    """The records of each scenario, in the order of the run."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__()
        self._tried: dict[tuple[Scenario, float], _Tried] = {}
        usual = {axis: getattr(_USUAL, axis) for axis in (*_OF_CANDIDATE, *_OF_INPUTS)}
        for record in records:
            case = replace(record.case, **usual)
            scenario = Scenario(case=case, environment=record.environment)
            self.setdefault(scenario, []).append(record)

    def tried(self, scenario: Scenario, max_condition: float) -> _Tried:
        """Return what was tried; kept, because a run has tens of thousands of records."""
        if (scenario, max_condition) not in self._tried:
            found = _Tried(records={}, measured={}, distributions={})
            for record in self[scenario]:
                if is_required(record, max_condition):
                    name, distribution = candidate_name(record), record.case.distribution
                    found.records.setdefault(name, []).append(record)
                    measured = found.measured.setdefault((name, distribution), [])
                    if record.status.is_measured:
                        measured.append(record)
                        found.distributions[distribution] = None
            self._tried[scenario, max_condition] = found
        return self._tried[scenario, max_condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The records that are evidence for a scenario, by candidate."""

    own: dict[CandidateName, Sequence[Record]]
    """Measured in the scenario itself."""
    elsewhere: dict[CandidateName, list[Record]]
    """Measured in similar scenarios, on distributions that were not tried in this one."""
    distributions: tuple[str, ...]
    """Distributions that any candidate was verified on."""


def merged_records(results: Sequence[Results]) -> tuple[Record, ...]:
    """Return the records of all files; of a case measured twice in one environment, the later.

    A record of another timer is kept beside it, and does not replace it.
    """
    kept: dict[tuple[str, str, str], Record] = {}
    for record in (record for result in results for record in result.records):
        timer = OUR_TIMER if record.latency is None else record.latency.timer
        # the position in the order of the run is that of the first
        kept[record.case.id, record.environment, timer] = record
    return tuple(kept.values())


def was_timed(records: Sequence[Record]) -> bool:
    """Whether times were measured, or may have been: records of failed cases cannot tell."""
    return any(record.latency is not None for record in records) or not any(
        record.status.is_measured for record in records
    )


def evidence_for(scenario: Scenario, groups: Groups, max_condition: float) -> Evidence:
    """Return the evidence for a scenario: records of inputs up to ``max_condition``."""
    own, of_any = groups.tried(scenario, max_condition), groups.tried(scenario, inf)
    tried, verified = {*of_any.distributions}, dict(own.distributions)
    elsewhere: dict[CandidateName, list[Record]] = {name: [] for name in of_any.records}
    for other in _similar(scenario, groups):
        similar = groups.tried(other, max_condition)
        new = [name for name in similar.distributions if name not in tried]
        tried.update(new)
        verified |= dict.fromkeys(new)
        for name, records in elsewhere.items():
            for distribution in new:
                # if a compiled candidate was only run eagerly there, its eager records count
                eager = similar.measured.get(((name[0], Mode.EAGER), distribution), [])
                records += similar.measured.get((name, distribution), eager)
    return Evidence(
        own={name: own.records.get(name, ()) for name in of_any.records},
        elsewhere=elsewhere,
        distributions=tuple(verified),
    )


def candidate_name(record: Record) -> CandidateName:
    """Return the name of the candidate that was measured."""
    return record.case.implementation, record.case.mode


def _similar(scenario: Scenario, groups: Groups) -> list[Scenario]:
    """Return the other scenarios whose errors are evidence for this one, the most similar first."""
    case, family = scenario.case, _family(scenario.case)
    # those whose errors are evidence, the most similar first; of a forward no backward is
    others = () if case.direction is Direction.FORWARD else reversed(Direction)
    directions = [*dict.fromkeys((case.direction, *others))]
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
    shapeless = replace(case, shape=(), normalized_dims=0, direction=Direction.FORWARD, threads=1)
    return replace(shapeless, layout=_USUAL.layout)


class DisqualificationKind(StrEnum):
    """Why a candidate is not eligible, the worst first."""

    WRONG = "wrong"
    """A result is outside every bound."""
    OUT_OF_GUARANTEE = "out_of_guarantee"
    """No bound holds where one does for another candidate, or no bound holds anywhere."""
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    """It declines a case that another candidate runs."""
    INACCURATE = "inaccurate"
    """A result is within the bound of narrower statistics or sums only, and that is not accepted.
    It follows the reasons that no ``Accuracy`` removes."""
    UNVERIFIED = "unverified"
    """Its errors were not measured, or not on every distribution where others were verified."""
    ABOVE_MAX_ERROR = "above_max_error"
    """Its error is above the requirement."""
    INVALID_TIME = "invalid_time"
    """It was timed, and the time is not believable."""
    TOO_FEW_SAMPLES = "too_few_samples"
    """It was timed, but its time has no interval."""
    UNTIMED = "untimed"
    """It was not timed on the inputs, or by the timer, that the others were timed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disqualification:
    """Why a candidate is not eligible."""

    kind: DisqualificationKind
    records: tuple[Record, ...] = ()
    """Records that show it."""
    missing: tuple[str, ...] = ()
    """Distributions on which others were verified and this candidate was not."""


point_of: Callable[[Case], Point] = attrgetter(
    *(axis.name for axis in fields(Case) if axis.name not in _OF_CANDIDATE)
)
"""Return the axes of a case beside its implementation and mode: equal for all candidates."""


def attainable_by(records: Iterable[Record], accuracy: Accuracy) -> dict[Point, bool]:
    """Return the points at which a candidate ran, and whether one was accurate enough there."""
    accepted = accuracy.accepted
    attainable: dict[Point, bool] = {}
    for record in records:
        if record.status.is_measured:
            point = point_of(record.case)
            attainable[point] = attainable.get(point, False) or record.status in accepted
    return attainable


def disqualification_of(
    own: Sequence[Record], attainable: Mapping[Point, bool], requirements: Requirements
) -> Disqualification | None:
    """Return the worst reason that makes a candidate ineligible; None if it is eligible.

    A wrong result always disqualifies. A case that no candidate can run, such as values beyond the
    range of the dtype, or that no bound covers, disqualifies no candidate that is right elsewhere.

    Args:
        own: records of the candidate.
        attainable: as :func:`attainable_by` returns it for all candidates.
        requirements: which results are accepted, and how large their errors may be.
    """
    accepted, max_error_ulp = requirements.accuracy.accepted, requirements.max_error_ulp
    measured = [record for record in own if record.status.is_measured]
    is_accepted_elsewhere = any(record.status in accepted for record in own)

    def counts(record: Record) -> bool:
        if record.status is Status.OUT_OF_GUARANTEE and is_accepted_elsewhere:
            return attainable.get(point_of(record.case), False)
        return record.status.is_measured or not measured or point_of(record.case) in attainable

    of_status = grouped((str(record.status), record) for record in own if counts(record))
    for kind in DisqualificationKind:
        if (records := of_status.get(kind)) and kind.value not in accepted:
            return Disqualification(kind=kind, records=tuple(records))
    unknown = tuple(record for record in measured if record.worst_ulp is None)
    if len(unknown) == len(measured):
        return Disqualification(kind=DisqualificationKind.UNVERIFIED)
    if max_error_ulp is None:
        return None
    if unknown:
        return Disqualification(kind=DisqualificationKind.UNVERIFIED, records=unknown)
    above = tuple(record for record in measured if not (record.worst_ulp or 0.0) <= max_error_ulp)
    kind = DisqualificationKind.ABOVE_MAX_ERROR
    return Disqualification(kind=kind, records=above) if above else None


def time_disqualification(cost: Estimate) -> Disqualification | None:
    """Return why a time cannot be compared; None if it is finite and has an interval."""
    if 0 <= cost.low <= cost.value <= cost.high < inf and cost.value > 0:
        return None
    if 0 < cost.value < inf and isinf(cost.high):
        return Disqualification(kind=DisqualificationKind.TOO_FEW_SAMPLES)
    return Disqualification(kind=DisqualificationKind.INVALID_TIME)
