"""Covering arrays: few rows in which every possible combination of t conditions occurs.

A row gives each axis one of its values. In an array of strength t, every combination of values of
any t axes is in some row, unless the axes exclude it. A mistake that needs at most t conditions at
once therefore shows in some row (Kuhn, Kacker and Lei, NIST SP 800-142).

Rows are built one at a time (AETG: Cohen, Dalal, Fredman and Patton, IEEE TSE 23 (7), 1997): each
starts from a combination that is not covered yet, is completed at random several times, and the
completion that covers most is kept. The random bits are those of PCG64 with a fixed seed, which
numpy keeps stable: the same axes give the same array on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate, combinations
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cases.axes import Exclusion

__all__ = ["covering_array"]

_COMPLETIONS = 48  # per row; twice as many save few rows
_SEED = 1997  # any number; another one gives another array
_CHANCE_OF_RARE = 0.05  # trade-off, over the chance of any other value: seldom, but not never

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


def covering_array(
    axes: Mapping[str, Sequence[Any]],
    exclusions: Sequence[Exclusion],
    strength: int,
    rare: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    times: int = 1,
) -> list[dict[str, Any]]:
    """Return the rows of a covering array, each a value per axis.

    Args:
        axes: values by name of the axis.
        exclusions: what no row contains; values that no axis has are ignored.
        strength: the number of conditions of which every possible combination is in some row.
        rare: values that rows have only where a combination needs them, by axis.
        times: the number of rows that have each combination of other values.
    """
    values = _Values(axes, exclusions, rare)
    left = _Uncovered(values, strength, times)
    random = _Random()
    rows = []
    for combination in random.permutation(len(left.rows_missing)):
        while left.rows_missing[combination]:
            completions = values.completions(left.values_of(combination), random)
            if completions is None:  # excluded by several exclusions together
                left.rows_missing[combination] = 0
                continue
            best = completions[int(left.gains(completions).argmax())]
            left.cover(best)
            rows.append(best)
    names = [value for axis in axes.values() for value in axis]
    return [dict(zip(axes, (names[number] for number in row), strict=True)) for row in rows]


class _Random:
    """Uniform numbers from the raw bits of PCG64, which never change, as numpy's methods may."""

    def __init__(self) -> None:
        self._bits = np.random.PCG64(_SEED)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Return numbers in (0, 1]."""
        raw = np.asarray(self._bits.random_raw(int(np.prod(shape))), dtype=np.uint64)
        return ((raw >> np.uint64(11)).astype(np.float64).reshape(shape) + 1) * 2.0**-53

    def permutation(self, count: int) -> Ints:
        return np.argsort(self.uniform(count), kind="stable")


class _Values:
    """The values of all axes, numbered through, and which of them occur together."""

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        exclusions: Sequence[Exclusion],
        rare: Mapping[str, Sequence[Any]],
    ) -> None:
        ends = list(accumulate(map(len, axes.values())))
        self.axes = [
            range(end - len(values), end) for end, values in zip(ends, axes.values(), strict=True)
        ]
        self.together: Bools = np.ones((ends[-1], ends[-1]), dtype=bool)
        for axis in self.axes:
            self.together[axis.start : axis.stop, axis.start : axis.stop] = np.eye(len(axis))
        numbers = {
            name: dict(zip(axes[name], axis, strict=True))
            for name, axis in zip(axes, self.axes, strict=True)
        }
        for excluded in exclusions:
            of_axis, of_other = numbers[excluded.axis], numbers[excluded.other]
            ours = [of_axis[value] for value in excluded.values if value in of_axis]
            theirs = [of_other[value] for value in excluded.other_values if value in of_other]
            self.together[np.ix_(ours, theirs)] = False
            self.together[np.ix_(theirs, ours)] = False
        self._close()
        self.is_common: Bools = np.ones(ends[-1], dtype=bool)
        for name, values in rare.items():
            self.is_common[[numbers[name][value] for value in values if value in axes[name]]] = (
                False
            )
        self._chances = np.where(self.is_common, 1.0, _CHANCE_OF_RARE)

    def _close(self) -> None:
        """Part two values if some axis has no value that goes with both, until none is left."""
        before = -1
        while before != (before := int(self.together.sum())):
            for axis in self.axes:
                of_axis = self.together[:, axis.start : axis.stop].astype(np.intp)
                self.together &= of_axis @ of_axis.T > 0

    def completions(self, fixed: Ints, random: _Random) -> Ints | None:
        """Return rows that contain the values ``fixed``, (rows, axes); None if there is none."""
        allowed = np.logical_and.reduce(self.together[fixed])
        if not all(allowed[axis.start : axis.stop].any() for axis in self.axes):
            return None
        masks = np.tile(allowed, (_COMPLETIONS, 1))
        rows = np.zeros((_COMPLETIONS, len(self.axes)), dtype=np.intp)
        for index in random.permutation(len(self.axes)):
            axis = self.axes[index]
            of_axis = slice(axis.start, axis.stop)
            weights = masks[:, of_axis] * self._chances[of_axis]
            chances = random.uniform(_COMPLETIONS, len(axis)) * weights
            rows[:, index] = axis.start + chances.argmax(1)
            masks &= self.together[rows[:, index]]
        whole = masks[np.arange(_COMPLETIONS)[:, None], rows].all(1)
        return rows[whole] if whole.any() else self._searched(fixed)

    def _searched(self, fixed: Ints) -> Ints | None:
        """Return one completion, found by trying all; None if there is none."""

        def search(row: tuple[int, ...], allowed: Bools) -> tuple[int, ...] | None:
            if len(row) == len(self.axes):
                return row
            for value in self.axes[len(row)]:
                if allowed[value]:
                    found = search((*row, value), allowed & self.together[value])
                    if found is not None:
                        return found
            return None

        row = search((), np.logical_and.reduce(self.together[fixed]))
        return None if row is None else np.array([row])


class _Uncovered:
    """The combinations of values that are not in enough rows yet, by number."""

    def __init__(self, values: _Values, strength: int, times: int) -> None:
        self._subsets = list(combinations(range(len(values.axes)), strength))
        # a combination's number is a linear function of the numbers of its values
        self._factors = np.zeros((len(values.axes), len(self._subsets)), dtype=np.intp)
        self._firsts = np.zeros(len(self._subsets), dtype=np.intp)
        parts, total = [], 0
        for column, subset in enumerate(self._subsets):
            of_subset = [values.axes[axis] for axis in subset]
            sizes = [len(axis) for axis in of_subset]
            self._factors[list(subset), column] = [
                int(np.prod(sizes[after:])) for after in range(1, strength + 1)
            ]
            self._firsts[column] = total
            total += int(np.prod(sizes))
            possible = _possible(values.together, of_subset)
            is_common = reduce(np.multiply.outer, [values.is_common[axis] for axis in of_subset])
            parts.append((possible * np.where(is_common, times, 1)).ravel().astype(np.uint8))
        self._offsets = np.array([axis.start for axis in values.axes])
        self.rows_missing = np.concatenate(parts)

    def values_of(self, combination: int) -> Ints:
        """Return the values of a combination, (strength,)."""
        column = int(np.searchsorted(self._firsts, combination, side="right")) - 1
        subset, rest = list(self._subsets[column]), combination - self._firsts[column]
        found = []
        for axis in subset:
            index, rest = divmod(rest, self._factors[axis, column])
            found.append(self._offsets[axis] + index)
        return np.array(found)

    def _numbers(self, rows: Ints) -> Ints:
        """Return the numbers of all combinations in each row, (rows, subsets)."""
        numbers: Ints = (rows - self._offsets) @ self._factors + self._firsts
        return numbers

    def gains(self, rows: Ints) -> Ints:
        """Return how many missing combinations each row has, (rows,)."""
        found: Ints = (self.rows_missing[self._numbers(rows)] > 0).sum(1)
        return found

    def cover(self, row: Ints) -> None:
        numbers = self._numbers(row[None])
        self.rows_missing[numbers] -= self.rows_missing[numbers] > 0


def _possible(together: Bools, axes: Sequence[range]) -> Bools:
    """Return which combinations have values that go together in pairs; one dimension per axis."""
    pairs = []
    for one, other in combinations(range(len(axes)), 2):
        a, b = axes[one], axes[other]
        shape = [1] * len(axes)
        shape[one], shape[other] = len(a), len(b)
        pairs.append(together[a.start : a.stop, b.start : b.stop].reshape(shape))
    return reduce(np.logical_and, pairs)
