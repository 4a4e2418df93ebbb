"""Which implementation to run, for each shape, dtype, device and direction of a run.

Only records speak; what was not measured is chosen by nobody. Nothing here reads a clock or runs
an implementation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from harness.records import OUR_TIMER, Case, Environment, Record, Run, Status
from harness.records.refusal import Refusal
from harness.selection.eligibility import (
    Disqualification,
    DisqualificationKind,
    attainable_by,
    disqualification_of,
    time_disqualification,
)
from harness.selection.ranking import Candidate, Ranking, rank
from harness.selection.scenarios import (
    Evidence,
    Groups,
    Name,
    Scenario,
    evidence_for,
    merged_records,
    name_of,
    scenarios_of,
    was_timed,
)
from harness.selection.times import counts, times_of, widened
from harness.store import Results
from harness.sweep import suggest

__all__ = [
    "Choice",
    "Choices",
    "NoTimesError",
    "NotInRunError",
    "Requirements",
    "ScenarioFilter",
    "choose",
    "disqualifications_of",
]


class NoTimesError(Refusal):
    """There is no time to choose by."""

    exit_code = 3


class NotInRunError(Refusal):
    """What was asked for is not in the run."""

    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFilter:
    """Which scenarios to answer; an empty axis is every one."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What is asked of an implementation beyond its own bound."""

    max_error_ulp: float | None = None
    """Largest error of its worst output, scaled."""
    max_condition: float | None = None
    """Largest condition of the inputs that it has to serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer to one scenario."""

    scenario: Scenario
    ranking: Ranking
    candidates: tuple[Candidate, ...]
    """All that were asked, the fastest first; those without a time are last."""
    distributions: tuple[str, ...]
    """That any of them was verified on."""

    @property
    def best(self) -> Candidate | None:
        return self.ranking.best


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a run, or several, answer."""

    choices: tuple[Choice, ...]
    untimed: tuple[Scenario, ...]
    """ScenarioFilter as well, but measured for their errors alone."""
    environments: dict[str, Environment]
    """By fingerprint."""
    runs: tuple[Run, ...]
    requirements: Requirements
    notes: tuple[str, ...] = ()
    """What holds for all: a run that was cut short, one candidate only."""

    @property
    def is_complete(self) -> bool:
        """Whether every scenario has an answer other than none."""
        return all(each.best is not None for each in self.choices)


def choose(
    results: Sequence[Results],
    wanted: ScenarioFilter | None = None,
    requirements: Requirements | None = None,
) -> Choices:
    """Answer every scenario that ``results`` hold, each within one environment.

    Raises:
        NoTimesError: no record, none that was measured, or no time among those wanted.
        NotInRunError: no scenario is as wanted.
    """
    wanted, requirements = wanted or ScenarioFilter(), requirements or Requirements()
    records = merged_records(results)
    _refuse_unmeasured(records)
    groups = scenarios_of(records)
    found = [each for each in groups if _is_wanted(each.case, wanted)]
    if not found:
        raise NotInRunError(f"nothing measured is as asked for; there is {_what_there_is(groups)}")
    timed = [each for each in found if was_timed(groups[each])]
    if not any(counts(record) for each in timed for record in groups[each]):
        raise NoTimesError(
            f"no time that counts is among {_several(found)}: run the sweep again with "
            "`--measure errors,latency,memory`"
        )
    return Choices(
        choices=tuple(_answer(each, groups, requirements) for each in timed),
        untimed=tuple(each for each in found if each not in timed),
        environments={
            name: found
            for each in results
            for name, found in each.environments.items()
            if any(scenario.environment == name for scenario in timed)
        },
        runs=tuple(dict.fromkeys(run for each in results for run in each.runs)),
        requirements=requirements,
        notes=(*_absent(wanted, groups), *_notes(results, [groups[each] for each in timed])),
    )


def _answer(scenario: Scenario, groups: Groups, requirements: Requirements) -> Choice:
    evidence = evidence_for(scenario, groups, requirements.max_condition)
    candidates = sorted(_candidates(scenario, groups, requirements, evidence), key=_time_first)
    return Choice(
        scenario=scenario,
        ranking=rank(candidates),
        candidates=tuple(candidates),
        distributions=evidence.distributions,
    )


def disqualifications_of(scenario: Scenario, groups: Groups) -> dict[Name, Disqualification]:
    """What speaks against each candidate, of those against whom anything does."""
    requirements = Requirements()
    evidence = evidence_for(scenario, groups, requirements.max_condition)
    return {
        (each.implementation, each.mode): each.disqualification
        for each in _candidates(scenario, groups, requirements, evidence)
        if each.disqualification is not None
    }


def _candidates(
    scenario: Scenario, groups: Groups, requirements: Requirements, evidence: Evidence
) -> Iterator[Candidate]:
    records = groups[scenario]
    times = times_of(records)
    field = attainable_by([
        record
        for side in (evidence.own, evidence.elsewhere)
        for own in side.values()
        for record in own
    ])
    required = {
        each.case.distribution
        for own in evidence.own.values()
        for each in own
        if each.status is Status.OK
    }
    for name, own in evidence.own.items():
        every = (*own, *evidence.elsewhere[name])
        disqualification = disqualification_of(every, field, requirements.max_error_ulp) or _gap(
            own, required
        )
        if disqualification is None and name not in times.records:
            disqualification = _untimed(times.not_believed.get(name))
        cost = times.costs.get(name)
        if disqualification is None and cost is not None:
            disqualification = time_disqualification(cost)
        record = times.records.get(name)
        yield Candidate(
            implementation=name[0],
            mode=name[1],
            cost=cost,
            span=widened(cost, record) if cost and record else None,
            disqualification=disqualification,
            evidence=every,
            timed=(record,) if record else (),
            peak_bytes=record.memory.peak_extra_bytes if record and record.memory else None,
            measured_on=_coverage(every, evidence),
        )


def _gap(own: Sequence[Record], required: set[str]) -> Disqualification | None:
    """Find distributions that others were verified on for this scenario, and this one not."""
    missing = required - {each.case.distribution for each in own}
    if not missing:
        return None
    return Disqualification(kind=DisqualificationKind.UNVERIFIED, missing=tuple(sorted(missing)))


def _untimed(doubtful: Record | None) -> Disqualification:
    if doubtful is None:
        return Disqualification(kind=DisqualificationKind.UNTIMED)
    return Disqualification(kind=DisqualificationKind.NOT_BELIEVED, records=(doubtful,))


def _coverage(records: Sequence[Record], evidence: Evidence) -> tuple[int, int]:
    seen = {each.case.distribution for each in records if each.status.is_measured}
    return len(seen), len(evidence.distributions)


def _time_first(candidate: Candidate) -> tuple[float, str]:
    return inf if candidate.cost is None else candidate.cost.value, candidate.label


def _is_wanted(case: Case, wanted: ScenarioFilter) -> bool:
    return (
        (not wanted.shapes or case.shape in wanted.shapes)
        and (not wanted.dtypes or case.dtype in wanted.dtypes)
        and (not wanted.devices or case.device in wanted.devices)
        and (not wanted.directions or str(case.direction) in wanted.directions)
    )


def _refuse_unmeasured(records: Sequence[Record]) -> None:
    if any(each.status.is_measured for each in records):
        return
    if not records:
        raise NoTimesError("no case at all is in it; run a sweep, and see what ends it")
    counts = Counter(each.status.replace("_", " ") for each in records)
    ended = ", ".join(f"{count} {status}" for status, count in counts.items())
    raise NoTimesError(
        f"no case was measured ({ended}), such as {records[0].case.id}: {records[0].reason}"
    )


def _axes(groups: Groups) -> dict[str, tuple[str, ...]]:
    """What the scenarios of a run differ in, as it is written on the command line."""
    cases = [each.case for each in groups]
    return {
        "shape": tuple(dict.fromkeys(_text(each.shape) for each in cases)),
        "dtype": tuple(dict.fromkeys(each.dtype for each in cases)),
        "device": tuple(dict.fromkeys(each.device for each in cases)),
        "direction": tuple(dict.fromkeys(str(each.direction) for each in cases)),
    }


def _what_there_is(groups: Groups) -> str:
    return "; ".join(f"{name}: {', '.join(each)}" for name, each in _axes(groups).items())


def _absent(wanted: ScenarioFilter, groups: Groups) -> Iterable[str]:
    """Name what was asked for beside what is there."""
    asked = (map(_text, wanted.shapes), wanted.dtypes, wanted.devices, wanted.directions)
    for (name, there), values in zip(_axes(groups).items(), asked, strict=True):
        for each in values:
            if each not in there:
                yield f"no case of {name} {each} was measured{suggest(each, there)}"


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _several(scenarios: Sequence[Scenario]) -> str:
    rest = f" and {len(scenarios) - 1} more" if len(scenarios) > 1 else ""
    return f"{scenarios[0].words}{rest}"


def _notes(results: Sequence[Results], timed: Sequence[Sequence[Record]]) -> Iterable[str]:
    for each in results:
        unfinished = each.why_unfinished
        if unfinished:
            yield f"the run was cut short: {unfinished}; continue it with --resume"
    names = {name_of(record) for records in timed for record in records}
    if len(names) == 1:
        yield f"{next(iter(names))[0]} alone was measured, so there was nothing to choose between"
    unsure = len({record.environment for records in timed for record in records})
    if unsure > 1:
        yield f"{unsure} environments: times of one say nothing of another, so each has its choice"
    timers = Counter(
        record.latency.timer for records in timed for record in records if record.latency
    )
    if timers.keys() - {OUR_TIMER}:
        cases = ", ".join(f"{timer} {number}" for timer, number in timers.most_common())
        yield f"cases by timer: {cases}; times of two timers are never compared"
