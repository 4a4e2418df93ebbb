"""The answer in one or two sentences: what to run, and how much that gains over native."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.records import Estimate
from harness.records.speed import speed_interval_text
from harness.records.text import count, in_words, shape_text
from harness.selection.choose import Choice
from harness.selection.ranking import geometric_mean
from harness.selection.requirement import Requirements, requirement_text
from harness.selection.times import NATIVE, REFERENCE_NAME

__all__ = ["headline_lines"]

_MOST_LINES = 4  # trade-off: more lines are not read; the table has all choices
# trade-off: more scenarios are easier to read as dtypes and directions than as shapes
_MOST_NAMED = 2
_MOST_KINDS = 3  # trade-off: more dtypes and directions are easier to read as a number


def headline_lines(choices: Sequence[Choice], requirements: Requirements) -> list[str]:
    """Return what to run, the most frequent choice first; then the requirements of the choices.

    The list is empty if there are no choices.
    """
    environments = list(dict.fromkeys(choice.scenario.environment for choice in choices))
    lines: list[str] = []
    for environment in environments:
        own = [choice for choice in choices if choice.scenario.environment == environment]
        where = f"environment {environment}: " if len(environments) > 1 else ""
        lines += [f"{where}{line}" for line in _sentences(own)]
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


def _sentences(choices: Sequence[Choice]) -> Iterator[str]:
    groups: dict[str | None, list[Choice]] = {}
    for choice in choices:
        groups.setdefault(choice.best.label if choice.best else None, []).append(choice)
    # the most frequent choice first; scenarios without an eligible candidate last
    ordered = sorted(groups.items(), key=lambda each: (each[0] is None, -len(each[1])))
    for label, own in ordered[:_MOST_LINES]:
        scope = _scope(own, choices)
        if label is None:
            yield f"No implementation is eligible {scope}."
        elif label == REFERENCE_NAME:
            yield f"Keep {label} {scope}."
        else:
            yield f"Run {label}{_gain(own)} {scope}.{_why_not_native(own)}"
    if left := ordered[_MOST_LINES:]:
        number = count(sum(len(own) for _, own in left), "scenario")
        yield f"For {number} more, another implementation is the choice; the table names it."


def _gain(choices: Sequence[Choice]) -> str:
    """Return the mean speed of the choices relative to native; empty if it is not known."""
    speeds = [
        speed
        for choice in choices
        if choice.best is not None and (speed := choice.speed(choice.best)) is not None
    ]
    if len(speeds) < len(choices):
        return ""
    mean: Estimate = geometric_mean(speeds)
    return f": {speed_interval_text(mean)} the speed of {REFERENCE_NAME}"


def _scope(choices: Sequence[Choice], every: Sequence[Choice]) -> str:
    """Return the scenarios of a choice as a phrase.

    One or two scenarios are named by their shapes; of more, the phrase has the number and, if they
    are few, the dtypes and directions.
    """
    has_devices = len({choice.scenario.case.device for choice in every}) > 1

    def kind(choice: Choice) -> str:
        case = choice.scenario.case
        return " ".join([case.dtype, *([case.device] if has_devices else []), case.direction])

    all_of, own = Counter(map(kind, every)), Counter(map(kind, choices))
    if len(choices) <= _MOST_NAMED:
        if len(own) > 1:
            return "for " + " and ".join(choice.scenario.text for choice in choices)
        shapes = [_shape_text(choice) for choice in choices]
        return f"for {' and '.join(shapes)} ({next(iter(own))})"
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
