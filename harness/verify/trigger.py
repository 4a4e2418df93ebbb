"""Where does a mistake show? The conditions that all failed cases meet and no other case meets.

The search starts from one simple failed case and changes one axis at a time. Where some values of
an axis give a right result, a condition on that axis tells them from those that fail. The
conditions together are stated only if all failed cases meet them, and every right case that meets
them fails too once it has data that show the mistake. Cases that are drawn at random must agree:
those that meet all conditions fail, and those that do not meet one of them are right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, isnan
from random import Random
from typing import Any

import torch

from harness.cases import AXES, Condition, Relation
from harness.cases.axes import (
    FORWARD_CALLS,
    changed,
    is_possible,
    value_of,
)
from harness.cases.inputs import LAYOUTS, make_inputs
from harness.numerics import OUTPUTS
from harness.records import Affine, Case, Status
from harness.records.text import listed
from harness.run import Judged
from harness.verify.words import SIMPLEST, settings_in_words

__all__ = ["Further", "Search", "Trigger", "conditions_of_failures", "fact_of"]

Conjunction = tuple[Condition, ...]
Further = Callable[[Case], Judged | None]
"""Tries a further case; None where that is outside the scope of the target, or too slow."""

_SIZES = ("rows", "hidden")
# kernels seldom choose a path by the values of their arguments, and values may hide a mistake
_DATA = ("distribution", "eps", "parameters", "grad_output")
# those that seldom matter come first, and the data last
_ORDER = (
    *("layout", "threads", "param_dtype", "affine", "normalized_axes", "leading_axes", "call"),
    *(*_SIZES, *reversed(_DATA)),
)
_FACTS_OF_X = ("is_finite", "offset_ratio", "least_variance_ratio", "largest")
_NUMBERS = {axis.name for axis in AXES.values() if axis.kind in {int, float}}
# every row has the same offset: with mixed rows, no threshold could be found
_OFFSETS = ("normal", *(f"offset_1e{exponent}" for exponent in (4, 3, 2, 1)))
# between two that are usual
_MORE_VALUES = {"distribution": _OFFSETS, "eps": (1e-8, 1e-7, 1e-6, 1e-4)}
_DIVISORS = (2, 4, 8, 16, 32, 64, 128)  # vectors, warps and blocks
# differences from a size; sizes so near to each other tell a divisor from a threshold. The first
# ones show whether there is any condition on the size
_FIRST_STEPS, _STEPS = (-1, 1, 2, 4), (3, 8, 16, 32, 64, 128)
_MOST_NAMES = 3  # that a person reads as one condition
_MOST_ROUNDS = 3  # of a search; the cases of one that are in conflict are known in the next
_MOST_CONDITIONS = 4  # a mistake that needs more of them together is not found by cases
# If at least this share of the values of an axis of the data hides the mistake, there is a
# condition on the data: on a fact of x, or one that names values. A smaller share are exceptions.
_MANY_BY_FACT, _MANY_BY_NAME = 1 / 4, 1 / 2
_MARGIN_RATIO = 3.0  # a case within this factor of its bound may be wrong or right by its rounding
_PLAIN_RATIO = 100.0  # with a smaller one, the same data in another case may hide the mistake
_MOST_TRIED_AGAIN = 12  # right cases that are tried with other data
_INSIDE, _OUTSIDE = 8, 3  # drawn cases that meet all conditions; of each condition, that do not
_LEAST_DRAWN = 3  # elements of a row: of fewer, dx is 0 whatever it is made of
_MOST_DRAWS = 40  # some make an impossible or a large case
_MOST_CASES = 300  # further ones; a search without surprises takes about 120
_MOST_FURTHER = 1 << 20  # of one further case
_SMALL = 1 << 14  # elements of a drawn case, unless the simple one is larger
_MOST_DRAWN = 1 << 16  # of an x that is drawn again; facts of a larger one come from fewer rows


@dataclass(frozen=True, slots=True)
class Trigger:
    """Outputs, and the conditions under which they are wrong."""

    outputs: tuple[str, ...]
    conditions: Conjunction
    simple: Case
    """A failed case with the simplest value on each axis that still fails."""
    is_of_all: bool
    """Whether the other outputs are right."""

    @property
    def text(self) -> str:
        """Where they are wrong, in words."""
        is_whole = self.is_of_all and "y" in self.outputs
        what = "wrong" if is_whole else f"{listed(self.outputs)} wrong"
        where = f"where {listed(part.text for part in self.conditions)}"
        where = where if self.conditions else "at every size, in every layout and mode"
        known = {part.axis for part in self.conditions}
        known |= {axis for name in known for axis in AXES[name].follows_from}
        data = [axis for axis in _DATA if axis not in known]
        unusual = listed(settings_in_words(self.simple, data))
        return f"{what} {where}{f', if {unusual}, for example' if unusual else ''}"


def conditions_of_failures(
    trials: Sequence[Judged], further: Further, sizes: Sequence[int] = ()
) -> Iterator[Trigger]:
    """Yield outputs, and the conditions under which they are wrong; nothing if there are none.

    If the failures have nothing in common, each output is asked for by itself.

    Args:
        trials: of one target in one dtype.
        further: tries further cases.
        sizes: at which the target may branch, as its source says.
    """
    ratios = [_ratios(trial) for trial in trials]
    wrong = [name for name in OUTPUTS if any(not own.get(name, 0.0) <= 1 for own in ratios)]
    if (together := Search(trials, further, wrong, sizes).trigger(is_of_all=True)) is not None:
        yield together
        return
    apart: dict[Conjunction, Trigger] = {}
    # where y is wrong, the gradients follow from it
    for name in ("y",) if "y" in wrong else wrong:
        if (found := Search(trials, further, [name], sizes).trigger(is_of_all=False)) is not None:
            same = apart.get(found.conditions, replace(found, outputs=()))
            apart[found.conditions] = replace(same, outputs=(*same.outputs, name))
    yield from apart.values()


def _ratios(trial: Judged) -> dict[str, float]:
    """Return each output's error over its bound; of a wrong shape or dtype, y is infinitely off."""
    if trial.status not in {Status.OK, Status.WRONG}:
        return {}
    if trial.status is Status.WRONG and not trial.ratios:
        return {"y": inf}
    known = ((row.output, row.bound_ratio) for row in trial.ratios)
    return {name: inf if isnan(own) else own for name, own in known if own is not None}


class Search:
    """Cases of one target in one dtype, and the means to try more of them."""

    def __init__(
        self,
        trials: Sequence[Judged],
        further: Further,
        outputs: Sequence[str],
        sizes: Sequence[int] = (),
    ) -> None:
        self._further, self._outputs, self._sizes = further, outputs, sizes
        self._left = _MOST_CASES
        self.ratios: dict[Case, float | None] = {
            trial.case: self._ratio(trial) for trial in trials if is_possible(trial.case)
        }
        """Of each case: the largest error over its bound; None if it could not be judged."""

    def _ratio(self, trial: Judged) -> float | None:
        """Return the largest error over its bound, unless rounding decides on which side it is."""
        ratios = _ratios(trial)
        worst = max((ratios[name] for name in self._outputs if name in ratios), default=None)
        return worst if worst is None or not 1 / _MARGIN_RATIO < worst <= _MARGIN_RATIO else None

    def fails(self, case: Case) -> bool | None:
        """Try a case, unless it is known; None if it could not be judged."""
        if case not in self.ratios:
            is_tried = self._left > 0 and case.rows * case.hidden <= _MOST_FURTHER
            self._left -= is_tried
            trial = self._further(case) if is_tried else None
            self.ratios[case] = None if trial is None else self._ratio(trial)
        ratio = self.ratios[case]
        return None if ratio is None else ratio > 1

    def _known(self, *, failing: bool) -> list[Case]:
        judged = ((case, ratio) for case, ratio in self.ratios.items() if ratio is not None)
        return [case for case, ratio in judged if (ratio > 1) is failing]

    def trigger(self, *, is_of_all: bool) -> Trigger | None:
        """Return where the outputs are wrong; None if that is not confirmed."""
        if (simple := self.simple_failure()) is None:
            return None
        steps = [(axis, simple) for axis in _ORDER]
        for _ in range(_MOST_ROUNDS):
            if (found := self._conditions(steps)) is None:
                return None
            right = None
            for conditions in self._alternatives(found, simple):
                if not self._are_needed(conditions, simple):
                    continue
                if (right := self._right_inside(conditions, simple)) is not None:
                    continue
                if self._left <= 0:
                    return None  # not every case was tried
                return Trigger(tuple(self._outputs), conditions, simple, is_of_all)
            if right is not None:
                step = self._step_to(right, simple)
                if step is None or step in steps:
                    return None
                steps.append(step)
        return None

    def _conditions(self, steps: Iterable[tuple[str, Case]]) -> Conjunction | None:
        """Return conditions on axes, each of which is changed in a failed case; None if none do."""
        found: dict[tuple[str, Relation], Condition] = {}
        for axis, failed in steps:
            outcomes = self._outcomes(axis, failed)
            if outcomes and all(outcome is None for outcome in outcomes.values()):
                return None  # it may be decisive
            met = [case for case in outcomes if _meets(case, tuple(found.values()))]
            right = [case for case in met if outcomes[case] is False]
            parts = self._conditions_separating(axis, right)
            if axis in _SIZES and parts:
                self._bisect(axis, parts, failed, right)
                parts = self._conditions_separating(axis, right)
            if axis in _DATA:
                by_fact = bool(parts) and all(part.axis != axis for part in parts or ())
                share = _MANY_BY_FACT if by_fact else _MANY_BY_NAME
                parts = parts if len(right) >= share * len(outcomes) else ()
            if parts is None and axis in _SIZES:
                parts = ()  # a limit of the number of elements may tell the cases apart
            if parts is None:
                return None
            found |= {(part.axis, part.relation): part for part in parts}
        return tuple(found.values()) if len(found) <= _MOST_CONDITIONS else None

    def _step_to(self, right: Case, failed: Case) -> tuple[str, Case] | None:
        """Return the axis that makes the difference between two cases, and a case that fails.

        The failed case becomes the right one axis by axis.
        """
        for axis in (*_ORDER, *_ORDER):  # a later axis may exclude the value of another
            nearer = changed(failed, axis, value_of(right, axis))
            outcome = nearer and self.fails(nearer)
            if outcome is False:
                return axis, failed
            failed = nearer if nearer is not None and outcome else failed
        return None

    def simple_failure(self) -> Case | None:
        """Return a failed case that has the simplest value on each axis that still fails."""
        # rows of one element are constant, and a mistake there may be another one
        failing = self._known(failing=True)
        failing.sort(key=lambda case: (case.hidden == 1, case.rows * case.hidden))
        plain = [case for case in failing if (self.ratios[case] or 0) >= _PLAIN_RATIO]
        if (case := next(iter((*plain, *failing)), None)) is None:
            return None
        for axis in (*_ORDER, *_ORDER):  # a later axis may exclude the simplest value of another
            is_data = axis == "distribution"
            values, least_ratio = (_OFFSETS, _PLAIN_RATIO) if is_data else (SIMPLEST[axis], 1.0)
            cases = [changed(case, axis, value) for value in values]
            failed = (simpler for simpler in cases if simpler is not None and self.fails(simpler))
            case = next((one for one in failed if (self.ratios[one] or 0) >= least_ratio), case)
        return case

    def _outcomes(self, axis: str, simple: Case) -> dict[Case, bool | None]:
        """Try the values of an axis in a failed case: of a size, more of them if some are right."""
        own = value_of(simple, axis)
        failing = (value_of(case, axis) for case in self._known(failing=True))
        tried = {value_of(case, axis) for case in self.ratios}  # not all are in the target's scope
        values = dict.fromkeys((*(one for one in AXES[axis].values if one in tried), *failing))
        values |= dict.fromkeys(_MORE_VALUES.get(axis, ()))
        if axis in _SIZES:
            values |= dict.fromkeys(own + step for step in _FIRST_STEPS)
        outcomes = self._along(axis, values, simple)
        if axis in _SIZES and False in outcomes.values():
            power = 1 << own.bit_length()
            near = (*(own + step for step in _STEPS), own // 2, 2 * own, 3 * own, *_DIVISORS)
            outcomes |= self._along(axis, (*near, power // 2, power, *self._sizes), simple)
        return outcomes

    def _along(self, axis: str, values: Iterable[Any], simple: Case) -> dict[Case, bool | None]:
        """Try a failed case with other values on one axis."""
        is_size, sizes = axis in _SIZES, (simple.rows, simple.hidden)
        cases = (changed(simple, axis, value) for value in dict.fromkeys(values))
        return {
            case: self.fails(case)
            for case in cases
            if case is not None
            and case != simple
            and case.hidden > 1  # rows of one element are constant, and hide most mistakes
            and (is_size or (case.rows, case.hidden) == sizes)
        }

    def _conditions_separating(self, axis: str, right: Sequence[Case]) -> Conjunction | None:
        """Return the fewest conditions on an axis that all failed cases meet, and none of these."""
        if not right:
            return ()
        failing = self._known(failing=True)
        facts = (fact.name for fact in AXES.values() if axis in fact.follows_from)
        # one of the two sizes says more than the number of elements
        names = [axis, *(name for name in facts if name != "elements")]
        parts = [part for name in names for part in _met_by_all(name, failing, right)]

        def excludes_right(some: Conjunction) -> bool:
            return not any(_meets(case, some) for case in right)

        for size in (1, 2):
            if chosen := [*filter(excludes_right, combinations(parts, size))]:
                return min(chosen, key=lambda some: sum(map(_cost, some)))
        return None

    def _bisect(self, axis: str, parts: Conjunction, simple: Case, right: Sequence[Case]) -> None:
        """Try sizes until the first, or the last, size at which cases fail is known."""
        for part in parts:
            if part.axis != axis or part.relation not in {Relation.AT_LEAST, Relation.AT_MOST}:
                continue
            sizes = [value_of(case, axis) for case in right]
            beyond = [size for size in sizes if not part.holds_for(size)]
            is_rising = part.relation is Relation.AT_LEAST
            end, step = (max(beyond), 1) if is_rising else (min(beyond), -1)
            between = (changed(simple, axis, at) for at in range(end, part.value + step, step))
            others = [other for other in parts if other is not part]
            cases = [case for case in between if case is not None and _meets(case, others)]
            # a size that shows nothing counts as one that is right
            bisect_left(cases, True, key=lambda case: self.fails(case) is True)

    def _bisect_elements(self, row: Case, others: Conjunction) -> None:
        """Try single rows until the least number of elements at which cases fail is known."""
        failing = min(case.rows * case.hidden for case in self._known(failing=True))
        right = [case for case in self._known(failing=False) if _meets(case, others)]
        smaller = [size for case in right if (size := case.rows * case.hidden) < failing]
        between = range(max(smaller, default=failing), failing + 1)
        cases = [changed(row, "hidden", size) or row for size in between]
        if self.fails(cases[-1]):
            bisect_left(cases, True, key=lambda case: self.fails(case) is True)

    def _alternatives(self, found: Conjunction, simple: Case) -> Iterator[Conjunction]:
        """Yield conditions that may be the trigger: those found, or one on the number of elements.

        A limit of that number looks like one of each size.
        """
        limits = {part.axis for part in found if part.relation is Relation.AT_LEAST} & {*_SIZES}
        others = tuple(part for part in found if part.axis not in _SIZES)
        if len(limits) < len(_SIZES):
            yield found
        by_size = (self._outcomes(axis, simple) for axis in _SIZES)
        if any(False in outcomes.values() for outcomes in by_size):
            if self._limit_of_elements(others) is not None:
                self._bisect_elements(changed(simple, "rows", 1) or simple, others)
            if (limit := self._limit_of_elements(others)) is not None:
                yield (*others, limit)
        if len(limits) == len(_SIZES):
            yield found

    def _limit_of_elements(self, others: Conjunction) -> Condition | None:
        """Return the least number of elements of failed cases, if right ones have fewer."""
        least = min(case.rows * case.hidden for case in self._known(failing=True))
        limit = Condition(axis="elements", relation=Relation.AT_LEAST, value=least)
        right = self._known(failing=False)
        return None if any(_meets(case, (*others, limit)) for case in right) else limit

    def _are_needed(self, conditions: Conjunction, simple: Case) -> bool:
        """Whether all failed cases meet the conditions, and those that miss one are right."""
        if not all(_meets(case, conditions) for case in self._known(failing=True)):
            return False
        drawn = (case for part in conditions for case in self._drawn(simple, conditions, part))
        return not any(self.fails(case) for case in drawn)

    def _right_inside(self, conditions: Conjunction, simple: Case) -> Case | None:
        """Return a case that meets the conditions and is right, with data that show the mistake."""
        right = (case for case in self._known(failing=False) if case.hidden > 1)
        met = (case for case in right if _meets(case, conditions))
        data = {axis: value_of(simple, axis) for axis in _DATA}
        again = dict.fromkeys(_with_values(case, data) for case in met)
        inside = [case for case in again if _meets(case, conditions)][:_MOST_TRIED_AGAIN]
        inside += self._drawn(simple, conditions, None)
        return next((case for case in inside if self.fails(case) is False), None)

    def _drawn(self, simple: Case, conditions: Conjunction, unmet: Condition | None) -> list[Case]:
        """Draw cases that meet conditions, all or all but one, with the data of a failed case."""
        random = Random(0)
        own = {unmet.axis, *AXES[unmet.axis].follows_from} if unmet is not None else set()
        others = tuple(part for part in conditions if part is not unmet)
        axes = [axis for axis in _ORDER if axis not in _DATA or axis in own]
        pools = {}
        for axis in axes:
            cases = ((value, changed(simple, axis, value)) for value in self._pool(axis, random))
            met = [(value, case) for value, case in cases if case and _meets(case, others)]
            if unmet is not None:
                met = [pair for pair in met if _meets(pair[1], (unmet,)) is (axis not in own)]
            pools[axis] = [value for value, _ in met]
        found: dict[Case, None] = {}
        most, wanted = max(_SMALL, 2 * simple.rows * simple.hidden), _OUTSIDE if own else _INSIDE
        for _ in range(_MOST_DRAWS):
            drawn = {axis: random.choice(pool) for axis, pool in pools.items() if pool}
            case = _with_values(simple, drawn)
            is_met = _meets(case, others) and not (unmet and _meets(case, (unmet,)))
            if is_met and case.rows * case.hidden <= most and case not in self.ratios:
                found[case] = None
            if len(found) == wanted:
                break
        return [*found]

    def _pool(self, axis: str, random: Random) -> Iterable[Any]:
        """Return values of an axis, from which to draw: those of cases that could be judged."""
        judged = [case for case, ratio in self.ratios.items() if ratio is not None]
        known = dict.fromkeys(value_of(case, axis) for case in judged)
        if axis not in _SIZES:
            return known
        drawn = (_LEAST_DRAWN * (max(known) / _LEAST_DRAWN) ** random.random() for _ in range(30))
        least = _LEAST_DRAWN if axis == "hidden" else 1
        return dict.fromkeys(size for size in (*known, *map(round, drawn)) if size >= least)


def _with_values(case: Case, values: Mapping[str, Any]) -> Case:
    """Return ``case`` with these values by axis, on each axis where that is possible."""
    for axis, value in values.items():
        case = changed(case, axis, value) or case
    return case


def _meets(case: Case, conditions: Sequence[Condition]) -> bool:
    return all(part.holds_for(fact_of(case, part.axis)) for part in conditions)


def _met_by_all(axis: str, failing: list[Case], right: Sequence[Case]) -> Iterator[Condition]:
    """Yield the conditions on an axis, or on a fact, that all failing cases meet."""
    values = {fact_of(case, axis) for case in failing}
    others = {fact_of(case, axis) for case in right} - values
    found: list[tuple[Relation, Any]] = []
    if axis in _NUMBERS:
        found += [(Relation.AT_LEAST, min(values)), (Relation.AT_MOST, max(values))]
    if axis in _SIZES:
        for divisor in _DIVISORS:
            if not any(size % divisor for size in values):
                found.append((Relation.MULTIPLE, divisor))
            if all(size % divisor for size in values):
                found.append((Relation.NOT_MULTIPLE, divisor))
    if len(values) == 1 and axis not in _FACTS_OF_X[1:]:
        found.append((Relation.IS, *values))
    elif axis not in _NUMBERS:
        found += [(Relation.IS_NOT, name) for name in sorted(others)]
    if 1 < len(values) <= _MOST_NAMES and (axis in _SIZES or axis not in _NUMBERS):
        found.append((Relation.ONE_OF, tuple(sorted(values))))
    for relation, value in found:
        part = Condition(axis=axis, relation=relation, value=value)
        is_vague = axis == "offset_ratio" and relation is Relation.AT_LEAST and value < 1
        if not is_vague and not all(part.holds_for(other) for other in others):
            yield part


def _cost(condition: Condition) -> int:
    """Return how special a condition is; of those that fit equally well, the least is stated."""
    match condition.relation:
        case Relation.AT_LEAST | Relation.AT_MOST:
            return 1
        case Relation.ONE_OF:
            return 6
        case Relation.IS | Relation.IS_NOT if AXES[condition.axis].kind is not bool:
            return 4
    return 2


def fact_of(case: Case, name: str) -> Any:
    """Return the value of a case on an axis, or on what follows from axes."""
    if name in {"is_contiguous", "is_row_dense"}:
        x = LAYOUTS[case.layout](torch.empty(case.shape, device="meta"))
        is_row_dense = x.stride(-1) == 1 or x.shape[-1] == 1
        return x.is_contiguous() if name == "is_contiguous" else is_row_dense
    if name not in _FACTS_OF_X:
        return value_of(case, name)
    plain = AXES["call"].set(AXES["affine"].set(case, Affine.NONE), FORWARD_CALLS[0])
    return _facts_of_x(replace(plain, implementation="", device="cpu", threads=1))[name]


@lru_cache(maxsize=4096)
def _facts_of_x(case: Case) -> dict[str, Any]:
    """Return what can decide the path or the error of a kernel beside the axes."""
    if case.rows * case.hidden > _MOST_DRAWN:
        shape = (min(max(_MOST_DRAWN // case.hidden, 1), case.rows), case.hidden)
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
        "is_finite": len(finite) == len(x),
        # of finite rows: the largest of those that are not constant, 0 without one
        "offset_ratio": float(offsets.amax()) if len(offsets) else 0.0,
        # the smallest; infinite without eps
        "least_variance_ratio": float(variances.amin()) if len(finite) else inf,
        "largest": float(finite.abs().amax()) if finite.numel() else 0.0,
    }
