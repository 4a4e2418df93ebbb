"""Find the trigger of a mistake: the conditions that all failing cases meet, and no passing one.

Search for conditions, try further cases, search again, and confirm with cases on both sides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, floor, log10
from random import Random
from typing import Any

from harness.cases import Condition, Relation
from harness.cases.axes import changed, is_possible, value_of
from harness.numerics.outputs import OUTPUTS
from harness.records import Case, Status
from harness.records.text import count
from harness.run.attempt import Judged
from harness.verify.case_results import CaseResults
from harness.verify.findings import Trigger
from harness.verify.trigger.observations import (
    DATA_AXES,
    MEASURED,
    ORDER,
    PATH_AXES,
    SIMPLEST,
    SIZES,
    Conjunction,
    Observation,
    axes_of,
    conditions_of,
    cost_of,
    differing,
    facts_of,
    has_data_of,
    meets,
    observation_of,
    smallest,
    with_data_of,
)

_MOST_CASES = 120  # further ones per dtype: about half of what the quick verification tries
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
_IMPLIED = (Condition(axis="hidden", relation=Relation.AT_LEAST, value=2),)
"""Conditions that are not stated. Rows of one element are constant, and hide most mistakes."""
# with fewer failures or more conditions, some conjunction fits any observations by chance
_FEWEST_FAILURES, _MOST_UNCONFIRMED = 4, 2
# differences from a size; sizes so near to each other tell a divisor from a threshold
_STEPS = (-1, 1, 2, 3, 4, 8, 16, 32, 64, 128)
# every row has the same offset: with mixed rows, no threshold could be found
_OFFSETS = ("normal", *(f"offset_1e{exponent}" for exponent in range(1, 5)))
_MOST_COMPARED = 200  # conjunctions at once; trade-off: each is evaluated for every possible case
_MOST_ELEMENTS = 1 << 22  # of one further case
_MOST_DRAWS = 20  # per case that is wanted: many draws are known already, or impossible
_REGARDLESS = {"call": "in forward and backward", "layout": "in any layout"}

Observe = Callable[[Case], Observation | None]


# --- the door ------------------------------------------------------------------------------------


def triggers_of(
    cases: CaseResults, attempt: Callable[[Case], Judged | None]
) -> tuple[Trigger, ...]:
    """Return what the failed cases have in common, merged across dtypes; empty if nothing."""
    found: dict[tuple[object, ...], Trigger] = {}
    for dtype in dict.fromkeys(trial.case.dtype for trial in cases.unexplained):
        of_dtype = [trial for trial in cases.trials if trial.case.dtype == dtype]
        for one in _in_one_dtype(of_dtype, attempt):
            key = one.outputs, one.conditions, one.regardless, bool(one.further_cases)
            known = found.get(key)
            found[key] = one if known is None else _merged(known, one)
    return tuple(found.values())


def _in_one_dtype(
    trials: Sequence[Judged], attempt: Callable[[Case], Judged | None]
) -> Iterator[Trigger]:
    """Yield the trigger of all failures; if they have nothing in common, that of each output."""
    has_crashed = any(trial.status is Status.CRASHED for trial in trials)

    def observe(case: Case) -> Observation | None:
        trial = None if has_crashed else attempt(case)  # a further case may crash, too
        return None if trial is None else observation_of(trial)

    shown = (observation_of(trial) for trial in trials if is_possible(trial.case))
    observations = [seen for seen in shown if seen is not None]
    together = find_trigger(observations, observe, _MOST_CASES)
    failed = {name for seen in observations for name in seen.failed}
    if together is not None or len(failed) < 2:
        yield from () if together is None else (together,)
        return
    apart: dict[Conjunction, Trigger] = {}
    for name in OUTPUTS:
        found = find_trigger(observations, observe, _MOST_CASES // 2, frozenset({name}))
        if found is not None and found.further_cases:
            same = apart.get(found.conditions)
            if same is not None:
                found = replace(same, outputs=(*same.outputs, name))
            apart[found.conditions] = found
    yield from apart.values()


def _merged(one: Trigger, other: Trigger) -> Trigger:
    summed = ("dtypes", "failed", "right", "hidden", "further_cases")
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in summed})


def trigger_text(trigger: Trigger) -> str:
    """Return a trigger in one line."""
    subject = "wrong" if "y" in trigger.outputs else f"{', '.join(trigger.outputs)} wrong"
    what = " and ".join(condition.text for condition in trigger.conditions)
    dtypes = ", ".join(trigger.dtypes)
    if not trigger.further_cases:
        return (
            f"{subject}: in all {trigger.failed} failed cases and in none of the {trigger.right} "
            f"others, {what} ({dtypes}; not confirmed by further cases)"
        )
    where = f"whenever {what}" if what else "at every size, in every layout and mode"
    cases = count(trigger.hidden, "case")
    hidden = f", unless the data hide it (as in {cases})" if trigger.hidden else ""
    axes = [axis for axis in trigger.regardless if axis != "call" or "y" in trigger.outputs]
    more = "".join(f"; {_REGARDLESS[axis]}" for axis in axes if what)
    confirmed = f"{count(trigger.further_cases, 'further case')} confirm it"
    return f"{subject} {where}{hidden}{more} ({dtypes}; {confirmed})"


# --- the search ----------------------------------------------------------------------------------


def find_trigger(
    observations: Sequence[Observation],
    observe: Observe,
    most_cases: int,
    outputs: frozenset[str] | None = None,
) -> Trigger | None:
    """Return what all failing cases have in common; None if nothing, or if further cases disagree.

    Args:
        observations: of one target in one dtype.
        observe: tries one further case.
        most_cases: largest number of further cases to try.
        outputs: the outputs whose failures count; None for all.
    """
    wanted = outputs or frozenset(name for seen in observations for name in seen.failed)

    def about(seen: Observation | None) -> Observation | None:
        if seen is None or not seen.judged & wanted:
            return None
        return replace(seen, failed=seen.failed & wanted)

    given = [found for seen in observations if (found := about(seen)) is not None]
    lab = _Experiments(given, lambda case: about(observe(case)), most_cases)
    seed = _seed(lab)
    if seed is None:
        return None
    simple, axes = lab.simplified(seed)
    path = _path_conditions(lab, _plainest(lab, simple).case, axes & PATH_AXES)
    conditions = _unconfirmed(lab, given)
    if path is not None:
        data = _tightest(_data_conditions(lab, simple.case))
        conditions = tuple(part for part in (*path, *data) if part not in _IMPLIED)
    if conditions is None:
        return None
    failed = [seen.case for seen in lab.observations if seen.failed]
    right = [seen.case for seen in lab.observations if not seen.failed]
    decided = {axis for part in conditions for axis in axes_of(part)}
    return Trigger(
        dtypes=(seed.case.dtype,),
        outputs=tuple(name for name in OUTPUTS if name in wanted),
        conditions=conditions,
        regardless=tuple(
            axis for axis in _REGARDLESS if axis not in decided and _takes_all(failed, right, axis)
        ),
        failed=len(failed),
        right=len(right),
        hidden=sum(meets(case, conditions) for case in right),
        further_cases=most_cases - lab.left if path is not None else 0,
    )


def _takes_all(failed: Sequence[Case], right: Sequence[Case], axis: str) -> bool:
    """Whether failed cases have every value of an axis that was tried, and several."""
    values = {value_of(case, axis) for case in (*failed, *right)}
    return len(values) > 1 and values == {value_of(case, axis) for case in failed}


def _unconfirmed(lab: _Experiments, given: Sequence[Observation]) -> Conjunction | None:
    """Return what all failing cases have in common, if too few further cases could confirm it."""
    could_try = len(lab.observations) > len(given) and lab.left > 0
    failed = sum(bool(seen.failed) for seen in lab.observations)
    if could_try or failed < _FEWEST_FAILURES:
        return None
    found = smallest(lab.observations, frozenset(SIMPLEST))
    return found[0] if found and 0 < len(found[0]) <= _MOST_UNCONFIRMED else None


def _seed(lab: _Experiments) -> Observation | None:
    """Return the smallest failing case whose error is clear.

    If there is none, try the smallest failing case with other distributions.
    """
    failing = [seen for seen in lab.observations if seen.failed]
    small = sorted(failing, key=lambda seen: seen.case.rows * seen.case.hidden)
    strong = next((seen for seen in small if seen.ratio >= _PLAIN_RATIO), None)
    clear = strong or next((seen for seen in small if seen.is_clear), None)
    if clear is not None or not small:
        return clear
    found = [seen for seen in lab.along("distribution", small[0].case) if seen.failed]
    return max(found, key=lambda seen: seen.ratio, default=None)


def _plainest(lab: _Experiments, simple: Observation) -> Observation:
    """Return a simple failing case with the distribution that shows the mistake best.

    Normal rows, also with an offset, are preferred, because all their rows are alike. A case with
    few rows of a mixed distribution may have no row that shows the mistake, and constant rows show
    it only at some row lengths.
    """

    def is_plain(seen: Observation) -> bool:
        return seen.case.distribution in _OFFSETS and seen.ratio >= _PLAIN_RATIO

    def strength(seen: Observation) -> tuple[float, float]:
        return seen.ratio, facts_of(seen.case)["offset_ratio"]

    if is_plain(simple):
        return simple
    found = [seen for seen in lab.along("distribution", simple.case) if seen.failed]
    return max([*filter(is_plain, found)] or (simple, *found), key=strength)


def _path_conditions(lab: _Experiments, simple: Case, axes: set[str]) -> Conjunction | None:
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


def _new_axes(lab: _Experiments, simple: Case, axes: set[str]) -> set[str]:
    """Return the axes, beyond ``axes``, that make the nearest passing case pass."""
    relevant = lab.relevant(simple)
    passing = [seen.case for seen in relevant if not seen.failed]
    conjunction: Conjunction = ()
    exceptions = 1
    while exceptions < len(passing):
        if found := smallest(relevant, frozenset(axes), exceptions):
            conjunction = found[0]
            break
        exceptions *= 2
    included = [case for case in passing if meets(case, conjunction)]
    for case in sorted(included, key=lambda case: len(differing(case, simple))):
        if new := lab.deciding_axes(case, simple, conjunction) - axes:
            return new & PATH_AXES
    return set()


def _transplant(lab: _Experiments, conjunction: Conjunction, simple: Case) -> Case | None:
    """Return an untried case: a passing one that meets a conjunction, given data of ``simple``.

    Of several, it is the nearest to ``simple``, whose data show the mistake.
    """
    cases = [with_data_of(case, simple) for case in lab.passing if meets(case, conjunction)]
    untried = [case for case in cases if case not in lab.known]
    return min(untried, key=lambda case: len(differing(case, simple)), default=None)


def _is_confirmed(lab: _Experiments, conjunction: Conjunction, simple: Case) -> bool:
    """Whether further cases that meet a conjunction fail, and those that do not meet it pass.

    False also if a threshold of a size had to be bisected first.
    """
    for part in conjunction:
        if part.axis in SIZES and part.relation in _THRESHOLDS:
            before = lab.left
            lab.bisect(conjunction, part, simple)
            if lab.left < before:  # the new cases may move the threshold: search again
                return False
    cases = [*lab.inside(conjunction, simple), *lab.outside(conjunction)]
    agreed = 0
    for case in cases:
        found = lab.try_case(case)
        if found is not None and bool(found.failed) is not meets(case, conjunction):
            return False
        agreed += found is not None
    return agreed >= _CONFIRMING


def _data_conditions(lab: _Experiments, simple: Case) -> Iterator[Condition]:
    """Yield conditions on the data, for each axis on which many values hide the mistake."""
    failing = [seen for seen in lab.clear if seen.failed]
    for axis in DATA_AXES:
        along = lab.along(axis, simple)
        passing = [seen for seen in along if not seen.failed]
        fitting = [
            part
            for part in conditions_of(failing, passing, frozenset({axis}))
            if not any(meets(seen.case, (part,)) for seen in passing)
        ]
        best = min(fitting, key=cost_of, default=None)
        share = _MANY_BY_NAME if best is not None and best.axis in SIMPLEST else _MANY_BY_FACT
        if best is not None and len(passing) >= len(along) * share:
            yield _rounded(best, passing)


def _tightest(conditions: Iterable[Condition]) -> list[Condition]:
    """Keep only the tightest threshold of a quantity; two axes of the data may each give one."""
    kept: dict[tuple[str, Relation], Condition] = {}
    for part in conditions:
        known = kept.setdefault((part.axis, part.relation), part)
        if part.relation in _THRESHOLDS and not part.holds_for(known.value):
            kept[part.axis, part.relation] = part
    return list(kept.values())


def _rounded(condition: Condition, passing: Sequence[Observation]) -> Condition:
    """Round the threshold of a measured quantity to a power of ten that no passing case meets.

    The values that were tried are too far apart to give a threshold more than one digit. If a
    passing case meets the rounded condition, the condition stays as it is.
    """
    if condition.axis not in MEASURED or condition.relation not in _THRESHOLDS:
        return condition
    exponent = log10(condition.value) if condition.value > 0 else 0.0
    rises = condition.relation is Relation.AT_LEAST
    rounded = replace(condition, value=10.0 ** (floor(exponent) if rises else ceil(exponent)))
    return condition if any(meets(seen.case, (rounded,)) for seen in passing) else rounded


# --- further cases -------------------------------------------------------------------------------


class _Experiments:
    """Observations of one target in one dtype, with the means to make more of them."""

    def __init__(
        self, observations: Sequence[Observation], observe: Observe, most_cases: int
    ) -> None:
        self.observations = list(observations)
        self.left = most_cases
        self.known: dict[Case, Observation | None] = {seen.case: seen for seen in observations}
        self._observe = observe
        self._random = Random(0)

    @property
    def clear(self) -> list[Observation]:
        """Observations whose errors are not close to their bounds."""
        return [seen for seen in self.observations if seen.is_clear]

    @property
    def failing(self) -> list[Case]:
        return [seen.case for seen in self.clear if seen.failed]

    @property
    def passing(self) -> list[Case]:
        return [seen.case for seen in self.clear if not seen.failed]

    def try_case(self, case: Case) -> Observation | None:
        """Try a case, unless it is known; None if it shows nothing."""
        if case not in self.known:
            if self.left <= 0:
                return None
            self.left -= 1
            is_small = case.rows * case.hidden <= _MOST_ELEMENTS
            self.known[case] = found = self._observe(case) if is_small else None
            if found is not None:
                self.observations.append(found)
        found = self.known[case]
        return found if found is not None and found.is_clear else None

    def simplified(self, seen: Observation) -> tuple[Observation, set[str]]:
        """Make a failing case simple, axis by axis; return it and the axes that make it pass."""
        decisive = set()
        for axis in ORDER:
            case = changed(seen.case, axis, SIMPLEST[axis])
            found = None if case is None else self.try_case(case)
            if found is not None and found.failed:
                seen = found
            elif found is not None:
                decisive.add(axis)
        return seen, decisive

    def along(self, axis: str, case: Case) -> list[Observation]:
        """Return what ``case`` shows at each value of an axis that was tried."""
        values = self._tried(axis)
        if axis == "distribution":
            values |= dict.fromkeys(_OFFSETS)
        cases = dict.fromkeys(changed(case, axis, value) for value in values)
        found = [self.try_case(varied) for varied in cases if varied is not None]
        return [seen for seen in found if seen is not None]

    def relevant(self, simple: Case) -> list[Observation]:
        """Return all failing cases, and the passing ones whose data would show the mistake."""
        return [seen for seen in self.clear if seen.failed or has_data_of(seen.case, simple)]

    def deciding_axes(self, passing: Case, simple: Case, conjunction: Conjunction) -> set[str]:
        """Walk from the nearest failing case to a passing one; return the axes that make it pass.

        All steps have the data of ``simple`` and meet ``conjunction``, so that neither explains the
        difference. The set is empty if no axis changes.
        """
        failing = [case for case in self.failing if has_data_of(case, simple)]
        nearest = min(failing, key=lambda case: len(differing(case, passing)))
        path = [case for case in _path(nearest, passing) if meets(case, conjunction)]
        while len(path) > 2:
            middle = len(path) // 2
            found = self.try_case(path[middle])
            if found is None:
                del path[middle]
            else:
                path = path[middle:] if found.failed else path[: middle + 1]
        return set(differing(path[0], path[-1]))

    def splitting(self, conjunctions: Sequence[Conjunction], near: Case) -> Case | None:
        """Return an untried case about which the conjunctions disagree most; None without one."""
        compared = conjunctions[:_MOST_COMPARED]
        axes = {axis for parts in compared for part in parts for axis in axes_of(part)}
        varied = {changed(near, axis, value) for axis in axes for value in self._values(axis, near)}
        untried = (case for case in varied if case is not None and case not in self.known)

        def disagreement(case: Case) -> int:
            votes = sum(meets(case, parts) for parts in compared)
            return min(votes, len(compared) - votes)

        in_order = sorted(untried, key=lambda case: (case.rows * case.hidden, case.id))
        best = max(in_order, key=disagreement, default=None)
        return best if best is not None and disagreement(best) else None

    def _tried(self, axis: str) -> dict[Any, None]:
        """Return the values of an axis that were tried, each once."""
        return dict.fromkeys(value_of(seen.case, axis) for seen in self.observations)

    def _values(self, axis: str, near: Case) -> list[Any]:
        """Return the values of an axis that were tried, and for a size those around ``near``."""
        values = self._tried(axis)
        if axis in SIZES:
            own = value_of(near, axis)
            sizes = (*(own + step for step in _STEPS), own // 2, 2 * own, 3 * own)
            powers = (1 << own.bit_length(), 1 << max(own.bit_length() - 1, 0))
            values |= dict.fromkeys(size for size in (*sizes, *powers) if size > 0)
        return list(values)

    def inside(self, conjunction: Conjunction, simple: Case) -> Iterator[Case]:
        """Yield untried cases that meet a conjunction, with the data of ``simple``.

        Where the conjunction has conditions on an axis, the value is any that meets them.
        """
        axes = sorted({axis for part in conjunction for axis in axes_of(part)})

        def draw() -> Case | None:
            case: Case | None = with_data_of(self._random.choice(self.observations).case, simple)
            for axis in axes:
                value = self._random.choice(self._values(axis, simple))
                case = None if case is None else changed(case, axis, value)
            return case if case is not None and meets(case, conjunction) else None

        return self._drawn(draw)

    def outside(self, conjunction: Conjunction) -> Iterator[Case]:
        """Yield untried cases that differ from a failing one on one axis, and miss a condition."""

        def draw() -> Case | None:
            near, part = self._random.choice(self.failing), self._random.choice(conjunction)
            axis = self._random.choice(axes_of(part))
            case = changed(near, axis, self._random.choice(self._values(axis, near)))
            return None if case is None or meets(case, (part,)) else case

        return self._drawn(draw) if conjunction else iter(())

    def _drawn(self, draw: Callable[[], Case | None]) -> Iterator[Case]:
        """Return as many untried cases as confirm a trigger, or fewer if they are rare."""
        drawn = (draw() for _ in range(_MOST_DRAWS * _CONFIRMING))
        untried = (case for case in drawn if case is not None and case not in self.known)
        return islice(untried, _CONFIRMING)

    def bisect(self, conjunction: Conjunction, part: Condition, near: Case) -> None:
        """Try sizes until the first, or the last, size at which cases fail is known."""

        def fails(size: int) -> bool | None:
            case = changed(near, part.axis, size)
            found = None if case is None else self.try_case(case)
            return None if found is None else bool(found.failed)

        others = [other for other in conjunction if other is not part]
        rising = part.relation is Relation.AT_LEAST
        right = {value_of(case, part.axis) for case in self.passing}
        beyond = [size for size in right if (size < part.value if rising else size > part.value)]
        for end in sorted(beyond, reverse=rising):
            between = range(end, part.value + 1) if rising else range(end, part.value - 1, -1)
            sizes = [
                size
                for size in between
                if all(_can_be_met(other, part.axis, size) for other in others)
            ]
            if len(sizes) > 1 and fails(sizes[0]) is False and fails(sizes[-1]) is True:
                # a size that shows nothing counts as one that passes
                bisect_left(sizes, True, 1, len(sizes) - 1, key=lambda size: fails(size) is True)
                return


def _path(start: Case, end: Case) -> Iterator[Case]:
    """Yield cases from ``start`` to ``end`` that change one axis at a time, where that can be."""
    case = start
    yield case
    while case != end:
        steps = (changed(case, axis, value_of(end, axis)) for axis in differing(case, end))
        case = next((step for step in steps if step is not None), end)
        yield case


def _can_be_met(condition: Condition, axis: str, size: int) -> bool:
    """Whether a number of rows or elements can meet a condition on that axis."""
    if condition.axis == "is_power_of_two" and axis == "hidden":
        return condition.holds_for(size.bit_count() == 1)
    return condition.axis != axis or condition.holds_for(size)
