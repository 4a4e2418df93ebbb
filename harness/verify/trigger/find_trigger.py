"""Find the trigger of a mistake: the conditions that all failing cases meet, and no passing one.

Search for conditions, try further cases, search again, and confirm with cases on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10

from harness.records import Case
from harness.verify.trigger.axes import (
    DATA_AXES,
    PATH_AXES,
    SIMPLEST,
    SIZES,
    differing,
    with_data_of,
)
from harness.verify.trigger.candidates import MEASURED, conditions_of, cost_of, is_met
from harness.verify.trigger.conditions import Relation, TriggerCondition
from harness.verify.trigger.experiments import OFFSETS, Attempt, Experiments
from harness.verify.trigger.observation import Observation
from harness.verify.trigger.search import Conjunction, meets, smallest

__all__ = ["Found", "find_trigger"]

_CONFIRMING = 6  # further cases that meet the trigger, and as many that do not
# passing cases per conjunction that are tried again with data that show the mistake
_MOST_TRANSPLANTS = 16
# error over bound; with a smaller one, the same data in another case may hide the mistake
_PLAIN_RATIO = 100.0
# If at least this share of the values tried on an axis of the data hides the mistake, the trigger
# states a condition on the data; a smaller share counts as exceptions. A condition on a fact, such
# as a threshold, needs a smaller share than one that names values.
_MANY_BY_FACT, _MANY_BY_NAME = 1 / 4, 1 / 2
_THRESHOLDS = {Relation.AT_LEAST, Relation.AT_MOST}
_IMPLIED = (TriggerCondition(axis="hidden", relation=Relation.AT_LEAST, value=2),)
"""Conditions that are not stated. Rows of one element are constant, and hide most mistakes."""
# with fewer failures or more conditions, some conjunction fits any observations by chance
_FEWEST_FAILURES, _MOST_UNCONFIRMED = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A trigger, with the observations behind it."""

    outputs: frozenset[str]
    conditions: Conjunction
    is_confirmed: bool
    """Whether further cases agree; otherwise all failing cases meet it, and no passing one."""
    observations: tuple[Observation, ...]
    tried: int
    """Cases tried to find and confirm it."""


def find_trigger(
    observations: Sequence[Observation],
    attempt: Attempt,
    most_cases: int,
    outputs: frozenset[str] | None = None,
) -> Found | None:
    """Return what all failing cases have in common; None if nothing, or if further cases disagree.

    Args:
        observations: of one target in one dtype.
        attempt: tries one further case.
        most_cases: largest number of further cases to try.
        outputs: the outputs whose failures count; None for all.
    """
    if outputs is None:
        outputs = frozenset(name for each in observations for name in each.failed)
    about = [found for each in observations if (found := _about(outputs, each)) is not None]
    lab = Experiments(about, lambda case: _about(outputs, attempt(case)), most_cases)
    seed = _seed(lab)
    if seed is None:
        return None
    simple, axes = lab.simplified(seed)
    path = _path_conditions(lab, _plainest(lab, simple).case, axes & PATH_AXES)
    conditions = _unconfirmed(lab, about)
    if path is not None:
        data = _tightest(_data_conditions(lab, simple.case))
        conditions = tuple(each for each in (*path, *data) if each not in _IMPLIED)
    if conditions is None:
        return None
    return Found(
        outputs=outputs,
        conditions=conditions,
        is_confirmed=path is not None,
        observations=tuple(lab.observations),
        tried=most_cases - lab.left,
    )


def _unconfirmed(lab: Experiments, given: Sequence[Observation]) -> Conjunction | None:
    """Return what all failing cases have in common, if too few further cases could confirm it."""
    could_try = len(lab.observations) > len(given) and lab.left > 0
    failed = sum(bool(each.failed) for each in lab.observations)
    if could_try or failed < _FEWEST_FAILURES:
        return None
    found = smallest(lab.observations, frozenset(SIMPLEST))
    return found[0] if found and 0 < len(found[0]) <= _MOST_UNCONFIRMED else None


def _about(outputs: frozenset[str], observation: Observation | None) -> Observation | None:
    """Return an observation limited to some outputs; None if none of them was judged."""
    if observation is None or not observation.judged & outputs:
        return None
    return replace(observation, failed=observation.failed & outputs)


def _seed(lab: Experiments) -> Observation | None:
    """Return the smallest failing case whose error is clear.

    If there is none, try the smallest failing case with other distributions.
    """
    failing = [each for each in lab.observations if each.failed]
    small = sorted(failing, key=lambda each: each.case.rows * each.case.hidden)
    strong = next((each for each in small if each.ratio >= _PLAIN_RATIO), None)
    clear = strong or next((each for each in small if each.is_clear), None)
    if clear is not None or not small:
        return clear
    found = [each for each in lab.along("distribution", small[0].case) if each.failed]
    return max(found, key=lambda each: each.ratio, default=None)


def _plainest(lab: Experiments, simple: Observation) -> Observation:
    """Return a simple failing case with the distribution that shows the mistake best.

    Normal rows, also with an offset, are preferred, because all their rows are alike. A case with
    few rows of a mixed distribution may have no row that shows the mistake, and constant rows show
    it only at some row lengths.
    """
    if simple.case.distribution in OFFSETS and simple.ratio >= _PLAIN_RATIO:
        return simple
    found = [each for each in lab.along("distribution", simple.case) if each.failed]
    plain = [each for each in found if each.case.distribution in OFFSETS]
    plain = [each for each in plain if each.ratio >= _PLAIN_RATIO]
    return max(plain or (simple, *found), key=lambda each: (each.ratio, each.facts.offset_ratio))


def _path_conditions(lab: Experiments, simple: Case, axes: set[str]) -> Conjunction | None:
    """Return the conditions under which a kernel takes the path with the mistake.

    They come from cases whose data show the mistake. None if no conditions are confirmed.
    """
    transplants: dict[Conjunction, int] = {}
    while lab.left > 0:
        found = smallest(lab.relevant(simple), frozenset(axes))
        if not found:
            new = _new_axes(lab, simple, axes)
            if not new:
                return None
            axes |= new
            continue
        best = found[0]
        case = lab.splitting(found, simple)
        if case is None and transplants.setdefault(best, 0) < _MOST_TRANSPLANTS:
            case = _transplant(lab, best, simple)
            transplants[best] += 1
        if case is not None:
            lab.try_case(case)
            continue
        before = lab.left
        if _is_confirmed(lab, best, simple):
            return best
        if lab.left == before:  # there is no further case that could confirm it
            return None
    return None


def _new_axes(lab: Experiments, simple: Case, axes: set[str]) -> set[str]:
    """Return the axes, beyond ``axes``, that make the nearest passing case pass."""
    relevant = lab.relevant(simple)
    passing = [each for each in relevant if not each.failed]
    conjunction: Conjunction = ()
    exceptions = 1
    while exceptions < len(passing):
        if found := smallest(relevant, frozenset(axes), exceptions):
            conjunction = found[0]
            break
        exceptions *= 2
    included = [each for each in passing if meets(each, conjunction)]
    for each in sorted(included, key=lambda each: len(differing(each.case, simple))):
        if new := lab.deciding_axes(each, simple, conjunction) - axes:
            return new & PATH_AXES
    return set()


def _transplant(lab: Experiments, conjunction: Conjunction, simple: Case) -> Case | None:
    """Return an untried case: a passing one that meets a conjunction, given data of ``simple``.

    Of several, it is the nearest to ``simple``, whose data show the mistake.
    """
    cases = [
        with_data_of(each.case, simple)
        for each in lab.clear
        if not each.failed and meets(each, conjunction)
    ]
    untried = [case for case in cases if not lab.is_known(case)]
    return min(untried, key=lambda case: len(differing(case, simple)), default=None)


def _is_confirmed(lab: Experiments, conjunction: Conjunction, simple: Case) -> bool:
    """Whether further cases that meet a conjunction fail, and those that do not meet it pass.

    False also if a threshold of a size had to be bisected first.
    """
    for part in conjunction:
        if part.axis in SIZES and part.relation in _THRESHOLDS:
            before = lab.left
            lab.bisect(conjunction, part, simple)
            if lab.left < before:  # the new cases may move the threshold: search again
                return False
    cases = [*lab.inside(conjunction, simple, _CONFIRMING), *lab.outside(conjunction, _CONFIRMING)]
    agreed = 0
    for case in cases:
        found = lab.try_case(case)
        if found is not None and bool(found.failed) is not meets(found, conjunction):
            return False
        agreed += found is not None
    return agreed >= _CONFIRMING


def _data_conditions(lab: Experiments, simple: Case) -> Iterator[TriggerCondition]:
    """Yield conditions on the data, for each axis on which many values hide the mistake."""
    failing = [each for each in lab.clear if each.failed]
    for axis in DATA_AXES:
        along = lab.along(axis, simple)
        passing = [each for each in along if not each.failed]
        fitting = [
            each
            for each in conditions_of(failing, passing, frozenset({axis}))
            if not any(is_met(each, other) for other in passing)
        ]
        best = min(fitting, key=cost_of, default=None)
        is_name = best is not None and best.axis in SIMPLEST
        if best is not None and len(passing) >= len(along) * (
            _MANY_BY_NAME if is_name else _MANY_BY_FACT
        ):
            yield _rounded(best, passing)


def _tightest(conditions: Iterable[TriggerCondition]) -> list[TriggerCondition]:
    """Keep only the tightest threshold of a quantity; two axes of the data may each give one."""
    kept: dict[tuple[str, Relation], TriggerCondition] = {}
    for each in conditions:
        known = kept.setdefault((each.axis, each.relation), each)
        if each.relation in _THRESHOLDS and not each.holds_for(known.value):
            kept[each.axis, each.relation] = each
    return list(kept.values())


def _rounded(condition: TriggerCondition, passing: Sequence[Observation]) -> TriggerCondition:
    """Round the threshold of a measured quantity to a power of ten that no passing case meets.

    The values that were tried are too far apart to give a threshold more than one digit. If a
    passing case meets the rounded condition, the condition stays as it is.
    """
    if condition.axis not in MEASURED or condition.relation not in _THRESHOLDS:
        return condition
    exponent = log10(condition.value) if condition.value > 0 else 0.0
    rises = condition.relation is Relation.AT_LEAST
    rounded = replace(condition, value=10.0 ** (floor(exponent) if rises else ceil(exponent)))
    return condition if any(is_met(rounded, each) for each in passing) else rounded
