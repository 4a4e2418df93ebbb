"""The answers of a report: what to run, for each condition number that may be required."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isinf

from harness.records import Record
from harness.selection.choose import Choice, choose_for_scenario
from harness.selection.overall import OverallChoice, Place, choose_overall
from harness.selection.requirement import (
    DEFAULT_MAX_CONDITION,
    Requirements,
    is_required,
    requirement_levels,
)
from harness.selection.scenarios import Groups, Scenario, scenarios_of

__all__ = ["Answer", "answers_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to run if results must be right up to a condition number."""

    requirements: Requirements
    is_default: bool
    """Whether it is the answer to what was asked; the others are for comparison."""
    choices: tuple[Choice, ...]
    """For each timed scenario."""
    overall: dict[Place, OverallChoice]


def answers_of(
    records: Sequence[Record], max_condition: float = DEFAULT_MAX_CONDITION
) -> tuple[Answer, ...]:
    """Return an answer for each requirement whose answer can differ, the least one first."""
    groups = scenarios_of(records)
    timed = [
        scenario
        for scenario, own in groups.items()
        if any(record.latency is not None for record in own)
    ]
    of_any = {
        scenario: choose_for_scenario(scenario, groups, Requirements(max_condition=inf))
        for scenario in timed
    }
    answers: list[Answer] = []
    last: dict[Scenario, Choice] = of_any
    for level in reversed(requirement_levels(records, max_condition)):
        required = Requirements(max_condition=level)
        last = {
            scenario: _narrowed(choice, groups, required, of_any[scenario])
            for scenario, choice in last.items()
        }
        answers.append(
            Answer(
                requirements=required,
                is_default=level == max_condition,
                choices=tuple(last.values()),
                overall=choose_overall(records, tuple(last.values()), level, groups),
            )
        )
    return tuple(reversed(answers))


def _narrowed(choice: Choice, groups: Groups, required: Requirements, of_any: Choice) -> Choice:
    """Return the choice under a lower requirement; the same if no evidence lies beyond it."""
    level = required.max_condition
    if isinf(level):
        return of_any
    if all(is_required(each, level) for one in choice.candidates for each in one.evidence):
        return replace(choice, any_condition=of_any)
    return choose_for_scenario(choice.scenario, groups, required, of_any)
