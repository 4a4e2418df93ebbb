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
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import prod

from harness.inputs import UnrepresentableError
from harness.records import Case, Status
from harness.verify.cases.plan import planned_cases
from harness.verify.mutants.compound import Compound, draw_compounds, with_callback
from harness.verify.mutants.conditions import CONDITIONS, CallFacts
from harness.verify.mutants.mutant import Mutant
from harness.verify.random_cases import draw_cases
from harness.verify.running_sums import running_sum_claims
from harness.verify.self_test_result import CompoundResult, Fate, RedTeam
from harness.verify.trial import outputs_of, try_case
from implementations import adopt
from implementations.contract import Algorithm, Implementation

__all__ = ["Board", "judge_compounds", "run_red_team"]

_MOST_ELEMENTS = 1 << 18  # of x; the largest cases take longer than all others together
_RANDOM_CASES = 3000  # ten times the number below: a trigger may hold in few of them
_ENOUGH = 300  # random cases on which the trigger holds and nothing shows: it cannot be seen
_FIRST = 40  # cases of the verification to try before random ones; most compounds fail one of them
_SMALL = 256  # elements; in smaller cases fewer mistakes show


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a mistake fails a case."""

    in_gradients: bool
    """Whether a gradient is wrong, not y alone."""
    claims: frozenset[Algorithm]
    """Running sums that explain the failure (:mod:`harness.verify.running_sums`)."""


class Board:
    """Cases, the conditions that hold in each, and how mistakes fail them; computed as needed."""

    def __init__(self, cases: Sequence[Case]) -> None:
        # a wrong result for a negated x is a remark, unless x without the negative bit fails too
        self.cases = [case for case in cases if case.layout != "negated"]
        self._held: dict[int, int] = {}
        self._failures: dict[tuple[str, int], _Failure | None] = {}
        self.false_alarms: dict[int, str] = {}
        """What a right LayerNorm fails, by place, as far as that was asked."""

    def where(self, trigger: int) -> Iterator[int]:
        """Yield the places of the cases in which a trigger holds, in the order given."""
        for place, _ in enumerate(self.cases):
            if self.held(place) & trigger == trigger and place not in self.false_alarms:
                yield place

    def held(self, place: int) -> int:
        """Return a bit for each of the conditions that hold in a case."""
        if place not in self._held:
            self._held[place] = _conditions_of(self.cases[place])
        return self._held[place]

    def found_by(self, compound: Compound, at_most: int | None = None) -> Case | None:
        """Return the case with which ``compound`` certainly fails; None if there is none.

        Args:
            compound: the mutant.
            at_most: the cases to try, of those in which the trigger holds; None for all.
        """
        explained: frozenset[Algorithm] | None = None
        for place in islice(self.where(_bits(compound)), at_most):
            failure = self._failure(compound, place)
            if failure is None:
                continue
            explained = failure.claims if explained is None else explained & failure.claims
            if not explained and not self._is_false_alarm(place):
                return self.cases[place]
        return None

    def fails(self, compound: Compound, place: int) -> bool:
        """Whether ``compound`` fails a case, by the bounds that a target must keep at first."""
        trigger = _bits(compound)
        holds = self.held(place) & trigger == trigger
        return holds and self._failure(compound, place) is not None

    def _failure(self, compound: Compound, place: int) -> _Failure | None:
        """Return how ``compound`` fails a case in which its trigger holds."""
        key = compound.base.name, place
        if key not in self._failures:
            self._failures[key] = _failure_of(compound.base, self.cases[place])
        failure = self._failures[key]
        # y is right if the trigger reads dy
        reads_dy = any(each.reads_dy for each in compound.trigger)
        return None if failure is None or (reads_dy and not failure.in_gradients) else failure

    def _is_false_alarm(self, place: int) -> bool:
        trial = try_case(_right(), self.cases[place])
        if trial.status is Status.WRONG:
            self.false_alarms[place] = f"{trial.case.id}: {trial.reason}"
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
    cases = [each.case for each in planned if prod(each.case.shape) <= _MOST_ELEMENTS]
    # cheap and revealing ones first
    cases.sort(key=lambda case: (prod(case.shape) < _SMALL, prod(case.shape)))
    compounds = draw_compounds(count, seed)
    return judge_compounds(
        compounds, Board(cases), Board(draw_cases(_RANDOM_CASES, dtype)), on_compound
    )


def judge_compounds(
    compounds: Sequence[Compound],
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
                base=compound.base.name,
                trigger=tuple(each.text for each in compound.trigger),
                fate=fate,
                shown_by="" if shown_by is None else shown_by.id,
            )
        )
    alarms = (*array.false_alarms.values(), *elsewhere.false_alarms.values())
    return RedTeam(compounds=tuple(results), false_alarms=alarms)


def _failure_of(base: Mutant, case: Case) -> _Failure | None:
    target = _adopted(base)
    trial = try_case(target, case, running_sum_claims(target))
    if trial.status not in {Status.WRONG, Status.CRASHED}:
        return None
    in_gradients = bool(trial.outputs_beyond() - {"y"})
    return _Failure(in_gradients=in_gradients, claims=frozenset(trial.again))


def _conditions_of(case: Case) -> int:
    """Return a bit for each condition that holds in a call of ``case``; 0 if it has no inputs."""
    held = 0

    def on_call(facts: CallFacts) -> None:
        nonlocal held
        for place, condition in enumerate(CONDITIONS):
            if condition.reads_dy == (facts.dy is not None) and condition.holds(facts):
                held |= 1 << place

    try:
        outputs_of(adopt(with_callback(on_call), "observed"), case)
    except UnrepresentableError:
        return 0
    return held


def _bits(compound: Compound) -> int:
    return sum(1 << CONDITIONS.index(each) for each in compound.trigger)


@cache
def _adopted(base: Mutant) -> Implementation:
    return adopt(base.function, base.name)


@cache
def _right() -> Implementation:
    return adopt(with_callback(lambda facts: None), "right")
