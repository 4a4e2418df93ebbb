"""Which implementation to run, for each scenario of a run: shape, dtype, device and direction.

Choices rest on records alone. Nothing here reads a clock or runs an implementation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf

from harness.records import OUR_TIMER, Case, Environment, Estimate, Record, Run, Status
from harness.records.refusal import Refusal
from harness.records.text import in_words, shape_text, suggest
from harness.selection.eligibility import (
    Disqualification,
    DisqualificationKind,
    attainable_by,
    disqualification_of,
    time_disqualification,
)
from harness.selection.ranking import Candidate, CandidateName, Ranking, rank, speed_of
from harness.selection.requirement import Requirements
from harness.selection.scenarios import (
    Evidence,
    Groups,
    Scenario,
    candidate_name,
    evidence_for,
    merged_records,
    scenarios_of,
    was_timed,
)
from harness.selection.times import NATIVE, Times, has_valid_time, times_of, widened
from harness.store import Results

__all__ = [
    "Choice",
    "Choices",
    "NoTimesError",
    "NotInRunError",
    "ScenarioFilter",
    "choose",
    "choose_for_scenario",
]


class NoTimesError(Refusal):
    """There is no time to choose by."""

    exit_code = 3


class NotInRunError(Refusal):
    """The run holds no scenario that matches."""

    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFilter:
    """Which scenarios to choose for; an empty axis means all of its values."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()

    def matches(self, case: Case) -> bool:
        return (
            (not self.shapes or case.shape in self.shapes)
            and (not self.dtypes or case.dtype in self.dtypes)
            and (not self.devices or case.device in self.devices)
            and (not self.directions or str(case.direction) in self.directions)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choice for one scenario."""

    scenario: Scenario
    ranking: Ranking
    candidates: tuple[Candidate, ...]
    """The fastest first; those without a time are last."""
    distributions: tuple[str, ...]
    """Distributions that any candidate was verified on."""
    native_s: Estimate | None
    """Time of native, on the scale of the candidates' costs; None if it is not known."""
    any_condition: Choice | None
    """The choice for inputs of any condition number; None if this one is for any."""

    @property
    def best(self) -> Candidate | None:
        return self.ranking.best

    def speed(self, candidate: Candidate) -> Estimate | None:
        """Return the speed of ``candidate`` relative to native; None if it is not known."""
        if candidate.name == NATIVE:
            return Estimate(value=1.0, low=1.0, high=1.0)
        return speed_of(candidate, self.native_s)

    def at_any_condition(self, candidate: Candidate) -> Candidate | None:
        """Return the candidate of the same name in the choice for any condition number."""
        others = self.any_condition.candidates if self.any_condition else ()
        return next((each for each in others if each.name == candidate.name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices for the scenarios of one or more runs."""

    choices: tuple[Choice, ...]
    records: tuple[Record, ...]
    """Of the scenarios that were chosen for."""
    untimed: tuple[Scenario, ...]
    """Scenarios that match the filter, but were measured for their errors only."""
    environments: dict[str, Environment]
    """By fingerprint."""
    runs: tuple[Run, ...]
    requirements: Requirements
    notes: tuple[str, ...] = ()
    """Remarks on all choices, such as a run that was cut short."""

    @property
    def is_complete(self) -> bool:
        """Whether every scenario has an eligible candidate."""
        return all(choice.best is not None for choice in self.choices)


def choose(
    results: Sequence[Results],
    scenario_filter: ScenarioFilter | None = None,
    requirements: Requirements | None = None,
) -> Choices:
    """Choose a candidate for every scenario of ``results``, each within one environment.

    Raises:
        NoTimesError: no case was measured, or none of the matching scenarios has a valid time.
        NotInRunError: no scenario matches the filter.
    """
    scenario_filter = scenario_filter or ScenarioFilter()
    requirements = requirements or Requirements()
    records = merged_records(results)
    _refuse_unmeasured(records)
    groups = scenarios_of(records)
    scenarios = [scenario for scenario in groups if scenario_filter.matches(scenario.case)]
    if not scenarios:
        held = "; ".join(f"{name}: {', '.join(values)}" for name, values in _axes(groups).items())
        raise NotInRunError(f"no scenario in the run matches; it holds {held}")
    timed = [scenario for scenario in scenarios if was_timed(groups[scenario])]
    if not any(has_valid_time(record) for scenario in timed for record in groups[scenario]):
        rest = f" and {len(scenarios) - 1} more" if len(scenarios) > 1 else ""
        raise NoTimesError(
            f"there is no valid time for {scenarios[0].text}{rest}: run the sweep again with "
            "`--measure errors,latency,memory`"
        )
    used = {scenario.environment for scenario in timed}
    return Choices(
        choices=tuple(choose_for_scenario(each, groups, requirements) for each in timed),
        records=tuple(record for scenario in timed for record in groups[scenario]),
        untimed=tuple(scenario for scenario in scenarios if scenario not in timed),
        environments={
            name: environment
            for result in results
            for name, environment in result.environments.items()
            if name in used
        },
        runs=tuple(dict.fromkeys(run for result in results for run in result.runs)),
        requirements=requirements,
        notes=(
            *_unmatched(scenario_filter, groups),
            *_notes(results, [record for scenario in timed for record in groups[scenario]]),
        ),
    )


def choose_for_scenario(
    scenario: Scenario,
    groups: Groups,
    requirements: Requirements | None = None,
    any_condition: Choice | None = None,
) -> Choice:
    """Choose a candidate for one scenario; records of all scenarios are evidence.

    Args:
        scenario: what to choose for.
        groups: the records of each scenario.
        requirements: what is required of the candidate.
        any_condition: the choice for inputs of any condition number, if it was made before.
    """
    requirements = requirements or Requirements()
    if isinf(requirements.max_condition):
        any_condition = None
    elif any_condition is None:
        unlimited = replace(requirements, max_condition=inf)
        any_condition = choose_for_scenario(scenario, groups, unlimited)
    evidence = evidence_for(scenario, groups, requirements.max_condition)
    times = times_of(groups[scenario])
    candidates = sorted(
        _candidates(times, evidence, requirements.max_error_ulp),
        key=lambda each: (inf if each.cost is None else each.cost.value, each.label),
    )
    return Choice(
        scenario=scenario,
        ranking=rank(candidates),
        candidates=tuple(candidates),
        distributions=evidence.distributions,
        native_s=times.native_s,
        any_condition=any_condition,
    )


def _candidates(
    times: Times, evidence: Evidence, max_error_ulp: float | None
) -> Iterator[Candidate]:
    all_own = [record for own in evidence.own.values() for record in own]
    all_elsewhere = [record for own in evidence.elsewhere.values() for record in own]
    attainable = attainable_by([*all_own, *all_elsewhere])
    required = {record.case.distribution for record in all_own if record.status is Status.OK}
    for name, own in evidence.own.items():
        every = (*own, *evidence.elsewhere[name])
        cost, record = times.costs.get(name), times.records.get(name)
        verified_on = {each.case.distribution for each in every if each.status.is_measured}
        yield Candidate(
            implementation=name[0],
            mode=name[1],
            cost=cost,
            widened_cost=widened(cost, record) if cost and record else None,
            disqualification=(
                disqualification_of(every, attainable, max_error_ulp)
                or _unverified(own, required)
                or _untimed(name, times)
            ),
            evidence=every,
            timed=(record,) if record else (),
            peak_bytes=record.memory.peak_extra_bytes if record and record.memory else None,
            verified_on=len(verified_on),
        )


def _unverified(own: Sequence[Record], required: set[str]) -> Disqualification | None:
    """Disqualify a candidate not verified on a distribution where another one is right."""
    missing = required - {record.case.distribution for record in own}
    if not missing:
        return None
    return Disqualification(kind=DisqualificationKind.UNVERIFIED, missing=tuple(sorted(missing)))


def _untimed(name: CandidateName, times: Times) -> Disqualification | None:
    """Disqualify a candidate without a time that can be compared."""
    if name in times.costs:
        return time_disqualification(times.costs[name])
    if name in times.invalid:
        return Disqualification(
            kind=DisqualificationKind.INVALID_TIME, records=(times.invalid[name],)
        )
    return Disqualification(kind=DisqualificationKind.UNTIMED)


def _refuse_unmeasured(records: Sequence[Record]) -> None:
    if any(record.status.is_measured for record in records):
        return
    if not records:
        raise NoTimesError("the run holds no case; run the sweep again and see what ends it")
    statuses = Counter(in_words(record.status) for record in records)
    ended = ", ".join(f"{number} {status}" for status, number in statuses.items())
    raise NoTimesError(
        f"no case was measured ({ended}), such as {records[0].case.id}: {records[0].reason}"
    )


def _axes(groups: Groups) -> dict[str, tuple[str, ...]]:
    """Return the values of each axis of the filter, as written on the command line."""
    cases = [scenario.case for scenario in groups]
    return {
        "shape": tuple(dict.fromkeys(shape_text(case.shape) for case in cases)),
        "dtype": tuple(dict.fromkeys(case.dtype for case in cases)),
        "device": tuple(dict.fromkeys(case.device for case in cases)),
        "direction": tuple(dict.fromkeys(str(case.direction) for case in cases)),
    }


def _unmatched(scenario_filter: ScenarioFilter, groups: Groups) -> Iterator[str]:
    """Name the values of the filter that no case has."""
    shapes = map(shape_text, scenario_filter.shapes)
    wanted = (shapes, scenario_filter.dtypes, scenario_filter.devices, scenario_filter.directions)
    for (name, held), values in zip(_axes(groups).items(), wanted, strict=True):
        for value in values:
            if value not in held:
                yield f"no case of {name} {value} was measured{suggest(value, held)}"


def _notes(results: Sequence[Results], timed: Sequence[Record]) -> Iterable[str]:
    for result in results:
        if why := result.why_unfinished:
            yield f"the run was cut short: {why}; continue it with --resume"
    names = {candidate_name(record) for record in timed}
    if len(names) == 1:
        yield f"{next(iter(names))[0]} is the only candidate that was measured"
    environments = len({record.environment for record in timed})
    if environments > 1:
        yield f"{environments} environments: their times are not compared, each has its own choice"
    timers = Counter(record.latency.timer for record in timed if record.latency)
    if timers.keys() - {OUR_TIMER}:
        cases = ", ".join(f"{timer} {number}" for timer, number in timers.most_common())
        yield f"cases by timer: {cases}; times of two timers are never compared"
