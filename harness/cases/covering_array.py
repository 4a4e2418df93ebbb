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

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cases.axes import Exclusion

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
        times: how many rows have each combination without a rare value; one row has the others.
    """
    numbered = [(name, value) for name, values in axes.items() for value in values]
    starts = np.cumsum([0, *map(len, axes.values())])
    slices = [slice(start, end) for start, end in pairwise(starts)]
    is_common = np.array([value not in rare.get(name, ()) for name, value in numbered])
    random = np.random.PCG64(_SEED)
    compatible = _compatible(numbered, slices, exclusions)
    chances = np.where(is_common, 1.0, _CHANCE_OF_RARE)
    # all combinations; the index of one is a linear function of the indices of its values
    subsets = [list(subset) for subset in combinations(range(len(axes)), strength)]
    factors = np.zeros((len(axes), len(subsets)), dtype=np.intp)
    parts = []
    for column, subset in enumerate(subsets):
        sizes = [slices[axis].stop - slices[axis].start for axis in subset]
        factors[subset, column] = [prod(sizes[after:]) for after in range(1, strength + 1)]
        parts.append(np.indices(sizes).reshape(strength, -1).T + starts[subset])
    firsts = np.cumsum([0, *map(len, parts)])[:-1]
    values = np.concatenate(parts)
    rows_missing = np.where(is_common[values].all(1), times, 1)
    for one, other in combinations(range(strength), 2):
        rows_missing *= compatible[values[:, one], values[:, other]]
    rows = []
    for combination in _permutation(random, len(values)):
        while rows_missing[combination]:
            completions = _completions(values[combination], slices, compatible, chances, random)
            if not len(completions):  # excluded by several exclusions together
                rows_missing[combination] = 0
                continue
            numbers = (completions - starts[:-1]) @ factors + firsts
            best = int((rows_missing[numbers] > 0).sum(1).argmax())
            rows_missing[numbers[best]] -= rows_missing[numbers[best]] > 0
            rows.append(dict(numbered[value] for value in completions[best]))
    return rows


def _uniform(bits: np.random.PCG64, *shape: int) -> NDArray[np.float64]:
    """Return numbers in (0, 1], from raw bits, which never change, as numpy's methods may."""
    raw = np.asarray(bits.random_raw(prod(shape)), dtype=np.uint64)
    return ((raw >> np.uint64(11)).astype(np.float64).reshape(shape) + 1) * 2.0**-53


def _permutation(bits: np.random.PCG64, count: int) -> Ints:
    return np.argsort(_uniform(bits, count), kind="stable")


def _compatible(
    numbered: Sequence[tuple[str, Any]],
    slices: Sequence[slice],
    exclusions: Sequence[Exclusion],
) -> Bools:
    """Return which two values can occur together, (values, values)."""
    compatible: Bools = np.ones((len(numbered), len(numbered)), dtype=bool)
    for axis in slices:
        compatible[axis, axis] = np.eye(axis.stop - axis.start)
    for excluded in exclusions:
        ours = [name == excluded.axis and value in excluded.values for name, value in numbered]
        theirs = [
            name == excluded.other and value in excluded.other_values for name, value in numbered
        ]
        compatible &= ~(np.outer(ours, theirs) | np.outer(theirs, ours))
    # nor can two values if some axis has no value that goes with both
    count = -1
    while count != compatible.sum():
        count = int(compatible.sum())
        for axis in slices:
            of_axis = compatible[:, axis].astype(np.intp)
            compatible &= of_axis @ of_axis.T > 0
    return compatible


def _completions(
    fixed: Ints,
    slices: Sequence[slice],
    compatible: Bools,
    chances: NDArray[np.float64],
    random: np.random.PCG64,
) -> Ints:
    """Return rows that contain the values ``fixed``, (rows, axes); empty if there is none."""
    allowed = np.logical_and.reduce(compatible[fixed])
    rows = np.zeros((_COMPLETIONS, len(slices)), dtype=np.intp)
    if not all(allowed[axis].any() for axis in slices):
        return rows[:0]
    masks = np.tile(allowed, (_COMPLETIONS, 1))
    for index in _permutation(random, len(slices)):
        axis = slices[index]
        weights = masks[:, axis] * chances[axis]
        drawn = _uniform(random, *weights.shape) * weights
        rows[:, index] = axis.start + drawn.argmax(1)
        masks &= compatible[rows[:, index]]
    whole = masks[np.arange(_COMPLETIONS)[:, None], rows].all(1)
    if whole.any():
        return rows[whole]
    found = next(_search((), allowed, slices, compatible), None)
    return rows[:0] if found is None else np.array([found])


def _search(
    row: tuple[int, ...], allowed: Bools, slices: Sequence[slice], compatible: Bools
) -> Iterator[tuple[int, ...]]:
    """Yield every completion of a row, found by trying all values."""
    if len(row) == len(slices):
        yield row
        return
    axis = slices[len(row)]
    for value in range(axis.start, axis.stop):
        if allowed[value]:
            yield from _search((*row, value), allowed & compatible[value], slices, compatible)
