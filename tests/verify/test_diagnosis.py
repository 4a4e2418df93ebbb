"""Which known mistake explains failures, and where it shows; nothing where there is no pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import pytest
import torch
from factories.verify_targets import mutant, target
from torch import Tensor

from harness.cases import Relation
from harness.mutants import named as known
from harness.numerics.error_measurement import BoundRatio
from harness.records import Affine, Case, Direction, Status
from harness.run import Judged, process_state
from harness.run.attempt import attempt
from harness.verify import planned_cases
from harness.verify.diagnosis import mistakes_of
from harness.verify.result import QUICKEST
from harness.verify.trigger import conditions_of_failures, fact_of
from implementations import Implementation, native, two_pass

Fails = Callable[[Case], bool]


@cache
def cases_of(catalogue: int) -> tuple[Case, ...]:
    planned = (item.case for item in planned_cases(native, catalogue, ("float32",), "cpu"))
    return tuple(case for case in planned if 0 < case.rows * case.hidden <= 1 << 18)


def judged(case: Case, *, failed: bool) -> Judged:
    output = BoundRatio(output="y", dtype=torch.float32, bound_ratio=1e4 if failed else 0.01)
    return Judged(case=case, status=Status.WRONG if failed else Status.OK, ratios=(output,))


# --- where: the targets are simulated, a case fails where the trigger is met ---------------------


def shows(case: Case) -> bool:
    """Whether the data of a case show a mistake, as those of most cases do."""
    is_constant = case.distribution == "constant" or case.hidden == 1
    return not is_constant and case.parameters != "zero_weight"


def named(fails: Fails, shown_by: Fails = shows) -> set[str] | None:
    """Return the conditions in words; None if the failures have nothing in common."""

    def tried(case: Case) -> Judged | None:
        is_tried = case.rows * case.hidden > 0
        return judged(case, failed=fails(case) and shown_by(case)) if is_tried else None

    trials = [found for case in cases_of(2) if (found := tried(case)) is not None]
    assert any(trial.status is Status.WRONG for trial in trials)
    causes = list(conditions_of_failures(trials, tried))
    return {condition.text for condition in causes[0].conditions} if causes else None


def is_strided(case: Case) -> bool:
    return not fact_of(case, "is_contiguous")


PLANTED: dict[str, Fails] = {
    "N is a power of two": lambda case: case.hidden.bit_count() == 1,
    "x is not contiguous": is_strided,
    "neither weight nor bias is given": lambda case: case.affine == "none",
    "several axes are normalised": lambda case: case.normalized_dims > 1,
    "N >= 1025 and x is not contiguous": lambda case: case.hidden > 1024 and is_strided(case),
    "N >= 201 and a gradient is computed": lambda case: (
        case.hidden > 200 and case.direction is Direction.BACKWARD
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_trigger_is_named_exactly(planted: str) -> None:
    assert named(PLANTED[planted]) == {*planted.split(" and ")}


def test_what_data_must_be_like_is_part_of_the_trigger() -> None:
    def is_far_off(case: Case) -> bool:
        return float(fact_of(case, "offset_ratio")) > 50

    conditions = named(lambda case: case.hidden > 1024, is_far_off)
    (offset,) = conditions - {"N >= 1025"}
    assert 10 < float(offset.rpartition(" ")[2]) <= 120


@pytest.mark.parametrize(
    ("fails", "conditions"),
    [
        (lambda case: True, set()),
        (lambda case: case.hidden > 1024 or is_strided(case), None),
        (lambda case: crc32(case.id.encode()) % 3 == 0, None),
    ],
    ids=["everywhere", "two mistakes", "at random"],
)
def test_nothing_is_named_where_there_is_no_pattern(
    fails: Fails, conditions: set[str] | None
) -> None:
    assert named(fails, lambda case: True if conditions == set() else shows(case)) == conditions


# --- a mistake that shows at sizes from the source is stated with these sizes, or not at all -----


def stated(fails: Fails, first: Case, *sizes: int) -> set[tuple[str, Relation, object]] | None:
    """Return the stated conditions of a mistake that one case beyond the catalogue showed."""
    catalogue = (case for case in cases_of(QUICKEST) if case.hidden > 1)
    trials = [judged(case, failed=fails(case)) for case in (*catalogue, first)]
    assert trials[-1].status is Status.WRONG

    def further(case: Case) -> Judged:
        return judged(case, failed=case.hidden > 1 and fails(case))

    found = [*conditions_of_failures(trials, further, sizes)]
    return {(own.axis, own.relation, own.value) for own in found[0].conditions} if found else None


FIRST = Case(implementation="native", shape=(2, 8200))
LEAST, MOST, ONE_OF = Relation.AT_LEAST, Relation.AT_MOST, Relation.ONE_OF
SIZES = (1536, 1537, 6144, 6145)
BETWEEN = {("hidden", LEAST, 8193), ("hidden", MOST, 16384)}


@pytest.mark.parametrize(
    ("fails", "shape", "sizes", "expected"),
    [
        (lambda case: case.hidden > 8192, (2, 8200), (), {("hidden", LEAST, 8193)}),
        (lambda case: 8192 < case.hidden <= 16384, (2, 8200), (), BETWEEN),
        (
            lambda case: case.hidden in {1536, 6144},
            *((2, 1536), SIZES, {("hidden", ONE_OF, (1536, 6144))}),
        ),
        (lambda case: case.rows >= 4096, (4100, 24), (), {("rows", LEAST, 4096)}),
        (
            lambda case: case.rows * case.hidden > 260_000,
            *((254, 1024), (), {("elements", LEAST, 260_001)}),
        ),
    ],
    ids=["from a size", "between sizes", "two sizes", "rows", "elements"],
)
def test_the_constant_of_the_source_is_stated(
    fails: Fails,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    expected: set[tuple[str, Relation, object]],
) -> None:
    assert stated(fails, replace(FIRST, shape=shape), *sizes) == expected


def test_three_conditions_that_meet_in_few_cases_are_found() -> None:
    def fails(case: Case) -> bool:
        has_bias = case.affine in {Affine.BOTH, Affine.BIAS}
        return case.hidden % 4 == 0 and not has_bias and case.rows >= 32

    assert stated(fails, replace(FIRST, shape=(64, 40), affine=Affine.NONE)) == {
        ("has_bias", Relation.IS, False),
        ("rows", LEAST, 32),
        ("hidden", Relation.MULTIPLE, 4),
    }


@pytest.mark.parametrize(
    "fails",
    [
        lambda case: case.hidden > 8192 and crc32(case.id.encode()) % 4 > 0,
        lambda case: case.hidden > 8192 and crc32(str(case.shape).encode()) % 5 > 0,
    ],
    ids=["most cases", "most shapes"],
)
def test_what_part_of_the_cases_disproves_is_not_stated(fails: Fails) -> None:
    shapes = ((rows, hidden) for rows in range(2, 30) for hidden in range(8193, 8220))
    first = next(case for shape in shapes if fails(case := replace(FIRST, shape=shape)))
    found = stated(fails, first)
    assert found is None or all(axis != "hidden" for axis, _, _ in found)


# --- which mistake -------------------------------------------------------------------------------


def cases(dtype: str, *distributions: str, shape: tuple[int, ...] = (17, 129)) -> list[Case]:
    case = Case(implementation="", shape=shape, dtype=dtype, param_dtype=dtype)
    backward = replace(case, direction=Direction.BACKWARD)
    return [replace(backward, distribution=name) for name in distributions or OFTEN]


OFTEN = ("normal", "tiny_variance")
WIDER = (*OFTEN, "offset_1e2")
STRIDED = [replace(case, layout="transposed") for case in cases("float32")]
LARGE = cases("float64", "normal", shape=(1, (1 << 18) + 1))
SMALL = cases("float64", "normal", shape=(1, 1 << 12))
STRIDES_IGNORED = known("strides_ignored").mistake


def mistakes(target: Implementation, tried: Sequence[Case]) -> str:
    failed = [trial for case in tried if (trial := attempt(target, case)).status is Status.WRONG]
    assert failed
    before = process_state()  # some mutants change the process
    found = [mistake.text for mistake in mistakes_of(target, failed)]
    assert process_state() == before
    return "; ".join(found)


def inexact_if_strided(x: Tensor, *others: Any) -> Tensor:
    return native.function(x, *others) * (1 + 1e-5 * (not x.is_contiguous()))


def misreads(x: Tensor, *others: Any) -> Tensor:
    return native.function(x.clone().as_strided(x.shape, (129, 1)), *others)


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


@pytest.mark.parametrize(
    ("wrong", "tried", "excluded"),
    [
        (target(of_another_eps), cases("float64"), ""),
        (mutant("unbiased_variance"), LARGE, ""),  # too large for every mutant
        (target(inexact_if_strided), STRIDED, STRIDES_IGNORED),
    ],
)
def test_an_error_that_no_mutant_makes_is_not_said_to_be_its_mistake(
    wrong: Implementation, tried: Sequence[Case], excluded: str
) -> None:
    found = mistakes(wrong, tried)
    assert excluded not in found if excluded else found == ""
