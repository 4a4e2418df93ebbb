"""The conditions that all failed cases meet: the parts of a trigger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.records import Autograd, Direction
from harness.verify.trigger.axes import SIMPLEST, SIZES, value_of
from harness.verify.trigger.conditions import Relation, TriggerCondition
from harness.verify.trigger.observation import Observation

__all__ = ["MEASURED", "axes_of", "conditions_of", "cost_of", "is_met", "is_met_by_size"]

_DERIVED: dict[str, tuple[str, ...]] = {
    "elements": ("rows", "hidden"),
    "is_power_of_two": ("hidden",),
    "has_weight": ("affine",),
    "has_bias": ("affine",),
    "is_backward": ("call",),
    "is_recorded": ("call",),
    "is_contiguous": ("layout",),
    "is_row_dense": ("layout",),
    "is_finite": ("distribution",),
    "offset_ratio": ("distribution", "eps"),
    "least_variance_ratio": ("distribution", "eps"),
    "largest": ("distribution",),
}
"""Quantities and facts that follow from axes, each with those axes."""
MEASURED = ("offset_ratio", "least_variance_ratio", "largest")
"""What is measured of x, not chosen."""
_NUMBERS = (*SIZES, *MEASURED, "elements", "leading_axes", "normalized_axes", "threads", "eps")
_NAMED = ("distribution", "layout", "parameters", "grad_output", "call")
_DIVISORS = (2, 4, 8, 16, 32, 64, 128)  # vectors, warps and blocks
_MOST_NAMES = 3  # that a person reads as one condition


def axes_of(condition: TriggerCondition) -> tuple[str, ...]:
    """Return the axes of a case that decide whether it meets a condition."""
    return _DERIVED.get(condition.axis, (condition.axis,))


def is_met(condition: TriggerCondition, observation: Observation) -> bool:
    """Whether a case meets a condition."""
    return condition.holds_for(_value(observation, condition.axis))


def is_met_by_size(condition: TriggerCondition, axis: str, size: int) -> bool:
    """Whether a number of rows or elements can meet a condition on that axis."""
    if condition.axis == "is_power_of_two" and axis == "hidden":
        return condition.holds_for(size.bit_count() == 1)
    return condition.axis != axis or condition.holds_for(size)


def cost_of(condition: TriggerCondition) -> int:
    """Return how special a condition is: a threshold covers more cases than a name.

    Of conditions that fit equally well, the least special one is stated.
    """
    if condition.relation is Relation.ONE_OF:
        return 6
    if condition.axis in _NAMED:
        return 4 if condition.relation is Relation.IS else 5
    if condition.axis == "elements" or (
        condition.axis in SIZES and condition.relation is Relation.IS
    ):
        return 3
    return 1 if condition.relation in {Relation.AT_LEAST, Relation.AT_MOST} else 2


def conditions_of(
    failing: Sequence[Observation], passing: Sequence[Observation], axes: frozenset[str]
) -> Iterator[TriggerCondition]:
    """Yield the conditions on ``axes`` that all failing cases meet and not all passing ones."""
    for axis in (*SIMPLEST, *_DERIVED):
        if not axes & {*_DERIVED.get(axis, (axis,))}:
            continue
        if axis == "elements" and not axes >= {*SIZES}:  # one of the two sizes says more
            continue
        values = {_value(each, axis) for each in failing}
        others = {_value(each, axis) for each in passing} - values
        if others:
            yield from _met_by_all(axis, values, others)


def _met_by_all(axis: str, values: set[Any], others: set[Any]) -> Iterator[TriggerCondition]:
    def condition(relation: Relation, value: Any) -> TriggerCondition:
        return TriggerCondition(axis=axis, relation=relation, value=value)

    if axis in _NUMBERS:
        if min(others) < min(values):
            yield condition(Relation.AT_LEAST, min(values))
        if max(others) > max(values):
            yield condition(Relation.AT_MOST, max(values))
    if axis in SIZES:
        for divisor in _DIVISORS:
            if not any(each % divisor for each in values):
                yield condition(Relation.MULTIPLE, divisor)
            if all(each % divisor for each in values):
                yield condition(Relation.NOT_MULTIPLE, divisor)
    if axis in MEASURED or axis == "elements":
        return
    if len(values) == 1:
        yield condition(Relation.IS, *values)
    elif axis not in _NUMBERS:
        for name in sorted(others):
            yield condition(Relation.IS_NOT, name)
        if len(values) <= _MOST_NAMES:
            yield condition(Relation.ONE_OF, tuple(sorted(values)))


def _value(observation: Observation, axis: str) -> Any:
    """Return the value of a case on an axis, or of what is derived from axes."""
    case = observation.case
    match axis:
        case "elements":
            return case.rows * case.hidden
        case "is_power_of_two":
            return case.hidden.bit_count() == 1
        case "has_weight":
            return case.affine in {"both", "weight"}
        case "has_bias":
            return case.affine in {"both", "bias"}
        case "is_backward":
            return case.direction is not Direction.FORWARD
        case "is_recorded":
            return case.direction is not Direction.FORWARD or case.autograd is Autograd.RECORDED
    if axis in _DERIVED:
        return getattr(observation.facts, axis)
    return value_of(case, axis)
