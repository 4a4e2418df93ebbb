"""Why do cases fail? The known mistakes that give the same outputs, and where they show.

A mutant matches if, on every input where the target is clearly wrong, the distance between the two
is small compared to the error of the target. All outputs are compared together first, and one by
one if no mutant matches them together. Narrow rounding differs from function to function, so that
no mutant matches: such a mistake is recognised by an error bound of its own or a known result. The
sentence that names a mistake is the first line of the mutant's docstring in harness/mutants. Each
dtype is explained by itself, since a function may have another mistake in each.

A mistake shows where all failed cases meet conditions that no other case meets. The search starts
from one simple failed case and changes one axis at a time. Where some values of an axis give a
right result, a condition on that axis tells them from those that fail. The conditions together are
stated only if all failed cases meet them, and every right case that meets them fails too once it
has data that show the mistake.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from harness.cases import AXES, Condition, Relation
from harness.cases.axes import FORWARD_CALLS, array_axes, changed, is_possible, value_of
from harness.cases.inputs import LAYOUTS, make_inputs
from harness.mutants import WRONG, Mutant
from harness.numerics.bounds import ErrorBound, error_bound_of
from harness.numerics.error_measurement import bound_ratios, status_of
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.records import Affine, Case, Direction, Status
from harness.records.finding import Finding, Severity
from harness.run.attempt import Judged, attempt, exact_of
from harness.run.integrity import process_state_restored
from harness.verify.cases import first_case
from harness.verify.scope import fitted
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.native import native

__all__ = ["causes_of", "conditions_of_failures", "fact_of", "mistakes_of", "narrow_sums"]

_MATCH_RATIO = 0.2
"""Of the target's own error; the right mutant leaves less than 0.03 of it, any other over 0.5."""
_CLEAR_RATIO = 10  # times the bound; closer to it, most of the error is rounding
_MOST_COMPARED = 4  # cases of different kinds; trade-off: each is run on every mutant
_MOST_MISTAKES = 3  # what a person reads
_MOST_ELEMENTS = 1 << 15  # of one case, which is run on every mutant
_MOST_JUDGED = 40  # failures, those with the largest errors first
_ROWS = 4100  # more ones than bfloat16 (256) and float16 (2048) can count

Mistake = tuple[str, tuple[str, ...]]
"""What a target does, as the end of a sentence that begins with "it"; the outputs that show it."""


def causes_of(
    target: Implementation, failures: Sequence[Judged], trials: Sequence[Judged], further: Further
) -> Iterator[Finding]:
    """Yield known mistakes that explain the failures, best first, and where those are.

    Args:
        target: what failed.
        failures: its failed cases.
        trials: all of its cases.
        further: tries further cases.
    """
    by_dtype = {
        dtype: [trial for trial in failures if trial.case.dtype == dtype]
        for dtype in dict.fromkeys(trial.case.dtype for trial in failures)
    }
    for dtype, failed in by_dtype.items():
        for text, outputs in mistakes_of(target, failed):
            shown = "" if len(outputs) > 1 else f", as {outputs[0]} shows"
            yield Finding("mistake", Severity.CAUSE, f"{text}{shown}", (dtype,), outputs)
    for dtype, failed in by_dtype.items():
        if any(trial.status is Status.CRASHED for trial in failed):
            continue  # a further case may crash, too
        tried = [trial for trial in trials if trial.case.dtype == dtype]
        for outputs, conditions in conditions_of_failures(tried, further):
            what = "wrong" if "y" in outputs else f"{', '.join(outputs)} wrong"
            where = f"where {' and '.join(part.text for part in conditions)}"
            text = f"{what} {where if conditions else 'at every size, in every layout and mode'}"
            yield Finding("trigger", Severity.CAUSE, text, (dtype,), conditions)


def mistakes_of(target: Implementation, failures: Sequence[Judged]) -> list[Mistake]:
    """Return the known mistakes that explain failures in one dtype, best first."""
    # a function that normalises the last axis alone has another mistake where there are more
    on_one_axis = [trial for trial in failures if trial.case.normalized_dims == 1]
    for kept in (failures, on_one_axis or failures):
        if found := list(_matching(_clear_failures(target, kept), OUTPUTS)):
            return found
    if (text := _explained_by_bound(target, failures)) is not None:
        return [(text, OUTPUTS)]
    found = [*narrow_sums(target, failures)]
    explained = {name for _, outputs in found for name in outputs}
    for name in OUTPUTS:
        if name not in explained:
            found += [*_matching(_clear_failures(target, failures, name), (name,))][:1]
    return found


# --- mutants -------------------------------------------------------------------------------------


def _clear_failures(
    target: Implementation, failures: Iterable[Judged], name: str | None = None
) -> dict[Case, Outputs]:
    """Return small, clear failures of different kinds, each with the outputs of the target.

    Rows of one element come last, and before them rows that are not normal: where the variance is
    0 or overflows, right and wrong code differ by NaN and by the order of operations.

    Args:
        target: what failed.
        failures: its failed cases.
        name: of the output that is clearly wrong; None for any.
    """

    def rank(trial: Judged) -> tuple[bool, bool, int]:
        case = trial.case
        return case.hidden == 1, case.distribution != "normal", case.rows * case.hidden

    clear: dict[tuple[object, ...], Case] = {}
    for trial in sorted(failures, key=rank):
        case, wrong = trial.case, trial.outputs_beyond(_CLEAR_RATIO)
        if (name in wrong if name else wrong) and 16 <= case.rows * case.hidden <= _MOST_ELEMENTS:
            values = (case.distribution, case.affine, case.grad_output, case.parameters)
            clear.setdefault((*values, case.normalized_dims, case.eps), case)
    found = ((case, _outputs_of(target, case)) for case in [*clear.values()][:_MOST_COMPARED])
    return {case: outputs for case, outputs in found if outputs is not None}


def _outputs_of(target: Implementation, case: Case) -> Outputs | None:
    """Return the outputs for ``case``; None if the target raises or violates its contract."""
    return attempt(target, case, is_judged=False).outputs


def _matching(computed: Mapping[Case, Outputs], names: tuple[str, ...]) -> Iterator[Mistake]:
    """Yield the mutants that match the named outputs in every case, best first."""
    left = {mutant.mistake: _most_unexplained(mutant, computed, names) for mutant in WRONG}
    matching = [mistake for mistake, ratio in left.items() if ratio < _MATCH_RATIO]
    for mistake in sorted(matching, key=left.__getitem__)[:_MOST_MISTAKES]:
        yield mistake, names


def _most_unexplained(
    mutant: Mutant, computed: Mapping[Case, Outputs], names: tuple[str, ...]
) -> float:
    """Return the largest distance over the cases, up to the first one without a match."""
    wrong = replace(native, name=mutant.name, function=mutant.fresh(), declared=False)
    found: list[float] = []
    for case, outputs in computed.items():
        if case.dtype in mutant.dtypes:
            with process_state_restored():  # some mutants change it
                if mutant.keeps_state:  # it must start from the target's state
                    _outputs_of(wrong, first_case(mutant.name, case.dtype, case.device))
                suspected = _outputs_of(wrong, case)
            distance = _unexplained(outputs, suspected, case, names)
            found += [] if distance is None else [distance]
            if found and not max(found) < _MATCH_RATIO:
                break
    return max(found, default=float("inf"))


def _unexplained(
    target: Outputs, suspected: Outputs | None, case: Case, names: tuple[str, ...]
) -> float | None:
    """Return the distance of two results over the target's error; None without an error.

    Args:
        target: outputs of the target for ``case``.
        suspected: outputs that it would have with the suspected mistake.
        case: what was computed.
        names: of the outputs that are compared.
    """
    if suspected is None:
        return float("inf")
    distance = error = 0.0
    for name, exact in _exact(case).items():
        own, guess = getattr(target, name), getattr(suspected, name)
        if name not in names or own is None or guess is None:
            continue
        # right outputs and mistakes round too: only the distance to the rounded result is an error
        exact = exact.to(own.dtype)
        # on the CPU, where the exact result is
        own, guess, exact = (tensor.cpu().double().flatten() for tensor in (own, guess, exact))
        finite = torch.isfinite(own) & torch.isfinite(guess) & torch.isfinite(exact)
        if not bool((torch.isfinite(own) == torch.isfinite(guess)).all()):
            return float("inf")
        # relative to each output's size: gradients of parameters are sums over many rows
        size = float(exact[finite].norm()) or 1.0
        distance += (float((own - guess)[finite].norm()) / size) ** 2
        error += (float((own - exact)[finite].norm()) / size) ** 2
    return (distance / error) ** 0.5 if error else None


def _exact(case: Case) -> dict[str, Tensor]:
    """Return the exact outputs of a case, rounded to float64."""
    blocks = list(exact_of(case)[1])
    found = {"y": torch.cat([block.y[0] for block in blocks])}
    if blocks[0].dx is not None:
        found["dx"] = torch.cat([block.dx[0] for block in blocks if block.dx is not None])
        for name in ("dweight", "dbias"):
            found[name] = torch.stack([getattr(block, name)[0] for block in blocks]).sum(0)
    return found


# --- mistakes that round -------------------------------------------------------------------------


_BOUNDS: tuple[tuple[str, Callable[[ErrorBound], ErrorBound]], ...] = (
    (
        "computes float64 in float32",
        lambda bound: replace(bound, accumulate_dtype=torch.float32),
    ),
    (
        "computes the variance as E[x^2] - E[x]^2, which cancels where the mean is large beside "
        "the deviations",
        lambda bound: replace(bound, algorithm=Algorithm.ONE_PASS, reduction=Reduction.SEQUENTIAL),
    ),
)
"""Mistakes, and the error bound of a function that makes them; the strictest bound first."""


def _explained_by_bound(target: Implementation, failures: Sequence[Judged]) -> str | None:
    """Return the mistake whose bound every failed case keeps; in one of them it must be finite.

    One case must be clearly beyond the bound of the target.
    """
    is_clear = any(trial.outputs_beyond(_CLEAR_RATIO) for trial in failures if trial.ratios)
    if not is_clear or not all(trial.ratios for trial in failures):
        return None
    small = [trial for trial in failures if trial.case.rows * trial.case.hidden <= _MOST_ELEMENTS]
    worst = sorted(small, key=_largest_error, reverse=True)[:_MOST_JUDGED]
    for text, loosened in _BOUNDS:
        found = set()
        for trial in worst:
            case, outputs = trial.case, _outputs_of(target, trial.case)
            bound = error_bound_of(target, case)
            if outputs is None or loosened(bound) == bound:
                break
            inputs, reference = exact_of(case)
            ratios = bound_ratios(outputs, inputs, case, loosened(bound), reference)
            found.add(status_of(ratios))
            if Status.WRONG in found:
                break
        else:
            if Status.OK in found:
                return text
    return None


def _largest_error(trial: Judged) -> float:
    return max(output.bound_ratio or 0.0 for output in trial.ratios)


def narrow_sums(target: Implementation, failures: Sequence[Judged]) -> Iterator[Mistake]:
    """Count to 4100 in dbias: a narrow sum stops where adding 1 no longer changes it."""
    if not any(trial.outputs_beyond() & {"dweight", "dbias"} for trial in failures):
        return
    first = first_case(target.name, failures[0].case.dtype, failures[0].case.device)
    backward = Direction.BACKWARD
    counting = fitted(target, first, shape=(_ROWS, 24), direction=backward, grad_output="ones")
    outputs = _outputs_of(target, counting)
    if outputs is not None and outputs.dbias is not None:
        counted = float(outputs.dbias.double().max())
        if counted < 0.9 * _ROWS:
            text = f"over the rows in {first.dtype} itself: {_ROWS} ones came to {counted:g}"
            yield f"adds up dweight and dbias {text}", ("dweight", "dbias")


# --- where they show ----------------------------------------------------------------------------


Conjunction = tuple[Condition, ...]
Further = Callable[[Case], Judged | None]
"""Tries a further case; None where that is outside the scope of the target, or too slow."""

_SIMPLEST = {
    axis.name: axis.values[0] if axis.simple is None else axis.simple
    for axis in array_axes().values()
}
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
_DIVISORS = (2, 4, 8, 16, 32, 64, 128)  # vectors, warps and blocks
# differences from a size; sizes so near to each other tell a divisor from a threshold
_STEPS = (-1, 1, 2, 3, 4, 8, 16, 32, 64, 128)
_MOST_NAMES = 3  # that a person reads as one condition
# If at least this share of the values of an axis of the data hides the mistake, there is a
# condition on the data: on a fact of x, or one that names values. A smaller share are exceptions.
_MANY_BY_FACT, _MANY_BY_NAME = 1 / 4, 1 / 2
_MARGIN_RATIO = 3.0  # a case within this factor of its bound may be wrong or right by its rounding
_PLAIN_RATIO = 100.0  # with a smaller one, the same data in another case may hide the mistake
_MOST_TRIED_AGAIN = 16  # right cases that are tried with other data
_MOST_CASES = 300  # further ones; a search without surprises takes about 120
_MOST_FURTHER = 1 << 20  # of one further case
_MOST_DRAWN = 1 << 16  # of an x that is drawn again; facts of a larger one come from fewer rows


def conditions_of_failures(
    trials: Sequence[Judged], further: Further
) -> Iterator[tuple[tuple[str, ...], Conjunction]]:
    """Yield outputs, and the conditions under which they are wrong; nothing if there are none.

    If the failures have nothing in common, each output is asked for by itself.

    Args:
        trials: of one target in one dtype.
        further: tries further cases.
    """
    ratios = [_ratios(trial) for trial in trials]
    wrong = [name for name in OUTPUTS if any(not own.get(name, 0.0) <= 1 for own in ratios)]
    together = _Search(trials, further, wrong).conditions()
    if together is not None:
        yield tuple(wrong), together
        return
    apart: dict[Conjunction, list[str]] = {}
    for name in wrong if len(wrong) > 1 else ():
        found = _Search(trials, further, [name]).conditions()
        if found is not None:
            apart.setdefault(found, []).append(name)
    for conditions, outputs in apart.items():
        yield tuple(outputs), conditions


def _ratios(trial: Judged) -> dict[str, float]:
    """Return each output's error over its bound; of a wrong shape or dtype, y is infinitely off."""
    if trial.status not in {Status.OK, Status.WRONG}:
        return {}
    if trial.status is Status.WRONG and not trial.ratios:
        return {"y": inf}
    known = ((row.output, row.bound_ratio) for row in trial.ratios)
    return {name: inf if isnan(own) else own for name, own in known if own is not None}


class _Search:
    """Cases of one target in one dtype, and the means to try more of them."""

    def __init__(self, trials: Sequence[Judged], further: Further, outputs: Sequence[str]) -> None:
        self._further, self._outputs = further, outputs
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
        return [
            case
            for case, ratio in self.ratios.items()
            if ratio is not None and (ratio > 1) is failing
        ]

    def conditions(self) -> Conjunction | None:
        """Return the conditions; None if there are none, or if they are not confirmed."""
        simple = self._simple_failure()
        if simple is None:
            return None
        found: dict[tuple[str, Relation], Condition] = {}
        for axis in _ORDER:
            cases = self._along(axis, simple)
            outcomes = {case: self.fails(case) for case in cases}
            if cases and all(outcome is None for outcome in outcomes.values()):
                return None  # it may be decisive
            met = [case for case in cases if _meets(case, tuple(found.values()))]
            right = [case for case in met if outcomes[case] is False]
            parts = self._conditions_separating(axis, right)
            if axis in _SIZES and parts:
                self._bisect(axis, parts, simple, right)
                parts = self._conditions_separating(axis, right)
            if axis in _DATA:
                by_fact = bool(parts) and all(part.axis != axis for part in parts or ())
                is_many = len(right) >= (_MANY_BY_FACT if by_fact else _MANY_BY_NAME) * len(cases)
                parts = parts if is_many else ()
            if parts is None:
                return None
            found |= {(part.axis, part.relation): part for part in parts}
        conditions = tuple(found.values())
        return conditions if self._is_confirmed(conditions, simple) else None

    def _simple_failure(self) -> Case | None:
        """Return a failed case that has the simplest value on each axis that still fails."""
        failing = sorted(self._known(failing=True), key=lambda case: case.rows * case.hidden)
        plain = (case for case in failing if (self.ratios[case] or 0) >= _PLAIN_RATIO)
        case = next(plain, None) or next(iter(failing), None)
        if case is None:
            return None
        for axis in _ORDER:
            is_data = axis == "distribution"
            values, least_ratio = (_OFFSETS, _PLAIN_RATIO) if is_data else ([_SIMPLEST[axis]], 1.0)
            cases = [changed(case, axis, value) for value in values]
            failed = (simpler for simpler in cases if simpler is not None and self.fails(simpler))
            case = next((one for one in failed if (self.ratios[one] or 0) >= least_ratio), case)
        return case

    def _along(self, axis: str, simple: Case) -> list[Case]:
        """Return the cases that differ from a failed one on one axis, at the values tried there."""
        values = {value_of(case, axis): None for case in self.ratios}
        if axis == "distribution":
            values |= dict.fromkeys(_OFFSETS)
        if axis in _SIZES:
            own = value_of(simple, axis)
            near = (*(own + step for step in _STEPS), own // 2, 2 * own, 3 * own)
            powers = (1 << own.bit_length(), 1 << max(own.bit_length() - 1, 0))
            values |= dict.fromkeys(size for size in (*near, *powers) if size > 0)
        cases = dict.fromkeys(changed(simple, axis, value) for value in values)
        del cases[simple]
        sizes = simple.rows, simple.hidden
        return [
            case
            for case in cases
            if case is not None
            and case.hidden > 1  # rows of one element are constant, and hide most mistakes
            and (axis in _SIZES or (case.rows, case.hidden) == sizes)
        ]

    def _conditions_separating(self, axis: str, right: Sequence[Case]) -> Conjunction | None:
        """Return the fewest conditions on an axis that all failed cases meet, and none of these."""
        if not right:
            return ()
        failing = self._known(failing=True)
        names = [axis, *(fact.name for fact in AXES.values() if axis in fact.follows_from)]
        parts = [
            part
            for name in names
            if name != "elements"  # one of the two sizes says more
            for part in _met_by_all(name, {fact_of(case, name) for case in failing}, right)
        ]
        for size in (1, 2):
            chosen = [
                some
                for some in combinations(parts, size)
                if not any(_meets(case, some) for case in right)
            ]
            if chosen:
                return min(chosen, key=lambda some: sum(map(_cost, some)))
        return None

    def _bisect(self, axis: str, parts: Conjunction, simple: Case, right: Sequence[Case]) -> None:
        """Try sizes until the first, or the last, size at which cases fail is known."""
        for part in parts:
            if part.axis != axis or part.relation not in {Relation.AT_LEAST, Relation.AT_MOST}:
                continue
            rising = part.relation is Relation.AT_LEAST
            sizes = [value_of(case, axis) for case in right]
            beyond = [size for size in sizes if not part.holds_for(size)]
            end = max(beyond) if rising else min(beyond)
            between = range(end, part.value + 1) if rising else range(end, part.value - 1, -1)
            cases = [
                case
                for size in between
                if (case := changed(simple, axis, size)) is not None
                and _meets(case, [other for other in parts if other is not part])
            ]
            # a size that shows nothing counts as one that is right
            bisect_left(cases, True, key=lambda case: self.fails(case) is True)

    def _is_confirmed(self, conditions: Conjunction, simple: Case) -> bool:
        """Whether all failed cases meet the conditions, and right ones fail with other data."""
        if not all(_meets(case, conditions) for case in self._known(failing=True)):
            return False
        right = (case for case in self._known(failing=False) if case.hidden > 1)
        met = [case for case in right if _meets(case, conditions)]
        again = {_with_data_of(case, simple): None for case in met}
        inside = [case for case in again if _meets(case, conditions)]
        return all(self.fails(case) is not False for case in inside[:_MOST_TRIED_AGAIN])


def _with_data_of(case: Case, other: Case) -> Case:
    """Return ``case`` with the data of another case, on each axis where that is possible."""
    for axis in _DATA:
        case = changed(case, axis, value_of(other, axis)) or case
    return case


def _meets(case: Case, conditions: Sequence[Condition]) -> bool:
    return all(part.holds_for(fact_of(case, part.axis)) for part in conditions)


def _met_by_all(axis: str, values: set[Any], right: Sequence[Case]) -> Iterator[Condition]:
    """Yield the conditions on an axis, or on a fact, that all these values meet."""
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
        if len(values) <= _MOST_NAMES:
            found.append((Relation.ONE_OF, tuple(sorted(values))))
    for relation, value in found:
        part = Condition(axis=axis, relation=relation, value=value)
        if not all(part.holds_for(other) for other in others):
            yield part


def _cost(condition: Condition) -> int:
    """Return how special a condition is; of those that fit equally well, the least is stated."""
    if condition.relation in {Relation.AT_LEAST, Relation.AT_MOST}:
        return 1
    if condition.relation is Relation.ONE_OF:
        return 6
    if AXES[condition.axis].kind is bool or condition.relation not in {
        Relation.IS,
        Relation.IS_NOT,
    }:
        return 2
    return 4


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
