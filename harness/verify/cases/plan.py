"""Plan which cases a target is tried on, and in which order: the covering array and the stories."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from harness.cases.axes import (
    BACKWARD_CALLS,
    EXCLUSIONS,
    FORWARD_CALLS,
    SAME,
    Exclusion,
    array_axes,
    case_of,
)
from harness.cases.covering_array import covering_array
from harness.records import Case
from harness.verify.cases.stories import FULL, QUICK, cases_of
from harness.verify.scope import Scope, scope_of
from implementations.contract import Implementation

__all__ = [
    "DEFAULT",
    "QUICKEST",
    "PlannedCase",
    "array_within",
    "axes_within",
    "case_from",
    "coverage_of",
    "first_case",
    "planned_cases",
]

QUICKEST, DEFAULT = 2, 3
"""Strengths: the conditions of which every combination is tried."""
_COMBINATION = "a combination of conditions"
# by strength: array rows per combination. With one row per pair, other values of the row may hide a
# mistake
_TIMES = {2: 2}
_ROWS_PER_TURN = 8  # the array finds most, so it has most cases in each turn


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case, and what it is there to catch."""

    case: Case
    catches: str


def first_case(target: str, dtype: str, device: str) -> Case:
    """Return the case that every verification begins with, which a faulty cache would keep."""
    return Case(implementation=target, shape=(6, 32), dtype=dtype, param_dtype=dtype, device=device)


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
            turns += [(at // per_turn, PlannedCase(case, catches)) for at, case in enumerate(new)]
    if in_turns:
        turns.sort(key=itemgetter(0))
    return [planned for _, planned in turns]


def coverage_of(implementation: Implementation) -> dict[str, int]:
    """Return the number of values of each axis that varies within the target's scope."""
    axes = axes_within(scope_of(implementation), forward_only=implementation.forward_only)
    return {name: len(values) for name, values in axes.items() if len(values) > 1}


def _parts(
    implementation: Implementation, strength: int, dtype: str, device: str
) -> Iterator[tuple[str, int, list[Case]]]:
    """Yield the array and the stories: what each catches, cases per turn, cases."""
    name, forward_only = implementation.name, implementation.forward_only
    rows = array_within(scope_of(implementation), strength, forward_only=forward_only)
    yield _COMBINATION, _ROWS_PER_TURN, [case_from(row, name, dtype, device) for row in rows]
    for story in QUICK if strength <= QUICKEST else FULL:
        yield story.catches, 1, list(cases_of(story, name, dtype, device, forward_only))


def axes_within(scope: Scope, *, forward_only: bool) -> dict[str, tuple[Any, ...]]:
    """Return the axes, each with the values that a target accepts.

    An axis without such a value keeps its usual one, and :meth:`Scope.fit` adapts each case.

    Args:
        scope: of the target.
        forward_only: whether to leave out every backward pass.
    """
    fixed = {"eps"} if scope.eps is not None else set()
    if scope.normalized_shape is not None:
        fixed |= {"hidden", "normalized_axes"}
    within = {}
    for name, axis in array_axes().items():
        values = axis.values[:1] if name in fixed else axis.values
        if name == "call" and forward_only:
            values = FORWARD_CALLS
        within[name] = tuple(value for value in values if scope.accepts(name, value)) or values[:1]
    return within


def array_within(scope: Scope, strength: int, *, forward_only: bool) -> list[dict[str, Any]]:
    """Return the rows of the covering array over the axes of :func:`axes_within`."""
    axes = axes_within(scope, forward_only=forward_only)
    declined = scope.declined_backward.get("affine", ())
    without_gradient = Exclusion("call", BACKWARD_CALLS, "affine", declined)
    return _array(tuple(axes.items()), strength, without_gradient)


@lru_cache(maxsize=8)
def _array(
    axes: tuple[tuple[str, tuple[Any, ...]], ...], strength: int, of_target: Exclusion
) -> list[dict[str, Any]]:
    exclusions = (*EXCLUSIONS, of_target)
    rare = {name: axis.rare for name, axis in array_axes().items()}
    return covering_array(dict(axes), exclusions, strength, rare, _TIMES.get(strength, 1))


def case_from(row: Mapping[str, Any], target: str, dtype: str, device: str) -> Case:
    """Return the case in a dtype of x that a row of the covering array describes."""
    fixed = {"implementation": target, "shape": (1, 1), "dtype": dtype, "device": device}
    is_half = dtype in {"float16", "bfloat16"}  # others have no wider parameters
    return case_of({**fixed, **row, "param_dtype": row["param_dtype"] if is_half else SAME})
