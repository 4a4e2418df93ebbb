"""Conditions on a case, as plain values: a threshold, a divisor, a name, a fact of x."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Relation", "TriggerCondition"]


class Relation(StrEnum):
    """How a case's value on an axis relates to that of a condition."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    MULTIPLE = "multiple"
    NOT_MULTIPLE = "not_multiple"
    IS = "is"
    IS_NOT = "is_not"
    ONE_OF = "one_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCondition:
    """One condition, such as "N is at least 1025"."""

    axis: str
    """An axis of a case, or what is derived from axes, such as "is_contiguous"."""
    relation: Relation
    value: Any
    """A number, a name or whether a fact is true; a tuple of names for ONE_OF."""

    def holds_for(self, own: Any) -> bool:
        """Whether a value on the axis meets it."""
        match self.relation:
            case Relation.AT_LEAST:
                return bool(own >= self.value)
            case Relation.AT_MOST:
                return bool(own <= self.value)
            case Relation.MULTIPLE:
                return bool(own % self.value == 0)
            case Relation.NOT_MULTIPLE:
                return bool(own % self.value)
            case Relation.IS:
                return bool(own == self.value)
            case Relation.IS_NOT:
                return bool(own != self.value)
            case Relation.ONE_OF:
                return own in self.value
