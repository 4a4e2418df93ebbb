"""Further cases, to find the axes that decide whether a case fails, and conditions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

from harness.records import Case
from harness.verify.trigger.axes import (
    ORDER,
    SIMPLEST,
    SIZES,
    changed,
    differing,
    has_data_of,
    value_of,
    with_data_of,
)
from harness.verify.trigger.candidates import axes_of, is_met, is_met_by_size
from harness.verify.trigger.conditions import Relation, TriggerCondition
from harness.verify.trigger.observation import Observation, unseen
from harness.verify.trigger.search import Conjunction, meets

__all__ = ["OFFSETS", "Attempt", "Experiments"]

Attempt = Callable[[Case], Observation | None]

# differences from a size; sizes so near to each other tell a divisor from a threshold
_STEPS = (-1, 1, 2, 3, 4, 8, 16, 32, 64, 128)
# every row has the same offset: with mixed rows, no threshold could be found
OFFSETS = ("normal", *(f"offset_1e{exponent}" for exponent in range(1, 5)))
_MOST_COMPARED = 200  # conjunctions at once; trade-off: each is evaluated for every possible case
_MOST_ELEMENTS = 1 << 22  # of one further case
_MOST_DRAWS = 20  # per case that is wanted: many draws are known already, or impossible


class Experiments:
    """Observations of one target in one dtype, with the means to make more of them."""

    def __init__(
        self, observations: Sequence[Observation], attempt: Attempt, most_cases: int
    ) -> None:
        self.observations = list(observations)
        self.left = most_cases
        self._attempt = attempt
        self._known: dict[Case, Observation | None] = {each.case: each for each in observations}
        self._random = Random(0)

    @property
    def clear(self) -> list[Observation]:
        """Observations whose errors are not close to their bounds."""
        return [each for each in self.observations if each.is_clear]

    def is_known(self, case: Case) -> bool:
        """Whether a case was tried."""
        return case in self._known

    def try_case(self, case: Case) -> Observation | None:
        """Try a case, unless it is known; None if it shows nothing."""
        if case not in self._known:
            if self.left <= 0:
                return None
            self.left -= 1
            is_small = case.rows * case.hidden <= _MOST_ELEMENTS
            self._known[case] = found = self._attempt(case) if is_small else None
            if found is not None:
                self.observations.append(found)
        found = self._known[case]
        return found if found is not None and found.is_clear else None

    def simplified(self, observation: Observation) -> tuple[Observation, set[str]]:
        """Make a failing case simple, axis by axis; return it and the axes that make it pass."""
        decisive = set()
        for axis in ORDER:
            case = changed(observation.case, axis, SIMPLEST[axis])
            found = None if case is None else self.try_case(case)
            if found is not None and found.failed:
                observation = found
            elif found is not None:
                decisive.add(axis)
        return observation, decisive

    def along(self, axis: str, case: Case) -> list[Observation]:
        """Return what ``case`` shows at each value of an axis that was tried."""
        values = dict.fromkeys(value_of(each.case, axis) for each in self.observations)
        if axis == "distribution":
            values |= dict.fromkeys(OFFSETS)
        cases = [changed(case, axis, value) for value in values]
        found = [self.try_case(each) for each in dict.fromkeys(cases) if each is not None]
        return [each for each in found if each is not None]

    def relevant(self, simple: Case) -> list[Observation]:
        """Return all failing cases, and the passing ones whose data would show the mistake."""
        return [each for each in self.clear if each.failed or has_data_of(each.case, simple)]

    def deciding_axes(
        self, passing: Observation, simple: Case, conjunction: Conjunction
    ) -> set[str]:
        """Walk from the nearest failing case to a passing one; return the axes that make it pass.

        All steps have the data of ``simple`` and meet ``conjunction``, so that neither explains the
        difference. The set is empty if no axis changes.
        """
        failing = [each for each in self.clear if each.failed and has_data_of(each.case, simple)]
        nearest = min(failing, key=lambda each: len(differing(each.case, passing.case)))
        path = [
            case for case in _path(nearest.case, passing.case) if meets(unseen(case), conjunction)
        ]
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
        axes = {axis for each in compared for part in each for axis in axes_of(part)}
        best, best_votes = None, 0
        for case in self._variants(near, axes):
            votes = sum(meets(unseen(case), each) for each in compared)
            votes = min(votes, len(compared) - votes)
            if votes > best_votes:
                best, best_votes = case, votes
        return best

    def _variants(self, near: Case, axes: Iterable[str]) -> list[Case]:
        """Return untried cases that differ from ``near`` on one axis, the smallest first."""
        found = [
            changed(near, axis, value)
            for axis in sorted(axes)
            for value in self._values(axis, near)
        ]
        untried = {case for case in found if case is not None and not self.is_known(case)}
        return sorted(untried, key=lambda case: (case.rows * case.hidden, case.id))

    def _values(self, axis: str, near: Case) -> list[Any]:
        """Return the values of an axis that were tried, and for a size those around ``near``."""
        values = dict.fromkeys(value_of(each.case, axis) for each in self.observations)
        own = value_of(near, axis)
        if axis in SIZES:
            sizes = (*(own + step for step in _STEPS), own // 2, 2 * own, 3 * own)
            powers = (1 << own.bit_length(), 1 << max(own.bit_length() - 1, 0))
            values |= dict.fromkeys(size for size in (*sizes, *powers) if size > 0)
        return list(values)

    def inside(self, conjunction: Conjunction, simple: Case, count: int) -> Iterator[Case]:
        """Yield untried cases that meet a conjunction, with the data of ``simple``.

        Where the conjunction has conditions on an axis, the value is any that meets them.
        """
        axes = sorted({axis for part in conjunction for axis in axes_of(part)})
        for _ in range(_MOST_DRAWS * count):
            other = self._random.choice(self.observations).case
            case: Case | None = with_data_of(other, simple)
            for axis in axes:
                value = self._random.choice(self._values(axis, simple))
                case = None if case is None else changed(case, axis, value)
            if case is None or self.is_known(case) or not meets(unseen(case), conjunction):
                continue
            yield case
            count -= 1
            if not count:
                return

    def outside(self, conjunction: Conjunction, count: int) -> Iterator[Case]:
        """Yield untried cases that differ from a failing one on one axis, and miss a condition."""
        failing = [each for each in self.clear if each.failed]
        for _ in range(_MOST_DRAWS * count if conjunction else 0):
            near, part = self._random.choice(failing).case, self._random.choice(conjunction)
            axis = self._random.choice(axes_of(part))
            case = changed(near, axis, self._random.choice(self._values(axis, near)))
            if case is None or self.is_known(case) or is_met(part, unseen(case)):
                continue
            yield case
            count -= 1
            if not count:
                return

    def bisect(self, conjunction: Conjunction, part: TriggerCondition, near: Case) -> None:
        """Try sizes until the first, or the last, size at which cases fail is known."""
        others = [each for each in conjunction if each is not part]
        rising = part.relation is Relation.AT_LEAST
        right = {value_of(each.case, part.axis) for each in self.clear if not each.failed}
        beyond = [each for each in right if (each < part.value if rising else each > part.value)]
        for end in sorted(beyond, reverse=rising):
            between = range(end, part.value + 1) if rising else range(end, part.value - 1, -1)
            sizes = [
                size
                for size in between
                if all(is_met_by_size(each, part.axis, size) for each in others)
            ]
            if self._bisected(sizes, part.axis, near):
                return

    def _bisected(self, sizes: Sequence[int], axis: str, near: Case) -> bool:
        """Bisect sizes; return False unless the first passes and the last fails."""
        if len(sizes) < 2 or self._fails(near, axis, sizes[0]) is not False:
            return False
        if self._fails(near, axis, sizes[-1]) is not True:
            return False
        low, high = 0, len(sizes) - 1
        while high - low > 1:
            middle = (low + high) // 2
            failed = self._fails(near, axis, sizes[middle])
            if failed is None:
                return False
            low, high = (low, middle) if failed else (middle, high)
        return True

    def _fails(self, near: Case, axis: str, size: int) -> bool | None:
        case = changed(near, axis, size)
        found = None if case is None else self.try_case(case)
        return None if found is None else bool(found.failed)


def _path(start: Case, end: Case) -> Iterator[Case]:
    """Yield cases from ``start`` to ``end`` that change one axis at a time, where that can be."""
    case = start
    yield case
    while case != end:
        steps = (changed(case, axis, value_of(end, axis)) for axis in differing(case, end))
        case = next((each for each in steps if each is not None), end)
        yield case
