"""What is known of judged cases, and the fewest conditions that tell failed ones from others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, isnan
from typing import Any

import torch

from harness.cases import AXES, Condition, Relation
from harness.cases.axes import FORWARD_CALLS, array_axes, changed, value_of
from harness.cases.inputs import LAYOUTS, make_inputs
from harness.records import Affine, Case, Status
from harness.run.attempt import Judged

SIMPLEST: dict[str, Any] = {
    axis.name: axis.values[0] if axis.simple is None else axis.simple
    for axis in array_axes().values()
}
SIZES = ("rows", "hidden")
DATA_AXES = ("distribution", "eps", "parameters", "grad_output")
"""The axes of the values: kernels seldom choose a path by them, and values may hide a mistake."""
PATH_AXES = frozenset(SIMPLEST) - {*DATA_AXES}
"""The axes by which kernels choose a path."""
ORDER = (
    *("threads", "param_dtype", "parameters", "grad_output", "layout", "eps", "affine"),
    *("normalized_axes", "leading_axes", "call", "distribution", "rows", "hidden"),
)
"""All axes, in the order in which a failing case is simplified: those that seldom matter first."""
_DERIVED = {axis.name: axis.follows_from for axis in AXES.values() if axis.follows_from}
"""Quantities and facts that follow from axes, each with those axes."""
MEASURED = ("offset_ratio", "least_variance_ratio", "largest")
"""What is measured of x, not chosen."""
_NUMBERS = (*SIZES, *MEASURED, "elements", "leading_axes", "normalized_axes", "threads", "eps")
_NAMED = ("distribution", "layout", "parameters", "grad_output", "call")
_DIVISORS = (2, 4, 8, 16, 32, 64, 128)  # vectors, warps and blocks
_MOST_NAMES = 3  # that a person reads as one condition
_MOST_CONDITIONS = 3  # more than that on one line is no longer an explanation
_MOST_CANDIDATES = 120  # 280,000 triples, which take 0.1 s
_MOST_ELEMENTS = 1 << 16  # of an x that is drawn again; facts of a larger one come from fewer rows
_MARGIN_RATIO = 3.0  # a case within this factor of its bound may be wrong or right by its rounding

Conjunction = tuple[Condition, ...]


# --- what is known of a case ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One judged case."""

    case: Case
    judged: frozenset[str]
    """Outputs that were compared with a bound."""
    failed: frozenset[str]
    """Outputs outside their bound; empty if the result is right."""
    ratio: float
    """Largest error over its bound."""

    @property
    def is_clear(self) -> bool:
        """Whether the error is not so close to its bound that rounding decides the outcome."""
        return not 1 / _MARGIN_RATIO < self.ratio <= _MARGIN_RATIO


def observation_of(trial: Judged) -> Observation | None:
    """Return what a trial shows; None if its result was not judged, or has no error bound."""
    if trial.status not in {Status.OK, Status.WRONG, Status.CRASHED}:
        return None
    ratios = {row.output: row.bound_ratio for row in trial.ratios if row.bound_ratio is not None}
    failed = frozenset(name for name, ratio in ratios.items() if not ratio <= 1)
    if trial.status is not Status.OK and not failed:  # a wrong shape or dtype, or no result
        failed = frozenset({"y"})
    worst = max((inf if isnan(ratio) else ratio for ratio in ratios.values()), default=inf)
    return Observation(
        case=trial.case, judged=frozenset(ratios) | failed, failed=failed, ratio=worst
    )


@lru_cache(maxsize=1 << 14)
def facts_of(case: Case) -> Mapping[str, Any]:
    """Return the value of a case on each axis, and on what follows from axes."""
    plain = AXES["call"].set(AXES["affine"].set(case, Affine.NONE), FORWARD_CALLS[0])
    measured = _facts_of_x(replace(plain, implementation="", device="cpu", threads=1))
    names = (name for name in (*SIMPLEST, *_DERIVED) if name not in measured)
    return {**measured, **{name: value_of(case, name) for name in names}}


@lru_cache(maxsize=4096)
def _facts_of_x(case: Case) -> dict[str, Any]:
    """Return what can decide the path or the error of a kernel beside the axes."""
    laid_out = LAYOUTS[case.layout](torch.empty(case.shape, device="meta"))
    if case.rows * case.hidden > _MOST_ELEMENTS:
        few = max(_MOST_ELEMENTS // case.hidden, 1)
        shape = (min(few, case.rows), case.hidden)
        case = replace(case, shape=shape, normalized_dims=1, layout="contiguous")
    x = make_inputs(case).x.double().reshape(case.rows, case.hidden)
    finite = x[torch.isfinite(x).all(-1)]
    scale = finite.abs().amax(-1, keepdim=True).clamp(min=1e-300) if len(finite) else finite
    unit = finite / scale  # so that squares do not overflow
    centre = unit.mean(-1, keepdim=True)
    spread, centre = (unit - centre).square().mean(-1), centre.abs()[:, 0]
    varies = (unit != unit[:, :1]).any(-1)
    eps = case.eps / scale[:, 0].square() if len(finite) else spread
    offsets = (centre / (spread + eps).sqrt())[varies]
    variances = (spread / eps) if case.eps else torch.full_like(spread, inf)
    return {
        "is_contiguous": laid_out.is_contiguous(),
        "is_row_dense": laid_out.stride(-1) == 1 or laid_out.shape[-1] == 1,
        "is_finite": len(finite) == len(x),
        # of finite rows: the largest of those that are not constant, 0 without one
        "offset_ratio": float(offsets.amax()) if len(offsets) else 0.0,
        # the smallest; infinite without eps
        "least_variance_ratio": float(variances.amin()) if len(finite) else inf,
        "largest": float(finite.abs().amax()) if finite.numel() else 0.0,
    }


def differing(one: Case, other: Case) -> list[str]:
    """Return the axes on which two cases differ."""
    return [axis for axis in ORDER if value_of(one, axis) != value_of(other, axis)]


def with_data_of(case: Case, other: Case) -> Case:
    """Return ``case`` with the data of another case, on each axis where that is possible."""
    for axis in DATA_AXES:
        case = changed(case, axis, value_of(other, axis)) or case
    return case


@lru_cache(maxsize=1 << 14)  # a search compares the same cases again and again
def has_data_of(case: Case, other: Case) -> bool:
    """Whether two cases have the same kind of data."""
    return with_data_of(case, other) == case


# --- conditions ----------------------------------------------------------------------------------


def axes_of(condition: Condition) -> tuple[str, ...]:
    """Return the axes of a case that decide whether it meets a condition."""
    return _DERIVED.get(condition.axis, (condition.axis,))


def meets(case: Case, conjunction: Sequence[Condition]) -> bool:
    """Whether a case meets all conditions."""
    facts = facts_of(case) if conjunction else {}
    return all(part.holds(facts) for part in conjunction)


def cost_of(condition: Condition) -> int:
    """Return how special a condition is: a threshold covers more cases than a name.

    Of conditions that fit equally well, the least special one is stated.
    """
    axis, relation = condition.axis, condition.relation
    if relation is Relation.ONE_OF:
        return 6
    if axis in _NAMED:
        return 4 if relation is Relation.IS else 5
    if axis == "elements" or (axis in SIZES and relation is Relation.IS):
        return 3
    return 1 if relation in {Relation.AT_LEAST, Relation.AT_MOST} else 2


def conditions_of(
    failing: Sequence[Observation], passing: Sequence[Observation], axes: frozenset[str]
) -> Iterator[Condition]:
    """Yield the conditions on ``axes`` that all failing cases meet and not all passing ones."""
    for axis in (*SIMPLEST, *_DERIVED):
        if not axes & {*_DERIVED.get(axis, (axis,))}:
            continue
        if axis == "elements" and not axes >= {*SIZES}:  # one of the two sizes says more
            continue
        values, others = (
            {facts_of(seen.case)[axis] for seen in cases} for cases in (failing, passing)
        )
        if others - values:
            for relation, value in _met_by_all(axis, values, others - values):
                yield Condition(axis=axis, relation=relation, value=value)


def _met_by_all(axis: str, values: set[Any], others: set[Any]) -> Iterator[tuple[Relation, Any]]:
    if axis in _NUMBERS:
        if min(others) < min(values):
            yield Relation.AT_LEAST, min(values)
        if max(others) > max(values):
            yield Relation.AT_MOST, max(values)
    if axis in SIZES:
        for divisor in _DIVISORS:
            if not any(size % divisor for size in values):
                yield Relation.MULTIPLE, divisor
            if all(size % divisor for size in values):
                yield Relation.NOT_MULTIPLE, divisor
    if axis in MEASURED or axis == "elements":
        return
    if len(values) == 1:
        yield Relation.IS, *values
    elif axis not in _NUMBERS:
        yield from ((Relation.IS_NOT, name) for name in sorted(others))
        if len(values) <= _MOST_NAMES:
            yield Relation.ONE_OF, tuple(sorted(values))


def smallest(
    observations: Sequence[Observation], axes: frozenset[str], exceptions: int = 0
) -> list[Conjunction]:
    """Return all conjunctions of the smallest size, the least special first; empty without any.

    Args:
        observations: judged cases.
        axes: those on which conditions are allowed.
        exceptions: passing cases that may meet a conjunction.
    """
    failing = [seen for seen in observations if seen.failed]
    passing = [seen for seen in observations if not seen.failed]
    if len(passing) <= exceptions:
        return [()]
    everyone = (1 << len(passing)) - 1
    met: list[tuple[int, Condition]] = []
    for condition in conditions_of(failing, passing, axes):
        held = (condition.holds(facts_of(seen.case)) for seen in passing)
        mask = sum(1 << index for index, holds in enumerate(held) if holds)
        if mask != everyone:
            met.append((mask, condition))
    met = sorted(met, key=lambda item: (cost_of(item[1]), item[0].bit_count()))[:_MOST_CANDIDATES]
    for size in range(1, _MOST_CONDITIONS + 1):
        found = []
        for chosen in combinations(met, size):
            left = everyone
            for mask, _ in chosen:
                left &= mask
            if left.bit_count() <= exceptions:
                found.append(tuple(condition for _, condition in chosen))
        if found:
            return sorted(found, key=lambda conjunction: sum(map(cost_of, conjunction)))
    return []
