"""Where a planted mistake shows is named exactly, and nothing is named where there is no pattern.

The targets are simulated: a case fails where the trigger is met and its data show the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from zlib import crc32

import pytest
import torch

from harness.cases import Condition, Relation
from harness.numerics.error_measurement import BoundRatio
from harness.records import Affine, Autograd, Case, Direction, Status
from harness.run.attempt import Judged
from harness.verify import planned_cases
from harness.verify.cases import QUICKEST
from harness.verify.trigger import conditions_of_failures, fact_of
from implementations import native

Fails = Callable[[SimpleNamespace], bool]
"""Of a case and its facts."""


@cache
def quick_cases() -> tuple[Case, ...]:
    planned = planned_cases(native, QUICKEST, ("float32",), "cpu")
    small = (item.case for item in planned if item.case.rows * item.case.hidden <= 1 << 18)
    return tuple(case for case in small if case.rows * case.hidden)


def seen_in(case: Case) -> SimpleNamespace:
    facts = ("is_contiguous", "is_row_dense", "offset_ratio")
    return SimpleNamespace(case=case, **{name: fact_of(case, name) for name in facts})


def judged(case: Case, *, failed: bool, ratio: float) -> Judged:
    output = BoundRatio(output="y", dtype=torch.float32, bound_ratio=ratio)
    status = Status.WRONG if failed else Status.OK
    return Judged(case=case, status=status, ratios=(output,))


def shows(seen: SimpleNamespace) -> bool:
    """Whether the data of a case show a mistake, as those of most cases do."""
    is_constant = seen.case.distribution == "constant" or seen.case.hidden == 1
    return not is_constant and seen.case.parameters != "zero_weight"


def found(fails: Fails, shown_by: Fails = shows) -> set[Condition] | None:
    def attempt(case: Case) -> Judged | None:
        if not case.rows * case.hidden:
            return None
        seen = seen_in(case)
        failed = fails(seen) and shown_by(seen)
        return judged(case, failed=failed, ratio=1e4 if failed else 0.01)

    trials = [found for case in quick_cases() if (found := attempt(case)) is not None]
    assert any(trial.status is Status.WRONG for trial in trials)
    causes = list(conditions_of_failures(trials, attempt))
    return {*causes[0].conditions} if causes else None


def at_least(axis: str, value: float) -> Condition:
    return Condition(axis=axis, relation=Relation.AT_LEAST, value=value)


def at_most(axis: str, value: float) -> Condition:
    return Condition(axis=axis, relation=Relation.AT_MOST, value=value)


def multiple(axis: str, value: int) -> Condition:
    return Condition(axis=axis, relation=Relation.MULTIPLE, value=value)


def not_multiple(axis: str, value: int) -> Condition:
    return Condition(axis=axis, relation=Relation.NOT_MULTIPLE, value=value)


def equal(axis: str, value: object) -> Condition:
    return Condition(axis=axis, relation=Relation.IS, value=value)


LONG = at_least("hidden", 2)  # a row of one element hides the mistake
STRIDED = equal("is_contiguous", False)
ONE_CONDITION = {
    "N over 1024": (lambda seen: seen.case.hidden > 1024, {at_least("hidden", 1025)}),
    "N up to 100": (lambda seen: seen.case.hidden <= 100, {LONG, at_most("hidden", 100)}),
    "N in vectors of 4": (lambda seen: seen.case.hidden % 4 == 0, {multiple("hidden", 4)}),
    "N not in vectors of 4": (
        lambda seen: seen.case.hidden % 4 != 0,
        {LONG, not_multiple("hidden", 4)},
    ),
    "N a power of two": (
        lambda seen: seen.case.hidden.bit_count() == 1,
        {LONG, equal("is_power_of_two", True)},
    ),
    "rows over 500": (lambda seen: seen.case.rows > 500, {at_least("rows", 501), LONG}),
    "strided": (lambda seen: not seen.is_contiguous, {STRIDED, LONG}),
    "rows apart in memory": (
        lambda seen: not seen.is_row_dense,
        {equal("is_row_dense", False), LONG},
    ),
    "no affine": (lambda seen: seen.case.affine is Affine.NONE, {equal("affine", "none"), LONG}),
    "no weight": (
        lambda seen: seen.case.affine in {Affine.NONE, Affine.BIAS},
        {equal("has_weight", False), LONG},
    ),
    "backward": (
        lambda seen: seen.case.direction is Direction.BACKWARD,
        {equal("is_backward", True), LONG},
    ),
    "frozen x": (
        lambda seen: seen.case.autograd is Autograd.FROZEN_X,
        {equal("call", "frozen_x"), LONG},
    ),
    "several axes": (
        lambda seen: seen.case.normalized_dims > 1,
        {at_least("normalized_axes", 2), LONG},
    ),
    "3-D x": (
        lambda seen: len(seen.case.shape) - seen.case.normalized_dims > 1,
        {at_least("leading_axes", 2), LONG},
    ),
    "threads": (lambda seen: seen.case.threads > 1, {at_least("threads", 2), LONG}),
}
SEVERAL_CONDITIONS = {
    "N over 1024 and strided": (
        lambda seen: seen.case.hidden > 1024 and not seen.is_contiguous,
        {at_least("hidden", 1025), STRIDED},
    ),
    "N in vectors of 4 without bias": (
        lambda seen: seen.case.hidden % 4 == 0 and seen.case.affine in {"weight", "none"},
        {multiple("hidden", 4), equal("has_bias", False)},
    ),
    "many rows of over 64 elements": (
        lambda seen: seen.case.hidden > 64 and seen.case.rows >= 40,
        {at_least("hidden", 65), at_least("rows", 40)},
    ),
    "3-D x, N over 200, in inference": (
        lambda seen: (
            len(seen.case.shape) - seen.case.normalized_dims > 1
            and seen.case.hidden > 200
            and seen.case.direction is Direction.FORWARD
            and seen.case.autograd is not Autograd.RECORDED
        ),
        {at_least("leading_axes", 2), at_least("hidden", 201), equal("is_recorded", False)},
    ),
    "strided, N over 1024, without weight": (
        lambda seen: (
            not seen.is_contiguous
            and seen.case.hidden > 1024
            and seen.case.affine in {"bias", "none"}
        ),
        {STRIDED, at_least("hidden", 1025), equal("has_weight", False)},
    ),
}


@pytest.mark.parametrize("planted", [*ONE_CONDITION, *SEVERAL_CONDITIONS])
def test_a_planted_trigger_is_named_exactly(planted: str) -> None:
    fails, conditions = (ONE_CONDITION | SEVERAL_CONDITIONS)[planted]
    assert found(fails) == conditions - {LONG}


def test_what_data_must_be_like_is_part_of_the_trigger() -> None:
    conditions = found(lambda seen: seen.case.hidden > 1024, lambda seen: seen.offset_ratio > 50)
    assert conditions is not None
    (offset,) = conditions - {at_least("hidden", 1025)}
    assert (offset.axis, offset.relation) == ("offset_ratio", Relation.AT_LEAST)
    assert 10 < offset.value <= 120


def test_a_measure_of_x_has_one_threshold() -> None:
    conditions = found(lambda seen: not seen.is_contiguous, lambda seen: seen.offset_ratio > 11)
    assert conditions is not None
    assert sorted(part.axis for part in conditions) == ["is_contiguous", "offset_ratio"]


def test_a_small_eps_is_part_of_the_trigger() -> None:
    conditions = found(lambda seen: seen.case.eps < 1e-8)
    assert conditions is not None
    assert at_most("eps", 1e-12) in conditions


def test_a_target_that_is_wrong_everywhere_has_a_trigger_without_conditions() -> None:
    assert found(lambda seen: True, lambda seen: True) == set()


def test_two_mistakes_have_nothing_in_common() -> None:
    is_either: Fails = lambda seen: seen.case.hidden > 1024 or not seen.is_contiguous  # noqa: E731
    assert found(is_either) is None


def test_failures_at_random_have_nothing_in_common() -> None:
    assert found(lambda seen: crc32(seen.case.id.encode()) % 3 == 0) is None


def test_nothing_is_named_without_further_cases() -> None:
    trials = [
        judged(case, failed=case.hidden > 1024, ratio=9 if case.hidden > 1024 else 0.1)
        for case in quick_cases()
    ]
    assert list(conditions_of_failures(trials, lambda case: None)) == []
