"""Plan which cases a target is tried on, and in which order: the covering array and the stories."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.records import Case
from harness.verify.cases.axes import array_within, axes_within, case_from
from harness.verify.cases.group import cases_of
from harness.verify.cases.stories import FULL, QUICK
from harness.verify.findings import Coverage
from harness.verify.scope import scope_of
from implementations.contract import Implementation

__all__ = ["DEFAULT", "QUICKEST", "PlannedCase", "coverage_of", "planned_cases"]

QUICKEST, DEFAULT = 2, 3
"""Strengths: the conditions of which every combination is tried."""
_COMBINATION = "a combination of conditions"
_ROWS_PER_TURN = 8  # the array finds most, so it has most cases in each turn


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case, and what it is there to catch."""

    case: Case
    catches: str


def planned_cases(
    implementation: Implementation,
    strength: int,
    dtypes: Sequence[str],
    device: str,
    *,
    without: Collection[Case] = (),
    in_turns: bool = False,
) -> list[PlannedCase]:
    """Return each case once, fitted to the target's scope.

    Args:
        implementation: its scope is known.
        strength: of the covering array; the quickest has fewer stories, too.
        dtypes: of x, by name.
        device: device kind.
        without: cases to leave out.
        in_turns: a part of the array comes first with the first case of each story, then the next
            part; for a time budget that may not be enough for all.
    """
    scope = scope_of(implementation)
    seen: set[Case] = set(without)
    turns: list[tuple[int, PlannedCase]] = []
    for dtype in dtypes:
        for catches, per_turn, cases in _parts(implementation, strength, dtype, device):
            nearest = dict.fromkeys(scope.fit(case) for case in cases)
            new = [case for case in nearest if case is not None and case not in seen]
            seen.update(new)
            turns += [
                (place // per_turn, PlannedCase(case, catches)) for place, case in enumerate(new)
            ]
    if in_turns:
        turns.sort(key=lambda each: each[0])
    return [planned for _, planned in turns]


def coverage_of(implementation: Implementation, strength: int) -> Coverage:
    """Return what the covering array covers within the target's scope."""
    axes = axes_within(scope_of(implementation), forward_only=implementation.forward_only)
    varied = {name: values for name, values in axes.items() if len(values) > 1}
    return Coverage(
        strength=strength, axes=tuple(varied), conditions=sum(map(len, varied.values()))
    )


def _parts(
    implementation: Implementation, strength: int, dtype: str, device: str
) -> Iterator[tuple[str, int, list[Case]]]:
    """Yield the array and the stories: what each catches, cases per turn, cases."""
    name, forward_only = implementation.name, implementation.forward_only
    rows = array_within(scope_of(implementation), strength, forward_only=forward_only)
    yield _COMBINATION, _ROWS_PER_TURN, [case_from(row, name, dtype, device) for row in rows]
    for group in QUICK if strength <= QUICKEST else FULL:
        yield group.catches, 1, list(cases_of(group, name, dtype, device, forward_only))
