"""Cases that follow from the code of a target: from its constants, and from its open decisions.

A catalogue of sizes cannot hold the size at which a target branches; its source does. Each change
of a case that the source suggests is tried in rows of the covering array, so that it meets the
values of the other axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product, zip_longest
from math import prod, sqrt
from random import Random
from typing import Any

from harness.cases.axes import AXES, array_axes, changed, is_possible
from harness.cases.inputs import Inputs, UnrepresentableError, make_inputs
from harness.records import Affine, Case, Direction
from harness.records.finding import Finding, RemarkKind, limit, remark
from harness.records.text import grouped, listed
from harness.run import guarded, run_once, threads
from harness.verify.cases import array_within, case_from
from harness.verify.code import TargetCode
from harness.verify.decisions import LEAST_HIDDEN, Change, Decision, Decisions
from harness.verify.every_size import sizes_that_look_wrong
from harness.verify.in_scope import first_case, scope_of
from harness.verify.result import QUICKEST, PlannedCase
from implementations.contract import Implementation

__all__ = ["Effort", "Search", "effort_of"]

_ROUNDS = 4  # a decision behind another one is seen when that one is turned
_MOST_DIRECTED = 100  # calls for one decision
_CONSTANTS_SHARE = 0.7  # of the elements
_OWN_SHARE = 1 / 3  # of these, for all changes alike: a large size leaves some to small ones
_CALLS_SHARE = 3  # decisions, of those that stay open, use up the calls
# axes that turn most conditions without a size
_OFTEN = ("affine", "leading_axes", "normalized_axes", "call", "layout", "parameters")
_USUAL_SIZE = 33
_SHAPES_TO_COMPUTE = ((3, 40), (2, 3, 64), (7, 129))  # what is the same in all does not follow x
# blocks in a loop: the most, numbers of them that need not be in the source, and the least size
_MOST_BLOCKS, _USUAL_BLOCKS, _LEAST_BLOCK = 64, {3, 4, 6, 8}, 16
_LEAST = 5  # smaller sizes are values of the axes
_MOST_PATHS = 4  # in addition to the settings of a contract check
_MOST_SHAPES = 3
_OVERHEAD = 5_000  # elements that are judged in the time that a case takes beside its elements
_PER_CALL = 50_000  # elements that are called, but not judged, in the time of a small call
_CATCHES = "a constant in the target's source"
_CATCHES_SIZES = "a size that only arithmetic tells from others"
_MOST_CONSTANTS = 60  # a table of numbers is no list of sizes
_MOST_NEAR, _LARGEST_NEAR = 12, 20_000  # constants that tell where a mistake shows
_LEADING = {"first_leading", "last_leading"}
_SIZES = {"hidden", "rows", "elements"} | _LEADING
_MOST_AXES = 5  # leading or normalized ones
# constants to exceed at once: the least, their part of the elements, and how many cases in it
_LEAST_OF_TWO, _PART_OF_TWO, _OF_TWO = 32, 2, 8
_VALUES_SHARE = 3  # kernels branch at sizes more often than at values
_ROWS_EACH = 5  # to try for one case; a size is not possible in every row
_USUAL_EPS = {1e-12, 1e-6, 1e-5}  # no limit on values
_USUAL_VALUES = (0.01, 100.0)  # values that other cases have, too
_NARROW, _WIDE = 3, 17  # N where rows are many; some kernels take another path below 16
_BEYOND = 4  # rows after the last that a limit on elements allows; data may hide a mistake in one
_USUAL_ELEMENTS = 30_000  # of x, unless one of its sizes is larger
_MOST_NAMED = 3  # in one sentence
_MOST_ROWS = 200  # to choose from
_LARGEST = 1e38  # of a value; float32 has none above
_RELATIVE_EPS = (0.5, 1.0, 2.0)
# plain rows whose data show a mistake in eps, in the mean or in a term of dx, and for inference
_PLAIN = tuple(
    {name: axis.simple or axis.values[0] for name, axis in array_axes().items()}
    | {"distribution": distribution, "eps": eps, "layout": layout, "call": call, "affine": affine}
    for distribution, eps, layout, call, affine in (
        ("mixed_conditions", 1e-5, "padded_rows", "all_gradients", "both"),
        ("normal", 0.5, "contiguous", "all_gradients", "both"),
        ("tiny_variance", 1e-6, "contiguous", "all_gradients", "both"),
        ("mixed_conditions", 1e-5, "contiguous", "no_grad", "none"),
        ("mixed_conditions", 1e-5, "contiguous", "no_grad", "both"),
    )
)


Row = dict[str, Any]
"""Of the covering array."""
Suggested = Iterator[tuple[PlannedCase, Change]]
"""Cases, each with the change that it is for."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried."""

    rows: int
    """Rows of the array for each change."""
    elements: int
    """In all cases together, each with the time of its own that counts as elements, too."""
    most_elements: int
    """Of one case."""
    checked: int
    """Of one call of a contract check, which makes up to 100."""
    calls: int
    """That only show whether a decision turns."""


# a second or two; 2^20 elements are a usual limit
_QUICK = Effort(rows=6, elements=3_500_000, most_elements=1_200_000, checked=300_000, calls=600)
# fifteen seconds for one dtype
_FULL = Effort(
    rows=40, elements=25_000_000, most_elements=9_000_000, checked=1_200_000, calls=3_000
)


def effort_of(strength: int) -> Effort:
    """Return the effort that goes with a strength of the covering array."""
    return _QUICK if strength <= QUICKEST else _FULL


@dataclass(slots=True)
class Search:
    """The changes that were tried, and which of them turned a decision."""

    implementation: Implementation
    code: TargetCode
    decisions: Decisions
    effort: Effort
    turning: dict[Change, None] = field(default_factory=dict)
    """Changes with a case that turned a decision."""
    too_large: set[int] = field(default_factory=set)
    """Constants that no case could reach."""
    spent: int = 0
    """Elements, of the cases in a dtype."""
    calls: int = 0
    """Made only to see whether a decision turns; a large one counts as several."""
    decided: dict[Case, set[tuple[Decision, bool]]] = field(default_factory=dict)
    """What a call of a case decides."""
    seen: set[Case] = field(default_factory=set)
    called: set[Case] = field(default_factory=set)

    def cases(self, dtype: str, device: str) -> Suggested:
        """Yield cases, and the change that each is for; decisions may turn in between."""
        target = self.implementation
        direction = Direction.FORWARD if target.forward_only else Direction.BACKWARD
        usual = replace(first_case(target.name, dtype, device), direction=direction)
        for case, axis in sizes_that_look_wrong(target, usual):
            self.seen.add(case)
            yield PlannedCase(case, _CATCHES_SIZES), (axis, AXES[axis].get(case))
        for shape in _SHAPES_TO_COMPUTE:
            own = replace(usual, shape=shape)
            self.decisions.compute(own, partial(run_once, target.function, own, make_inputs(own)))
        self.code.integers |= {own for own in self.decisions.computed if own >= _LEAST}
        yield from self._beyond_two(dtype, device)
        yield from self._cases(dtype, device, [*self._of_constants()])

    def _beyond_two(self, dtype: str, device: str) -> Suggested:
        """Yield cases whose rows and N both exceed a constant, with each choice of parameters.

        Each constant is met by the largest that leaves the case small.
        """
        scope = scope_of(self.implementation)
        if scope.normalized_shape is not None:
            return
        sizes = self.sizes_beyond
        last = self.spent + self.effort.elements // _PART_OF_TWO
        most = (last - self.spent) // _OF_TWO
        fitting = [(one, own) for one, own in product(sizes, repeat=2) if one * own <= most]
        pairs = {(one, max(others)) for one, others in grouped(fitting).items()}
        pairs |= {(hidden, rows) for rows, hidden in pairs}
        calls = ("no_grad",) if self.implementation.forward_only else ("all_gradients", "no_grad")
        ordered = sorted(pairs, key=prod)
        for affine, (rows, hidden), call in product(AXES["affine"].values, ordered, calls):
            own = {"rows": rows, "hidden": hidden, "affine": affine, "call": call}
            row = {**_PLAIN[0], **own}
            case = scope.fit(case_from(row, self.implementation.name, dtype, device))
            if case is not None and self.spent < last and self._is_affordable(case):
                yield PlannedCase(case, _CATCHES), ("hidden", hidden)

    def again(self, dtype: str, device: str) -> Suggested:
        """Yield cases in another dtype, for what turned a decision or may turn one now."""
        yield from self._cases(dtype, device, [*self.turning])

    def _cases(self, dtype: str, device: str, changes: list[Change]) -> Suggested:
        self.spent = self.calls = 0
        for number in range(_ROUNDS):
            while turned := self._turned(dtype):
                for case, change in turned:
                    axis, value = change
                    changes = [change, *changes]
                    # at twice the size that turned a decision, several elements are beyond
                    is_size = axis in _SIZES - {"elements"}
                    beyond = changed(case, axis, 2 * value + 1) if is_size else None
                    for own in (case, *self._plain(case, axis), beyond):
                        if own is not None and self._is_affordable(own):
                            yield PlannedCase(own, _CATCHES), change
            yield from self._in_rows(dtype, device, [*dict.fromkeys(changes)], number)
            yield from self._on_paths(dtype)
            changes = []
            if not self.decisions.open:
                return

    def _in_rows(self, dtype: str, device: str, changes: list[Change], number: int) -> Suggested:
        """Yield each change in rows of the array, so that it meets the values of other axes."""
        forward_only = self.implementation.forward_only
        scope = scope_of(self.implementation)
        array = _in_covering_order(array_within(scope, QUICKEST, forward_only=forward_only))
        plain = [{**row, "call": "no_grad"} for row in _PLAIN[:-1]] if forward_only else _PLAIN
        elements = self.effort.elements * _CONSTANTS_SHARE
        reserved = elements * _OWN_SHARE
        left: dict[Change | None, float] = {None: elements - reserved}
        left |= dict.fromkeys(changes, reserved / max(len(changes), 1))
        for at in range(-len(plain), self.effort.rows):
            for index, change in enumerate(changes):
                if at * _VALUES_SHARE >= self.effort.rows and change[0] not in _SIZES:
                    continue
                start = (index + number) * self.effort.rows + at * _ROWS_EACH
                rows = [array[(start + step) % len(array)] for step in range(_ROWS_EACH)]
                rows = rows if at >= 0 else [plain[at]]
                cases = (self._case(row, change, dtype, device, at) for row in rows)
                case = next((own for own in cases if own and own not in self.seen), None)
                if case is None:
                    continue
                cost = _cost(case)
                payer = change if cost <= left[change] else None
                if cost <= left[payer] and self._is_affordable(case, _CONSTANTS_SHARE):
                    left[payer] -= cost
                    yield PlannedCase(case, _CATCHES), change

    def _on_paths(self, dtype: str) -> Suggested:
        """Yield a case of each outcome of a decision with sizes above each constant."""
        outcomes = (own.smallest.values() for own in self.decisions.all.values())
        cases = {case for own in outcomes for case in own if case.dtype == dtype}
        found = []
        for case, axis, size in product(cases, ("rows", "hidden"), self.sizes_beyond):
            own = changed(case, axis, size) if size > AXES[axis].get(case) else None
            if own is not None and self._is_in_reach(own):
                found.append((_cost(own), own.id, own, (axis, size)))
        for *_, own, change in sorted(found):
            if self._is_affordable(own):
                yield PlannedCase(own, _CATCHES), change

    def _is_affordable(self, case: Case, share: float = 1.0) -> bool:
        """Whether a case is new and can be tried; it then counts as tried."""
        is_large = _elements_in_memory(case) > self.effort.most_elements
        if case in self.seen or is_large or not self._has_room(case, share):
            return False
        self.seen.add(case)
        self.spent += _cost(case)
        return True

    def _has_room(self, case: Case, share: float = 1.0) -> bool:
        """Whether its elements are left, of a share of all: constants leave some to decisions."""
        return self.spent + _cost(case) <= self.effort.elements * share

    def _turned(self, dtype: str) -> list[tuple[Case, Change]]:
        """Return cases that turn a decision, each with its last change, found by calls alone.

        They are cases that led to an open decision, with one more change: what the decision is
        behind stays as it was. Changes that follow from its operands come first, for all decisions.
        """
        found = []
        share = self.effort.calls // _CALLS_SHARE
        for changes, most in ((self._directed, _MOST_DIRECTED), (self._around, share)):
            for decision in self.decisions.open:
                last = self.calls + most
                for case, change in changes(decision):
                    is_over = self.calls >= min(last, self.effort.calls)
                    if is_over or not decision.is_open:
                        break
                    if case in self.called or case.dtype != dtype or not self._is_in_reach(case):
                        continue
                    self.called.add(case)
                    self.calls += 1 + case.rows * case.hidden // _PER_CALL
                    with suppress(UnrepresentableError):
                        if self.observe(case, make_inputs(case)):
                            found.append((case, change))
        return found

    def _cases_at(self, decision: Decision) -> list[Case]:
        """Return cases that led to a decision, the first of them with plain data before it."""
        plain = [own for case in decision.reached_by[:1] for own in self._plain(case, "")][:1]
        return [*plain, *decision.reached_by]

    def _directed(self, decision: Decision) -> Iterator[tuple[Case, Change]]:
        """Yield cases with a change that follows from the operands of a decision."""
        for case, (axis, value) in product(self._cases_at(decision), [*decision.turns()]):
            if axis in _SIZES and value > self.effort.most_elements:
                self.too_large.add(value)
            most = self.effort.most_elements if axis in _SIZES else _MOST_AXES
            for own in self._similar(case, axis, value) if value <= most else ():
                if own is not None:
                    yield own, (axis, AXES[axis].get(own) if axis != "elements" else value)

    def _around(self, decision: Decision) -> Iterator[tuple[Case, Change]]:
        """Yield cases that differ in one thing from one that led to a decision."""
        limits = [limit + 1 for _, limit, _ in decision.limits if 0 < limit < _LARGEST_NEAR]
        names = [*dict.fromkeys((*_OFTEN, *array_axes()))]
        values = [(name, value) for name in names for value in AXES[name].values]
        values += [(name, f"offset_{at:g}") for at in (2, 3, *limits) for name in _OFTEN[-2:]]
        for case in self._cases_at(decision):
            sizes = [(axis, AXES[axis].get(case)) for axis in ("hidden", "rows")]
            near = [(axis, own + step) for axis, own in sizes for step in (1, -1, own, 3 * own)]
            for dims in range(1, len(case.shape)):  # of the same x
                own = replace(case, normalized_dims=dims)
                if is_possible(own):
                    yield own, ("normalized_axes", dims)
            for axis, value in (*values, *near, ("rows", case.hidden), ("hidden", case.rows)):
                if (other := changed(case, axis, value)) is not None:
                    yield other, (axis, value)

    def _similar(self, case: Case, axis: str, value: Any) -> Iterator[Case | None]:
        """Yield a case with a change, and where a size is aligned to constants as it was before."""
        if axis == "elements":
            yield changed(case, "rows", -(-value // case.hidden))
            yield changed(case, "hidden", -(-value // case.rows))
            return
        yield changed(case, axis, value)
        if axis not in _SIZES:
            return
        old = AXES[axis].get(case)
        if case.rows == case.hidden:
            both = changed(case, "rows", value)
            yield both and changed(both, "hidden", value)
        steps = [own for own in sorted(self.code.integers) if own >= _LEAST][:_MOST_NEAR]
        if value > old:
            yield changed(case, axis, old << (value // old).bit_length())
            for step in steps:
                yield changed(case, axis, old - (old - value) // step * step)

    def _is_in_reach(self, case: Case) -> bool:
        """Whether a case can be judged: what is decided in any other case was not tried."""
        is_small = case.rows * case.hidden <= self.effort.most_elements
        is_left = is_small and self._has_room(case)
        return is_left and scope_of(self.implementation).fit(case) == case

    def _plain(self, case: Case, axis: str) -> Iterator[Case]:
        """Yield the case with data and a call in which most mistakes show."""
        for row in _PLAIN:
            own = case
            for name in ("distribution", "eps", "call"):
                if name != axis:
                    own = changed(own, name, row[name]) or own
            if scope_of(self.implementation).fit(own) == own:
                yield own

    def observe(self, case: Case, inputs: Inputs, *, is_declined: bool = False) -> bool:
        """Call the target with the code that reports; return whether a decision turned."""
        call = partial(run_once, self.implementation.function, case, inputs, on_copies=True)
        with threads(case.threads):
            return self.decisions.observe(case, call, is_declined=is_declined)

    def observe_declined(self, case: Case) -> None:
        """Call the target as it declines to be called: what only such calls turn needs no case."""
        cases = [replace(case, affine=affine) for affine in Affine]
        cases += [replace(case, shape=shape) for shape in ((0, 5), (3, 0))]
        for own, direction in product(cases, (Direction.FORWARD, Direction.BACKWARD)):
            if self.decisions.open:
                called = replace(own, direction=direction)
                self.observe(called, make_inputs(called), is_declined=True)
        if self.decisions.open:  # an int as normalized_shape may be accepted, too
            inputs = make_inputs(case)
            arguments = (inputs.x, case.hidden, inputs.weight, inputs.bias, case.eps)
            as_int = guarded(self.implementation.function, *arguments)
            self.decisions.observe(case, as_int, is_declined=True)

    def on_other_paths(self, cases: Sequence[Case]) -> list[Case]:
        """Return cases that lead to outcomes of decisions to which ``cases`` do not lead.

        They have the shape, layout and eps of the smallest judged case with the outcome, and all
        else from the first of ``cases``.
        """
        wanted = {
            (decision, outcome): case
            for decision in self.decisions.all.values()
            for outcome, case in decision.smallest.items()
            if prod(case.shape) <= self.effort.checked
        }
        telling = (case for case in cases if case.hidden >= LEAST_HIDDEN)
        decided = {pair for case in telling for pair in self._decided(case)}
        found: list[Case] = []
        for pair, shown in wanted.items():
            if pair in decided or len(found) == _MOST_PATHS:
                continue
            further = replace(
                cases[0],
                shape=shown.shape,
                normalized_dims=shown.normalized_dims,
                layout=shown.layout,
                eps=shown.eps or cases[0].eps,
            )
            if pair in self._decided(further):
                found.append(further)
                decided |= self._decided(further)
        return found

    def _decided(self, case: Case) -> set[tuple[Decision, bool]]:
        """Return what a forward and a backward of a case decide."""
        if case not in self.decided:
            found = self.decided[case] = set()
            for direction in (Direction.FORWARD, Direction.BACKWARD):
                own = scope_of(self.implementation).fit(replace(case, direction=direction))
                if own is not None and self.decisions.all:
                    inputs = make_inputs(own)
                    call = partial(run_once, self.implementation.function, own, inputs)
                    found |= self.decisions.outcomes_in(call)
        return self.decided[case]

    def beyond(self, cases: Sequence[Case], *, with_sizes: bool) -> list[Case]:
        """Return further cases for a check that is run on ``cases``.

        They take other paths through the target's code or, with sizes, may take one there.
        """
        fit = scope_of(self.implementation).fit
        # an N above a constant
        above = [(2, size) for size in self.sizes[1::2] if 2 * size <= self.effort.checked]
        shapes = [*dict.fromkeys((*self.shapes, *above))]
        usual = replace(cases[0], normalized_dims=1, layout="contiguous")
        fitted = (fit(replace(usual, shape=shape)) for shape in shapes[:_MOST_SHAPES])
        sized = [*filter(None, fitted)] if with_sizes else []
        return [*sized, *self.on_other_paths([*cases, *sized])]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The smallest shapes of x that may turn a decision now, or turned one."""
        found: list[tuple[int, ...]] = []
        open_now = [change for decision in self.decisions.open for change in decision.turns()]
        for changes in (open_now, self.turning):
            sizes = {(axis, int(value)) for axis, value in changes if axis in _SIZES and value > 0}
            shapes = (_shape_of(axis, size) for axis, size in sizes)
            found += sorted((own for own in shapes if prod(own) <= self.effort.checked), key=prod)
        return [*dict.fromkeys(found)][:_MOST_SHAPES]

    @property
    def sizes(self) -> list[int]:
        """The sizes on both sides of the smallest constants in the source."""
        found = sorted(own for own in self.code.integers if _LEAST <= own <= _LARGEST_NEAR)
        return [own + step for own in found[:_MOST_NEAR] for step in (0, 1)]

    @property
    def sizes_beyond(self) -> list[int]:
        """The sizes that exceed a constant in the source, of those that may exceed two at once."""
        return [own + 1 for own in self.code.integers if _LEAST_OF_TWO <= own < _LARGEST_NEAR]

    def findings(self) -> Iterator[Finding]:
        """Yield what of the target's code was not tried."""
        named = [*dict.fromkeys(own.named for own in self.decisions.open)]
        named.sort(key=lambda text: "dtype" in text)  # the user may have asked for one dtype alone
        if named:
            more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            conditions = "a condition" if len(named) == 1 else "conditions"
            shown = "; ".join(named[:_MOST_NAMED])
            text = f"has {conditions} that no case gave both outcomes: {shown}{more}"
            yield replace(remark(RemarkKind.NEVER_TRIED, text), evidence=tuple(named))
        if self.too_large:
            large = sorted(size for size in self.too_large if size > 0)
            sizes = listed([f"{size:,}" for size in large[:_MOST_NAMED]])
            yield limit("left_out", f"sizes in its source: {sizes}", "too many elements", 0)
        if self.code.unread:
            names = listed(sorted(self.code.unread))
            yield limit("left_out", names, "compiled code, which was not read", 0)

    def _of_constants(self) -> Iterator[Change]:
        """Yield what the constants suggest, the most likely first."""
        integers = sorted(own for own in self.code.integers if own >= _LEAST)[:_MOST_CONSTANTS]
        yield from filter(None, chain.from_iterable(zip_longest(*map(_of_integer, integers))))
        # a loop over so many blocks of a size, which is nowhere multiplied
        counts = {own for own in self.code.integers if 1 < own <= _MOST_BLOCKS} | _USUAL_BLOCKS
        sizes = {count * size for count, size in product(counts, integers) if size >= _LEAST_BLOCK}
        for size in sorted(sizes - {*integers})[:_MOST_CONSTANTS]:
            yield from (("hidden", size + 1), ("rows", size + 1), ("hidden", size))
        for number in sorted(self.code.floats)[:_MOST_CONSTANTS]:
            yield from _of_float(number)

    def _case(self, row: Row, change: Change, dtype: str, device: str, at: int) -> Case | None:
        """Return a row of the array with a change, within the scope of the target.

        Args:
            row: of the array.
            change: of the row.
            dtype: of x.
            device: its kind.
            at: number of the row; in every second one, one axis alone is normalised, so that its
                size is N.
        """
        axis, value = change
        scope = scope_of(self.implementation)
        if axis == "hidden" and scope.normalized_shape is not None:
            return None
        if axis in _SIZES and not 0 < value <= self.effort.most_elements:
            self.too_large.add(int(value))
            return None
        row = {**row, **_values(row, axis, value, at)}
        if at % 2 and axis in {"hidden", "elements"}:
            row["normalized_axes"] = 1
        case = scope.fit(case_from(row, self.implementation.name, dtype, device))
        if case is None or not is_possible(case) or (axis == "eps" and case.eps != value):
            return None
        if case.rows * case.hidden > self.effort.most_elements:
            if axis in _SIZES:
                self.too_large.add(int(value))
            return None
        return case


def _cost(case: Case) -> int:
    """Return the elements that a case counts as."""
    return case.rows * case.hidden + _OVERHEAD


def _elements_in_memory(case: Case) -> int:
    """Return the elements from the first of x's storage to its last, gaps included."""
    family, _, number = case.layout.rpartition("_")
    elements = case.rows * case.hidden
    if family == "offset":
        elements += int(number)
    return max(elements, case.rows * int(number)) if family == "pitch" else elements


def _shape_of(axis: str, size: int) -> tuple[int, ...]:
    """Return a shape of x with a number of rows or elements, or with an N."""
    many = {
        "rows": (size, 8), "elements": (-(-size // 128), 128),
        "first_leading": (size, 2, 8), "last_leading": (2, size, 8),
    }  # fmt: skip
    return many.get(axis, (2, size))


def _values(row: Row, axis: str, value: Any, at: int) -> Row:
    """Return the values of a row that make a change; where one size is large, others are small.

    ``at`` is the number of the row: what it leaves open varies with it.
    """
    if axis == "elements":
        hidden = max(own for own in (64, 1024, row["hidden"]) if own <= max(value, 64))
        rows, leading_axes = -(-value // hidden) + _BEYOND, 1 + at % 2
        return {"hidden": hidden, "rows": rows + rows % leading_axes, "leading_axes": leading_axes}
    if axis == "hidden":
        return {axis: value, "rows": min(row["rows"], max(_USUAL_ELEMENTS // max(value, 1), 2))}
    if axis in _SIZES:
        narrow = _NARROW if at % 3 else _WIDE
        hidden = min(row["hidden"], max(_USUAL_ELEMENTS // max(value, 1), narrow))
        # an x of no leading axis is one row, and a leading axis that is changed is one of several
        leading_axes = max(row["leading_axes"], 1) if axis == "rows" else 2 + at % 2
        return {"rows": 6, "hidden": hidden, "leading_axes": leading_axes, axis: value}
    return {axis: value}


def _of_integer(own: int) -> Iterator[Change]:
    """Yield sizes near a constant and far above it, and other values, the most likely first."""
    for axis in ("hidden", "rows", "elements"):
        yield axis, own + 1
    for size, axis in product((own, own - 1), ("hidden", "rows")):
        yield axis, size
    for axis in sorted(_LEADING):
        yield axis, own + 1
    yield "hidden", own + _USUAL_SIZE  # of the same remainder as a size that other cases have
    yield "layout", f"offset_{own + 1}"
    yield "layout", f"pitch_{own + 1}"
    for axis in ("hidden", "rows", *sorted(_LEADING)):
        yield axis, 2 * own + 1
    if own > _USUAL_VALUES[1]:  # it may be a limit on values
        for axis in ("grad_output", "distribution", "parameters"):
            yield axis, f"largest_{2 * own}"


def _of_float(number: float) -> Iterator[Any]:
    """Yield values of eps, x, weight and dy on both sides of a constant."""
    if not 1e-30 < number < _LARGEST:
        return
    if number < 1:
        yield from (("eps", number * factor) for factor in _RELATIVE_EPS)
        yield "parameters", f"initial_within_{number / 2:g}"
    low, high = _USUAL_VALUES
    if number in _USUAL_EPS or low <= number <= high:
        return
    scales = {number / 2, number * 2}
    if number < 1:
        scales |= {sqrt(number), 10 * sqrt(number)}  # of a variance
    for scale in sorted(scales):
        for axis in ("distribution", "parameters", "grad_output"):
            yield axis, f"largest_{scale:g}"


def _in_covering_order(array: list[Row]) -> list[Row]:
    """Return rows of an array in an order in which the values of all axes occur soon, and again."""
    left = Random(0).sample(array, min(len(array), _MOST_ROWS))
    seen: set[tuple[str, Any]] = set()
    order: list[Row] = []
    while left:
        best = max(left, key=lambda row: len({*row.items()} - seen))
        if {*best.items()} <= seen:
            seen.clear()
        seen.update(best.items())
        order.append(best)
        left.remove(best)
    return order
