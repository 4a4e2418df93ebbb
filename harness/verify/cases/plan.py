"""Plan which cases a target is tried on, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.records import Case
from harness.verify.cases.catalogue import Group, cases_of
from harness.verify.scope import scope_of
from implementations.contract import Implementation

__all__ = ["planned_cases"]


def planned_cases(
    implementation: Implementation,
    groups: Sequence[Group],
    dtypes: Sequence[str],
    device: str,
    *,
    without: Collection[Case] = (),
    in_turns: bool = False,
) -> list[tuple[Group, Case]]:
    """Return each case of the catalogue once, fitted to the target's scope, with its group.

    Args:
        implementation: its scope is known.
        groups: of the catalogue.
        dtypes: of x, by name.
        device: device kind.
        without: cases to leave out.
        in_turns: the first case of each group comes first, then the second of each; for a time
            budget that may not be enough for all.
    """
    scope = scope_of(implementation)
    seen: set[Case] = set(without)
    turns: list[tuple[int, Group, Case]] = []
    for dtype in dtypes:
        for group in groups:
            cases = cases_of(group, implementation.name, dtype, device, implementation.forward_only)
            nearest = dict.fromkeys(scope.fit(case) for case in cases)
            new = [case for case in nearest if case is not None and case not in seen]
            seen.update(new)
            turns += [(turn, group, case) for turn, case in enumerate(new)]
    if in_turns:
        turns.sort(key=lambda each: each[0])
    return [(group, case) for _, group, case in turns]
