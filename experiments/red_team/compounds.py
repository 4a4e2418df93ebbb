"""The red team: which compound mutants would the cases of the verification find?

A compound mutant fails a case exactly if its trigger holds there and its mistake, made without a
trigger, fails the case. So triggers are evaluated once on the tensors of each case, each mistake is
tried at most once on each case, and thousands of compounds are judged by the two together.

A compound that the first cases do not find may be invisible: its mistake has no effect where its
trigger holds, or nothing satisfies the trigger. It counts only if some valid case drawn at random
shows it, and is missed if no case of the verification does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import islice
from math import prod
from random import Random

from torch import Tensor

from harness.cases import AXES
from harness.cases.inputs import (
    DISTRIBUTIONS,
    GRAD_OUTPUTS,
    LAYOUTS,
    PARAMETERS,
    UnrepresentableError,
)
from harness.mutants import (
    CONDITIONS,
    WRONG,
    CallCondition,
    CallFacts,
    LayerNormCall,
    Mutant,
    conditional,
    function_of,
    layer_norm_of,
    then,
)
from harness.mutants.mutant import mutant_of
from harness.records import Affine, Case, Status
from harness.run.attempt import attempt
from harness.verify.cases import planned_cases
from implementations import adopt
from implementations.contract import Implementation

_MOST_ELEMENTS = 1 << 18  # of x; the largest cases take longer than all others together
_RANDOM_CASES = 3000  # ten times the number below: a trigger may hold in few of them
_ENOUGH = 300  # random cases on which the trigger holds and nothing shows: it cannot be seen
_FIRST = 40  # cases of the verification to try before random ones; most compounds fail one of them
_SMALL = 256  # elements; in smaller cases fewer mistakes show


class Fate(StrEnum):
    """What became of a compound mutant."""

    FOUND = "found"
    MISSED = "missed"
    """No case of the verification fails, but some other valid case does."""
    INVISIBLE = "invisible"
    """Neither the first cases of the verification fail, nor any of those drawn at random."""


ORDERS = (1, 2, 3)
"""Numbers of conditions in a trigger."""
# another order draws other mutants
_BASES = """
unbiased_variance eps_outside_the_root eps_ignored eps_always_1e_6 eps_squared eps_is_a_floor
no_root sum_of_squares absolute_deviation root_mean_square uncentred_denominator
constant_rows_are_zero bias_before_weight weight_ignored bias_ignored weight_and_bias_swapped
first_weight_for_all one_plus_weight weight_twice statistics_of_all_rows statistics_over_the_batch
statistics_in_bfloat16 mean_in_float16 newton_step_missing one_pass_in_disguise one_pass_clamped
normalised_in_bfloat16 parameters_in_bfloat16 truncated_to_bfloat16
lane_lost weight_off_by_one row_off_by_one pairs_share_statistics
nan_spreads nan_hidden nan_skipped dy_nan_hidden
dx_without_mean_of_dy dx_without_projection dx_with_unbiased_projection dx_without_weight
dx_without_eps dx_of_rstd_in_bfloat16
statistics_kept_in_bfloat16 dweight_of_deviations dweight_averaged dbias_averaged
dweight_summed_in_bfloat16 last_row_left_out dbias_zero dbias_of_scaled_dy
last_element_left_out one_pass_in_the_backward dweight_of_products_in_bfloat16
"""
_KNOWN = (
    *WRONG,
    mutant_of(conditional.last_element_left_out),
    mutant_of(conditional.one_pass_in_the_backward),
)
BASES: tuple[Mutant, ...] = tuple(
    next(known for known in _KNOWN if known.name == name) for name in _BASES.split()
)
"""Mistakes that are made on every path, although not all data show them."""


def draw_compounds(count: int, seed: int = 0) -> tuple[Mutant, ...]:
    """Draw ``count`` mistakes behind triggers of each order, none twice.

    Mistakes, the axes of conditions and conditions on one axis are all equally likely.
    """
    random = Random(seed)
    by_axis: dict[str, list[CallCondition]] = {}
    for condition in CONDITIONS:
        by_axis.setdefault(condition.about, []).append(condition)
    drawn: dict[tuple[str, frozenset[str]], Mutant] = {}
    for order in ORDERS:
        wanted = len(drawn) + count
        while len(drawn) < wanted:
            axes = random.sample(sorted(by_axis), order)
            trigger = tuple(random.choice(by_axis[axis]) for axis in axes)
            compound = replace(random.choice(BASES), where=trigger)
            key = compound.name, frozenset(part.text for part in trigger)
            drawn.setdefault(key, compound)
    return tuple(drawn.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompoundResult:
    """What became of one compound mutant."""

    base: str
    """Name of the mistake."""
    trigger: tuple[str, ...]
    """The conditions under which it is made, in words."""
    fate: Fate
    shown_by: str
    """The first case that fails, of the verification or at random; empty if none does."""

    @property
    def text(self) -> str:
        """Such as "weight_ignored where N > 1024 and x is not contiguous"."""
        return f"{self.base} where {' and '.join(self.trigger)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedTeam:
    """What became of compound mutants: mistakes made only where a random trigger holds."""

    compounds: tuple[CompoundResult, ...]
    false_alarms: tuple[str, ...]
    """Cases that a right LayerNorm fails, of those with which a mutant was found."""


class Board:
    """Cases, the conditions that hold in each, and how mistakes fail them; computed as needed."""

    def __init__(self, cases: Sequence[Case]) -> None:
        # a wrong result for a negated x is a remark, unless x without the negative bit fails too
        self.cases = [case for case in cases if case.layout != "negated"]
        self.false_alarms: dict[Case, str] = {}
        """What a right LayerNorm fails, as far as that was asked."""

    def where(self, trigger: Sequence[CallCondition]) -> Iterator[Case]:
        """Yield the cases in which a trigger holds."""
        for case in self.cases:
            if conditions_in(case).issuperset(trigger) and case not in self.false_alarms:
                yield case

    def found_by(self, compound: Mutant, at_most: int | None = None) -> Case | None:
        """Return the case with which ``compound`` certainly fails; None if there is none.

        Args:
            compound: the mutant.
            at_most: the cases to try, of those in which the trigger holds; None for all.
        """
        for case in islice(self.where(compound.where), at_most):
            if _fails(compound, case) and not self._is_false_alarm(case):
                return case
        return None

    def fails(self, compound: Mutant, case: Case) -> bool:
        """Whether ``compound`` fails a case, by the bounds that a target must keep at first."""
        holds = conditions_in(case).issuperset(compound.where)
        return holds and _fails(compound, case)

    def _is_false_alarm(self, case: Case) -> bool:
        trial = attempt(_right(), case)
        if trial.status is Status.WRONG:
            self.false_alarms[case] = f"{trial.case.id}: {trial.reason}"
        return trial.status is Status.WRONG


def run_red_team(
    count: int,
    strength: int,
    dtype: str = "float32",
    seed: int = 0,
    on_compound: Callable[[int], None] = lambda number: None,
) -> RedTeam:
    """Draw compound mutants, and return what becomes of each.

    Args:
        count: of the compounds with each number of conditions.
        strength: of the verification.
        dtype: of x, by name.
        seed: of the compounds.
        on_compound: called with the number of each compound, from 1, before it is judged.
    """
    planned = planned_cases(_right(), strength, (dtype,), "cpu")
    cases = [item.case for item in planned if prod(item.case.shape) <= _MOST_ELEMENTS]
    # cheap and revealing ones first
    cases.sort(key=lambda case: (prod(case.shape) < _SMALL, prod(case.shape)))
    compounds = draw_compounds(count, seed)
    return judge_compounds(
        compounds, Board(cases), Board(draw_cases(_RANDOM_CASES, dtype)), on_compound
    )


def judge_compounds(
    compounds: Sequence[Mutant],
    array: Board,
    elsewhere: Board,
    on_compound: Callable[[int], None] = lambda number: None,
) -> RedTeam:
    """Return what becomes of each compound.

    Args:
        compounds: the mutants.
        array: the cases of the verification, of one dtype.
        elsewhere: other valid cases of that dtype, drawn at random.
        on_compound: called with the number of each compound, from 1, before it is judged.
    """
    results = []
    for number, compound in enumerate(compounds, 1):
        on_compound(number)
        found_by = array.found_by(compound, _FIRST)
        shown_by = found_by or elsewhere.found_by(compound, _ENOUGH)
        if shown_by is not None and found_by is None:
            found_by = array.found_by(compound)
            shown_by = found_by or shown_by
        fate = Fate.INVISIBLE if shown_by is None else Fate.FOUND if found_by else Fate.MISSED
        results.append(
            CompoundResult(
                base=compound.name,
                trigger=tuple(part.text for part in compound.where),
                fate=fate,
                shown_by="" if shown_by is None else shown_by.id,
            )
        )
    alarms = (*array.false_alarms.values(), *elsewhere.false_alarms.values())
    return RedTeam(compounds=tuple(results), false_alarms=alarms)


def _fails(compound: Mutant, case: Case) -> bool:
    """Whether ``compound`` fails a case."""
    failed = _failure_of_base(compound.name, case)
    if any(part.reads_dy for part in compound.where):
        failed = failed - {"y"}  # y is right if the trigger reads dy
    return bool(failed)


@cache
def _failure_of_base(base: str, case: Case) -> frozenset[str]:
    """Return the outputs that a mistake gets wrong."""
    trial = attempt(_adopted(base), case)
    if trial.status not in {Status.WRONG, Status.INACCURATE, Status.CRASHED}:
        return frozenset()
    # without an output that is beyond its bound, the result is wrong in another way
    return frozenset(trial.outputs_beyond() or {"y"})


@cache
def conditions_in(case: Case) -> frozenset[CallCondition]:
    """Return the conditions that hold in a call of ``case``; none if it has no inputs."""
    held: set[CallCondition] = set()

    def note(call: LayerNormCall, dy: Tensor | None) -> None:
        facts = CallFacts(call, dy)
        about = [part for part in CONDITIONS if part.reads_dy is (dy is not None)]
        held.update(part for part in about if part.holds(facts))

    def observed(call: LayerNormCall) -> Tensor:
        note(call, None)
        return then(call.y, lambda dy: note(call, dy))

    try:
        attempt(adopt(function_of(observed), "observed"), case, is_judged=False)
    except UnrepresentableError:
        return frozenset()
    return frozenset(held)


@cache
def _adopted(base: str) -> Implementation:
    return adopt(next(mutant for mutant in BASES if mutant.name == base).fresh(), base)


@cache
def _right() -> Implementation:
    return adopt(layer_norm_of(lambda rows: rows.y), "right")


# --- random cases -------------------------------------------------------------------------------

_MOST_ROWS = 300  # beyond the last limit of a condition on rows, 128
_LONGEST = 6000  # beyond the last limit of a condition on N, 4096
_MOST_DRAWN = 1 << 16  # of x, for a case that takes milliseconds
_EPS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-3, 0.5)
# without eps, a constant row has no result
_NEVER_CONSTANT = ("normal", "uniform", "offset_1e2", "outlier_first", "row_scales")
_THREADS = (1, 1, 1, 1, 1, 1, 1, 1, 1, 2)  # threads wait for each other for most of a small case
# with these parameters, one is frozen and something requires a gradient
_FROZEN = {
    "frozen_x": (Affine.BOTH, Affine.WEIGHT, Affine.BIAS),
    "frozen_parameters": (Affine.BOTH, Affine.WEIGHT, Affine.BIAS),
    "frozen_weight": (Affine.BOTH, Affine.WEIGHT),
    "frozen_bias": (Affine.BOTH, Affine.BIAS),
}


def draw_cases(count: int, dtype: str, seed: int = 0) -> list[Case]:
    """Draw ``count`` cases of ``dtype``."""
    random = Random(seed)
    return [_drawn(random, dtype) for _ in range(count)]


def _drawn(random: Random, dtype: str) -> Case:
    leading, dims = random.choice((0, 1, 1, 2, 2, 3)), random.choice((1, 1, 2, 3))
    rows, hidden = _count(random, _MOST_ROWS), _count(random, _LONGEST)
    rows = min(rows, _MOST_DRAWN // hidden)
    shape = (*_split(random, rows, leading), *_split(random, hidden, dims))
    call = random.choice(AXES["call"].values)
    affine = random.choice(_FROZEN.get(call, tuple(Affine)))
    distribution = random.choice(list(DISTRIBUTIONS))
    has_results_without_eps = distribution in _NEVER_CONSTANT and leading > 0 and hidden > 1
    # a negated x is left out: misreading it is a remark
    case = Case(
        implementation="",
        shape=shape,
        normalized_dims=dims,
        dtype=dtype,
        param_dtype=random.choice((dtype, "float32")) if dtype.endswith("16") else dtype,
        distribution=distribution,
        layout=random.choice([layout for layout in LAYOUTS if layout != "negated"]),
        grad_output=random.choice(list(GRAD_OUTPUTS)),
        affine=affine,
        parameters=random.choice(list(PARAMETERS)),
        eps=random.choice((0.0, *_EPS) if has_results_without_eps else _EPS),
        threads=random.choice(_THREADS),
        seed=random.randrange(1 << 16),
    )
    return AXES["call"].set(case, call)


def _count(random: Random, most: int) -> int:
    """Draw a number from 1 to ``most``: as often a small one as a large one, or a round one."""
    drawn = int(most ** random.random())
    step = random.choice((1, 1, 1, 4, 32))
    return max(drawn // step * step, 1)


def _split(random: Random, count: int, axes: int) -> tuple[int, ...]:
    """Split a number into factors, one for each axis; without axes it is 1."""
    if axes == 0:
        return ()
    factors = []
    for _ in range(axes - 1):
        part = random.choice([factor for factor in (1, 2, 3, 4, 5, 7) if count % factor == 0])
        factors.append(part)
        count //= part
    return (*factors, count)
