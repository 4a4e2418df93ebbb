"""The answer in a few sentences: what to run, how much that gains over native, and where not.

An implementation is named for all scenarios of a dtype and direction, as in the report's first
table; then the scenarios in which another one is the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.records.speed import speed_interval_text
from harness.records.text import count, in_words, shape_text
from harness.selection.choose import Choice, Choices
from harness.selection.overall import OverallChoice, Place, choose_overall
from harness.selection.ranking import CandidateName, geometric_mean, label_of
from harness.selection.requirement import Requirements, requirement_text
from harness.selection.text import run_text
from harness.selection.times import NATIVE, REFERENCE_NAME

__all__ = ["first_choice", "headline_lines", "headline_of"]

_MOST_LINES = 3  # trade-off: more lines are not read; the table has all choices
# trade-off: more scenarios are easier to read as a number; the table names them
_MOST_NAMED = 3
_MOST_KINDS = 3  # the same for dtypes and directions

Default = CandidateName | None
"""What to run for all scenarios of a place; None if nothing serves all of them."""


def headline_of(choices: Choices) -> list[str]:
    """Return the sentences for the choices of one or more runs."""
    overall = choose_overall(choices.records, choices.choices, choices.requirements.max_condition)
    return headline_lines(choices.choices, overall, choices.requirements)


def headline_lines(
    choices: Sequence[Choice], overall: Mapping[Place, OverallChoice], requirements: Requirements
) -> list[str]:
    """Return what to run, the most frequent choice first; then the requirements of the choices.

    The list is empty if there are no choices.

    Args:
        choices: for each scenario.
        overall: for each device, dtype and direction of them.
        requirements: of all choices.
    """
    environments = list(dict.fromkeys(choice.scenario.environment for choice in choices))
    lines: list[str] = []
    for environment in environments:
        own = [choice for choice in choices if choice.scenario.environment == environment]
        where = f"environment {environment}: " if len(environments) > 1 else ""
        lines += [f"{where}{line}" for line in _sentences(own, overall)]
    if lines:
        is_one = len(choices) == 1
        asked = requirement_text(requirements.max_condition)
        limit = requirements.max_error_ulp
        error = "" if limit is None else f", with errors up to {limit:g} ulp"
        lines.append(
            f"{'The choice is' if is_one else 'Each choice is'} the fastest, within the intervals, "
            f"of the implementations that were right on {asked}{error}."
        )
    return lines


def first_choice(choices: Sequence[Choice], overall: Mapping[Place, OverallChoice]) -> Default:
    """Return what the first sentence says to run; None if nothing serves a whole place."""
    return next(iter(_by_default(choices, overall)), None)


def _by_default(
    choices: Sequence[Choice], overall: Mapping[Place, OverallChoice]
) -> dict[Default, list[Choice]]:
    """Group choices by what to run for all scenarios of their dtype and direction.

    The most frequent default is first. Choices without one are last, under None.
    """
    by_place: dict[Place, list[Choice]] = {}
    for choice in choices:
        by_place.setdefault(Place.of(choice.scenario), []).append(choice)
    groups: dict[Default, list[Choice]] = {}
    for place, own in by_place.items():
        best = overall[place].ranking.best if place in overall else None
        if len(own) == 1:
            best = own[0].best
        groups.setdefault(best.name if best else None, []).extend(own)
    return dict(sorted(groups.items(), key=lambda each: (each[0] is None, -len(each[1]))))


def _sentences(choices: Sequence[Choice], overall: Mapping[Place, OverallChoice]) -> Iterator[str]:
    groups = _by_default(choices, overall)
    for name, own in groups.items():
        served = [choice for choice in own if _is_served(choice, name)]
        if name is None or not served:
            continue
        scope = _scope(served, choices)
        if name == NATIVE:
            yield f"Keep {REFERENCE_NAME} {scope}."
        else:
            yield f"Run {label_of(name)}{_gain(name, served)} {scope}.{_why_not_native(served)}"
    others = list(_exceptions(groups).items())
    has_default = any(groups.keys() - {None})
    for label, own in others[:_MOST_LINES]:
        scope = _scope(own, choices, _MOST_NAMED)
        if label is None:
            yield f"No implementation is eligible {scope}."
        elif has_default:
            yield f"Except {scope}: {run_text(label)}."
        else:
            yield f"{_capital(run_text(label))} {scope}."
    if left := sum(len(own) for _, own in others[_MOST_LINES:]):
        yield f"The table names the choices for {count(left, 'more scenario')}."


def _is_served(choice: Choice, name: Default) -> bool:
    """Whether a candidate is eligible in a scenario."""
    return any(each.name == name for each in choice.ranking.eligible)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _exceptions(groups: Mapping[Default, Sequence[Choice]]) -> dict[str | None, list[Choice]]:
    """Group the choices that are faster than their default by their label; native is first."""
    others: dict[str | None, list[Choice]] = {}
    for default, own in groups.items():
        for choice in own:
            best = choice.best
            tied = {each.name for each, _ in choice.ranking.tied}
            if default is None or default not in tied | {best.name if best else None}:
                others.setdefault(best.label if best else None, []).append(choice)
    return dict(
        sorted(
            others.items(),
            key=lambda each: (each[0] is None, each[0] != REFERENCE_NAME, -len(each[1])),
        )
    )


def _gain(name: CandidateName, choices: Sequence[Choice]) -> str:
    """Return the mean speed of a candidate relative to native; empty if it is not known."""
    speeds = [
        speed
        for choice in choices
        for each in choice.ranking.eligible
        if each.name == name and (speed := choice.speed(each)) is not None
    ]
    if len(speeds) < len(choices):
        return ""
    mean = "" if len(speeds) == 1 else " on average"
    return f": {speed_interval_text(geometric_mean(speeds))} the speed of {REFERENCE_NAME}{mean}"


def _scope(choices: Sequence[Choice], every: Sequence[Choice], most_named: int = 1) -> str:
    """Return the scenarios of a choice as a phrase.

    Up to ``most_named`` scenarios are named by their shapes; of more, the phrase has the number
    and, if they are few, the dtypes and directions.
    """
    has_devices = len({choice.scenario.case.device for choice in every}) > 1

    def kind(choice: Choice) -> str:
        case = choice.scenario.case
        return " ".join([case.dtype, *([case.device] if has_devices else []), case.direction])

    all_of, own = Counter(map(kind, every)), Counter(map(kind, choices))
    if len(choices) <= most_named:
        if len(own) > 1:
            return "for " + ", ".join(f"{_shape_text(each)} {kind(each)}" for each in choices)
        shapes = [_shape_text(choice) for choice in choices]
        return f"for {', '.join(shapes)} ({next(iter(own))})"
    whole = "" if len(choices) == len(every) else f" of {len(every):,}"
    number = f"for {len(choices):,}{whole} scenarios"
    if len(own) > _MOST_KINDS:
        return number
    is_whole = {name: held == all_of[name] or len(all_of) == 1 for name, held in own.items()}
    names = [
        name if is_whole[name] else f"{held} of {all_of[name]} {name}" for name, held in own.items()
    ]
    return f"{number} ({', '.join(names)})"


def _shape_text(choice: Choice) -> str:
    return " ".join([shape_text(choice.scenario.case.shape), *choice.scenario.settings])


def _why_not_native(choices: Sequence[Choice]) -> str:
    """Return why native is disqualified where it is faster; empty if it is faster nowhere."""
    reasons = [
        in_words(candidate.disqualification.kind)
        for choice in choices
        for candidate in choice.candidates
        if candidate.name == NATIVE
        and candidate.disqualification is not None
        and (speed := choice.speed(choice.best) if choice.best else None) is not None
        and speed.value < 1
    ]
    if not reasons:
        return ""
    kinds = " or ".join(dict.fromkeys(reasons))
    where = "" if len(reasons) == len(choices) else f" in {len(reasons)} of them"
    return f" {REFERENCE_NAME} is faster{where}, but {kinds} there."
