"""Search the smallest conjunction of conditions that all failed cases meet, and no right one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from harness.verify.trigger.candidates import conditions_of, cost_of, is_met
from harness.verify.trigger.conditions import TriggerCondition
from harness.verify.trigger.observation import Observation

__all__ = ["Conjunction", "meets", "smallest"]

Conjunction = tuple[TriggerCondition, ...]

_MOST_CONDITIONS = 3  # more than that on one line is no longer an explanation
_MOST_CANDIDATES = 120  # 280,000 triples, which take 0.1 s


def smallest(
    observations: Sequence[Observation], axes: frozenset[str], exceptions: int = 0
) -> list[Conjunction]:
    """Return all conjunctions of the smallest size, the least special first; empty without any.

    Args:
        observations: judged cases.
        axes: those on which conditions are allowed.
        exceptions: passing cases that may meet a conjunction.
    """
    failing = [each for each in observations if each.failed]
    passing = [each for each in observations if not each.failed]
    if len(passing) <= exceptions:
        return [()]
    everyone = (1 << len(passing)) - 1
    met: list[tuple[int, TriggerCondition]] = []
    for condition in conditions_of(failing, passing, axes):
        mask = sum(1 << place for place, each in enumerate(passing) if is_met(condition, each))
        if mask != everyone:
            met.append((mask, condition))
    met = sorted(met, key=lambda each: (cost_of(each[1]), each[0].bit_count()))[:_MOST_CANDIDATES]
    for size in range(1, _MOST_CONDITIONS + 1):
        found = []
        for chosen in combinations(met, size):
            left = everyone
            for mask, _ in chosen:
                left &= mask
            if left.bit_count() <= exceptions:
                found.append(tuple(condition for _, condition in chosen))
        if found:
            return sorted(found, key=lambda each: sum(map(cost_of, each)))
    return []


def meets(observation: Observation, conjunction: Conjunction) -> bool:
    """Whether a case meets all conditions of a conjunction."""
    return all(is_met(condition, observation) for condition in conjunction)
