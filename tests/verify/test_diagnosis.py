"""Which known mistake explains failures, and where it shows; nothing where there is no pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
import torch
from factories.verify_targets import mutant, target
from torch import Tensor
from torch.nn import functional

from harness.mutants import named as known
from harness.numerics.error_measurement import BoundRatio
from harness.records import Autograd, Case, Direction, Status
from harness.run import process_state
from harness.run.attempt import Judged, attempt
from harness.verify import planned_cases
from harness.verify.diagnosis import mistakes_of
from harness.verify.trigger import conditions_of_failures, fact_of
from implementations import Implementation, native, two_pass

Fails = Callable[[SimpleNamespace], bool]
"""Of a case and its facts."""


@cache
def quick_cases() -> tuple[Case, ...]:
    planned = planned_cases(native, 2, ("float32",), "cpu")
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


def named(fails: Fails, shown_by: Fails = shows) -> set[str] | None:
    """Return the conditions in words; None if the failures have nothing in common."""

    def attempt(case: Case) -> Judged | None:
        if not case.rows * case.hidden:
            return None
        seen = seen_in(case)
        failed = fails(seen) and shown_by(seen)
        return judged(case, failed=failed, ratio=1e4 if failed else 0.01)

    trials = [found for case in quick_cases() if (found := attempt(case)) is not None]
    assert any(trial.status is Status.WRONG for trial in trials)
    causes = list(conditions_of_failures(trials, attempt))
    return {condition.text for condition in causes[0].conditions} if causes else None


PLANTED: dict[str, Fails] = {
    "N >= 1025": lambda seen: seen.case.hidden > 1024,
    "N is a power of two": lambda seen: seen.case.hidden.bit_count() == 1,
    "x is not contiguous": lambda seen: not seen.is_contiguous,
    "neither weight nor bias is given": lambda seen: seen.case.affine == "none",
    "a gradient is computed": lambda seen: seen.case.direction is Direction.BACKWARD,
    "several axes are normalised": lambda seen: seen.case.normalized_dims > 1,
    "N >= 1025 and x is not contiguous": lambda seen: (
        seen.case.hidden > 1024 and not seen.is_contiguous
    ),
    "x has several leading axes and N >= 201 and no gradient is recorded": lambda seen: (
        leading_axes(seen.case) > 1
        and seen.case.hidden > 200
        and seen.case.direction is Direction.FORWARD
        and seen.case.autograd is not Autograd.RECORDED
    ),
}


def leading_axes(case: Case) -> int:
    return len(case.shape) - case.normalized_dims


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_trigger_is_named_exactly(planted: str) -> None:
    assert named(PLANTED[planted]) == {*planted.split(" and ")}


def test_what_data_must_be_like_is_part_of_the_trigger() -> None:
    conditions = named(lambda seen: seen.case.hidden > 1024, lambda seen: seen.offset_ratio > 50)
    assert conditions is not None
    (offset,) = conditions - {"N >= 1025"}
    assert 10 < float(offset.rpartition(" ")[2]) <= 120


@pytest.mark.parametrize(
    ("fails", "conditions"),
    [
        (lambda seen: True, set()),
        (lambda seen: seen.case.hidden > 1024 or not seen.is_contiguous, None),
        (lambda seen: crc32(seen.case.id.encode()) % 3 == 0, None),
    ],
    ids=["everywhere", "two mistakes", "at random"],
)
def test_nothing_is_named_where_there_is_no_pattern(
    fails: Fails, conditions: set[str] | None
) -> None:
    assert named(fails, lambda seen: True if conditions == set() else shows(seen)) == conditions


# --- which mistake; above, the targets are simulated: a case fails where the trigger is met ------

NATIVE = native.function
STRIDES_IGNORED = known("strides_ignored").mistake


def cases(dtype: str, *distributions: str, shape: tuple[int, ...] = (17, 129)) -> list[Case]:
    case = Case(implementation="", shape=shape, dtype=dtype, param_dtype=dtype)
    backward = replace(case, direction=Direction.BACKWARD)
    return [replace(backward, distribution=name) for name in distributions or OFTEN]


OFTEN = ("normal", "tiny_variance")
WIDER = (*OFTEN, "offset_1e2")
STRIDED = [replace(case, layout="transposed") for case in cases("float32")]
LARGE = cases("float64", "normal", shape=(1, (1 << 18) + 1))
SMALL = cases("float64", "normal", shape=(1, 1 << 12))


def mistakes(target: Implementation, tried: Sequence[Case]) -> str:
    failed = [trial for case in tried if (trial := attempt(target, case)).status is Status.WRONG]
    assert failed
    before = process_state()  # some mutants change the process
    found = [mistake.text for mistake in mistakes_of(target, failed)]
    assert process_state() == before
    return "; ".join(found)


def inexact_if_strided(x: Tensor, *others: Any) -> Tensor:
    return NATIVE(x, *others) * (1 + 1e-5 * (not x.is_contiguous()))


def misreads(x: Tensor, *others: Any) -> Tensor:
    return NATIVE(x.clone().as_strided(x.shape, (129, 1)), *others)


@pytest.mark.parametrize(
    ("wrong", "tried", "mistake"),
    [
        (mutant("unbiased_variance"), cases("float32", *WIDER), "N-1"),
        (mutant("unbiased_variance"), [*SMALL, *LARGE], "N-1"),
        (mutant("mean_in_float16"), cases("float32", *WIDER), known("mean_in_float16").mistake),
        (target(misreads), STRIDED, STRIDES_IGNORED),
    ],
)
def test_a_known_mistake_is_named(
    wrong: Implementation, tried: Sequence[Case], mistake: str
) -> None:
    assert mistake in mistakes(wrong, tried)


def of_another_eps(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return two_pass.function(x, shape, weight, bias, eps * 1.001)


def spiked(*arguments: Any) -> Tensor:
    y = two_pass.function(*arguments)
    return y + functional.one_hot(torch.tensor(3), y.shape[-1]).to(y) / 4


@pytest.mark.parametrize(
    ("wrong", "tried", "excluded"),
    [
        (target(of_another_eps), cases("float64"), ""),
        (target(spiked), cases("bfloat16", "normal", shape=(1, 4096)), ""),
        (mutant("unbiased_variance"), LARGE, ""),  # too large for every mutant
        (mutant("eps_ignored"), STRIDED, STRIDES_IGNORED),  # of contiguous x, too
        (target(inexact_if_strided), STRIDED, STRIDES_IGNORED),
    ],
)
def test_an_error_that_no_mutant_makes_is_not_said_to_be_its_mistake(
    wrong: Implementation, tried: Sequence[Case], excluded: str
) -> None:
    found = mistakes(wrong, tried)
    assert excluded not in found if excluded else found == ""
