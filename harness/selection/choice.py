"""Which implementation to run: for each scenario of a run, and one for several scenarios.

Choices rest on records alone. Nothing here reads a clock or runs an implementation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf, isinf
from typing import TYPE_CHECKING, Any

from harness.cases.axes import AXES
from harness.records import OUR_TIMER, Direction, Environment, Estimate, Record, Run
from harness.records.refusal import NotComparableError, NotMeasuredError
from harness.records.text import grouped, suggest
from harness.selection.evidence import (
    DEFAULT_MAX_CONDITION,
    Accuracy,
    CandidateName,
    Disqualification,
    DisqualificationKind,
    Evidence,
    Groups,
    Requirements,
    Scenario,
    attainable_by,
    candidate_name,
    disqualification_of,
    evidence_for,
    is_required,
    merged_records,
    requirement_levels,
    time_disqualification,
    was_timed,
)
from harness.selection.ranking import (
    Candidate,
    Ranked,
    Times,
    geometric_mean,
    has_valid_time,
    label_of,
    rank,
    scaled,
    speed_of,
    times_of,
    widened,
)

if TYPE_CHECKING:  # it imports pyarrow, which `--help` does not need
    from harness.store import Results

FILTERS = ("shape", "dtype", "device", "direction")
"""The axes of a case by which scenarios can be filtered."""
Wanted = Mapping[str, Sequence[Any]]
"""Which scenarios to choose for: values by axis; an absent or empty axis means all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Ranked):
    """The choice for one scenario."""

    scenario: Scenario
    distributions: tuple[str, ...]
    """Distributions that any candidate was verified on."""
    times: Times
    any_condition: Choice | None
    """The choice for inputs of any condition number; None if this one is for any."""

    @property
    def native_s(self) -> Estimate | None:
        """Time of native, on the scale of the candidates' costs; None if it is not known."""
        return self.times.native_s

    def speed(self, candidate: Candidate) -> Estimate | None:
        """Return the speed of ``candidate`` relative to native; None if it is not known."""
        return speed_of(candidate, self.native_s)


@dataclass(frozen=True, slots=True)
class Slice:
    """A device, dtype and direction in one environment."""

    environment: str
    """Fingerprint."""
    device: str
    dtype: str
    direction: Direction

    @classmethod
    def of(cls, scenario: Scenario) -> Slice:
        case = scenario.case
        return cls(scenario.environment, case.device, case.dtype, case.direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallChoice(Ranked):
    """One implementation for all scenarios of a slice: costs are mean ratios to the reference."""

    fastest_in: int
    """Scenarios in which no eligible candidate is faster than the best beyond the intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to run under some requirements."""

    requirements: Requirements
    is_default: bool = True
    """Whether it is the answer to what was asked; the others are for comparison."""
    choices: tuple[Choice, ...]
    """For each timed scenario."""
    overall: dict[Slice, OverallChoice]
    """The choice for all scenarios of each slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices(Answer):
    """The choices for the scenarios of one or more runs."""

    untimed: tuple[Scenario, ...]
    """Scenarios that are wanted, but were measured for their errors only."""
    environments: dict[str, Environment]
    """By fingerprint."""
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    """Remarks on all choices, such as a run that was cut short."""

    @property
    def is_complete(self) -> bool:
        """Whether every scenario has an eligible candidate."""
        return all(choice.best is not None for choice in self.choices)


def choose(
    results: Sequence[Results],
    wanted: Wanted | None = None,
    requirements: Requirements | None = None,
) -> Choices:
    """Choose a candidate for every scenario of ``results``, each within one environment.

    Raises:
        NotMeasuredError: no case was measured, or none of the wanted scenarios has a valid time.
        NotComparableError: no scenario is wanted.
    """
    wanted, requirements = wanted or {}, requirements or Requirements()
    records = merged_records(results)
    if not any(record.status.is_measured for record in records):
        such_as = f", such as {records[0].case.id}: {records[0].reason}" if records else ""
        raise NotMeasuredError(f"no case was measured{such_as}")
    groups = Groups(records)
    scenarios = [
        scenario
        for scenario in groups
        if all(getattr(scenario.case, axis) in held for axis, held in wanted.items() if held)
    ]
    axes = {
        axis: [*dict.fromkeys(AXES[axis].text(getattr(one.case, axis)) for one in groups)]
        for axis in FILTERS
    }
    if not scenarios:
        held = "; ".join(f"{axis}: {', '.join(values)}" for axis, values in axes.items())
        raise NotComparableError(f"no scenario in the run matches; it holds {held}")
    timed = [scenario for scenario in scenarios if was_timed(groups[scenario])]
    own = [record for scenario in timed for record in groups[scenario]]
    if not any(map(has_valid_time, own)):
        rest = f" and {len(scenarios) - 1} more" if len(scenarios) > 1 else ""
        raise NotMeasuredError(
            f"there is no valid time for {scenarios[0].text}{rest}: run the sweep again with "
            "`--measure errors,latency,memory`"
        )
    used = {scenario.environment for scenario in timed}
    known = {name: found for result in results for name, found in result.environments.items()}
    unmeasured = (
        f"no case of {axis} {text} was measured{suggest(text, axes[axis])}"
        for axis, values in wanted.items()
        for text in map(AXES[axis].text, values)
        if text not in axes[axis]
    )
    choices = tuple(choose_for_scenario(one, groups, requirements) for one in timed)
    return Choices(
        choices=choices,
        overall=choose_overall(choices),
        untimed=tuple(scenario for scenario in scenarios if scenario not in timed),
        environments={name: found for name, found in known.items() if name in used},
        runs=tuple(dict.fromkeys(run for result in results for run in result.runs)),
        requirements=requirements,
        notes=(*unmeasured, *_notes(results, own)),
    )


def choose_for_scenario(
    scenario: Scenario,
    groups: Groups,
    requirements: Requirements,
    any_condition: Choice | None = None,
) -> Choice:
    """Choose a candidate for one scenario; records of all scenarios are evidence.

    Args:
        scenario: what to choose for.
        groups: the records of each scenario.
        requirements: what is required of the candidate.
        any_condition: the choice for inputs of any condition number, if it was made before.
    """
    if any_condition is None and not isinf(requirements.max_condition):
        unlimited = replace(requirements, max_condition=inf)
        any_condition = choose_for_scenario(scenario, groups, unlimited)
    evidence = evidence_for(scenario, groups, requirements.max_condition)
    times = any_condition.times if any_condition else times_of(groups[scenario])
    return Choice(
        scenario=scenario,
        ranking=rank(_candidates(times, evidence, requirements)),
        distributions=evidence.distributions,
        times=times,
        any_condition=any_condition,
    )


def _candidates(
    times: Times, evidence: Evidence, requirements: Requirements
) -> Iterator[Candidate]:
    accuracy = requirements.accuracy
    evidence_of = {name: (*own, *evidence.elsewhere[name]) for name, own in evidence.own.items()}
    attainable = attainable_by(chain.from_iterable(evidence_of.values()), accuracy)
    of_scenario = chain.from_iterable(evidence.own.values())
    required = {one.case.distribution for one in of_scenario if one.status in accuracy.accepted}
    for name in sorted(evidence.own, key=label_of):
        cost, record = times.costs.get(name), times.records.get(name)
        measured = (one for one in evidence_of[name] if one.status.is_measured)
        # not verified where another candidate is accurate enough
        missing = required - {record.case.distribution for record in evidence.own[name]}
        yield Candidate(
            implementation=name[0],
            mode=name[1],
            cost=cost,
            widened_cost=widened(cost, record) if cost and record else None,
            disqualification=(
                disqualification_of(evidence_of[name], attainable, requirements)
                or (_unverified(missing) if missing else None)
                or (time_disqualification(cost) if cost else _untimed(times.invalid.get(name)))
            ),
            evidence=evidence_of[name],
            timed=(record,) if record else (),
            peak_bytes=record.memory.peak_extra_bytes if record and record.memory else None,
            verified_on=len({one.case.distribution for one in measured}),
        )


def _unverified(missing: Iterable[str]) -> Disqualification:
    return Disqualification(kind=DisqualificationKind.UNVERIFIED, missing=tuple(sorted(missing)))


def _untimed(invalid: Record | None = None) -> Disqualification:
    if invalid is not None:
        return Disqualification(kind=DisqualificationKind.INVALID_TIME, records=(invalid,))
    return Disqualification(kind=DisqualificationKind.UNTIMED)


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


# --- one implementation for several scenarios -----------------------------------------------------


def combined(
    name: CandidateName,
    choices: Sequence[Choice],
    costs: Sequence[float],
    join: Callable[[Sequence[Estimate]], Estimate],
    *,
    is_partial: bool = False,
) -> Candidate:
    """Combine the candidates of one name in several scenarios.

    It is eligible only if it is eligible for all of them.

    Args:
        name: of the candidate.
        choices: those of the scenarios.
        costs: what the cost in each scenario is multiplied by.
        join: makes one cost of those in the scenarios.
        is_partial: whether it has a cost if it was not timed in all of them.
    """
    parts = [choice.candidate(name) for choice in choices]
    known = [part for part in parts if part]
    timed = [
        (scaled(part.cost, factor), scaled(part.widened_cost, factor))
        for part, factor in zip(parts, costs, strict=True)
        if part and part.cost and part.widened_cost
    ]
    has_cost = bool(timed) and (is_partial or len(timed) == len(parts))
    peaks = [part.peak_bytes for part in known if part.peak_bytes is not None]
    reasons = [part.disqualification if part else _untimed() for part in parts]
    return Candidate(
        implementation=name[0],
        mode=name[1],
        cost=join([cost for cost, _ in timed]) if has_cost else None,
        widened_cost=join([widened_cost for _, widened_cost in timed]) if has_cost else None,
        disqualification=_worst(reasons),
        evidence=_distinct(record for part in known for record in part.evidence),
        timed=tuple(record for part in known for record in part.timed),
        peak_bytes=max(peaks) if len(peaks) == len(parts) else None,
    )


def _worst(reasons: Sequence[Disqualification | None]) -> Disqualification | None:
    """Return the worst kind of some reasons, with the records of all reasons of this kind."""
    for kind in DisqualificationKind:
        if same := [reason for reason in reasons if reason and reason.kind is kind]:
            records = _distinct(record for reason in same for record in reason.records)
            missing = dict.fromkeys(name for reason in same for name in reason.missing)
            return Disqualification(kind=kind, records=records, missing=tuple(missing))
    return None


def _distinct(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return each object once: evidence of one scenario is evidence of similar ones too."""
    return tuple({id(record): record for record in records}.values())


def choose_overall(
    choices: Sequence[Choice],
    untimed: Mapping[Scenario, Sequence[Record]] | None = None,
    max_condition: float = inf,
) -> dict[Slice, OverallChoice]:
    """Choose for every slice in which ratios to a reference were timed.

    Args:
        choices: those for the timed scenarios.
        untimed: records of other scenarios, which can disqualify a candidate.
        max_condition: records of inputs with a larger condition number disqualify none.
    """
    slices = grouped(
        (Slice.of(choice.scenario), choice)
        for choice in choices
        if choice.times.reference_s is not None
    )
    elsewhere: dict[Slice, list[Record]] = {}
    for scenario, records in (untimed or {}).items():
        required = [record for record in records if is_required(record, max_condition)]
        elsewhere.setdefault(Slice.of(scenario), []).extend(required)
    return {key: _overall(own, elsewhere.get(key, ())) for key, own in slices.items()}


def _overall(choices: Sequence[Choice], elsewhere: Sequence[Record]) -> OverallChoice:
    factors = [1 / (choice.times.reference_s or inf) for choice in choices]
    names = dict.fromkeys(one.name for choice in choices for one in choice.candidates if one.cost)
    candidates = [
        combined(name, choices, factors, geometric_mean, is_partial=True) for name in names
    ]
    more = grouped((candidate_name(record), record) for record in elsewhere)
    evidence = {one.name: (*one.evidence, *more.get(one.name, ())) for one in candidates}
    attainable = attainable_by(chain.from_iterable(evidence.values()), Accuracy.RIGHT)
    for index, one in enumerate(candidates if elsewhere else ()):
        reason = disqualification_of(evidence[one.name], attainable, Requirements())
        candidates[index] = replace(one, disqualification=_worst([reason, one.disqualification]))
    ranking = rank(candidates)
    fastest_in = 0
    if ranking.best:
        for choice in choices:  # in each, those eligible for all of them have a finite cost
            costs = {one.name: one.widened_cost for one in choice.candidates if one.widened_cost}
            ends = [costs[one.name].high for one in ranking.eligible]
            fastest_in += costs[ranking.best.name].low <= min(ends)
    return OverallChoice(ranking=ranking, fastest_in=fastest_in)


def answers_of(
    records: Sequence[Record], max_condition: float = DEFAULT_MAX_CONDITION
) -> tuple[Answer, ...]:
    """Return an answer for each requirement whose answer can differ, the least one first."""
    groups = Groups(records)
    of_any = {
        scenario: choose_for_scenario(scenario, groups, Requirements(max_condition=inf))
        for scenario, own in groups.items()
        if any(record.latency is not None for record in own)
    }
    untimed = {scenario: own for scenario, own in groups.items() if scenario not in of_any}
    answers: list[Answer] = []
    last = of_any
    for level in reversed(requirement_levels(records, max_condition)):
        required = Requirements(max_condition=level)
        last = {
            scenario: _narrowed(choice, groups, required, of_any[scenario])
            for scenario, choice in last.items()
        }
        choices, is_default = tuple(last.values()), level == max_condition
        overall = choose_overall(choices, untimed, level)
        answers.append(
            Answer(requirements=required, is_default=is_default, choices=choices, overall=overall)
        )
    return tuple(reversed(answers))


def _narrowed(choice: Choice, groups: Groups, required: Requirements, of_any: Choice) -> Choice:
    """Return the choice under a lower requirement; the same if no evidence lies beyond it."""
    level = required.max_condition
    if isinf(level):
        return of_any
    if all(is_required(record, level) for one in choice.candidates for record in one.evidence):
        return replace(choice, any_condition=of_any)
    return choose_for_scenario(choice.scenario, groups, required, of_any)
