"""A mistake that shows at sizes from the source is stated with these sizes, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from zlib import crc32

import pytest
import torch

from harness.cases import Relation
from harness.numerics.error_measurement import BoundRatio
from harness.records import Affine, Case, Status
from harness.run.attempt import Judged
from harness.verify import planned_cases
from harness.verify.cases import QUICKEST
from harness.verify.trigger import conditions_of_failures
from implementations import native

Fails = Callable[[Case], bool]


def judged(case: Case, *, failed: bool) -> Judged:
    output = BoundRatio(output="y", dtype=torch.float32, bound_ratio=1e4 if failed else 0.01)
    return Judged(case=case, status=Status.WRONG if failed else Status.OK, ratios=(output,))


def cases_of_catalogue() -> Iterator[Case]:
    for planned in planned_cases(native, QUICKEST, ("float32",), "cpu"):
        if planned.case.hidden > 1 and planned.case.rows * planned.case.hidden <= 1 << 18:
            yield planned.case


def conditions(fails: Fails, first: Case, *sizes: int) -> set[tuple[str, Relation, object]] | None:
    """Return the stated conditions of a mistake that one case beyond the catalogue showed."""
    trials = [judged(case, failed=fails(case)) for case in (*cases_of_catalogue(), first)]
    assert trials[-1].status is Status.WRONG

    def further(case: Case) -> Judged:
        return judged(case, failed=case.hidden > 1 and fails(case))

    found = [*conditions_of_failures(trials, further, sizes)]
    return {(own.axis, own.relation, own.value) for own in found[0].conditions} if found else None


FIRST = Case(implementation="native", shape=(2, 8200))
LEAST, MOST, ONE_OF = Relation.AT_LEAST, Relation.AT_MOST, Relation.ONE_OF


@pytest.mark.parametrize(
    ("fails", "first", "sizes", "expected"),
    [
        (lambda case: case.hidden > 8192, FIRST, (), {("hidden", LEAST, 8193)}),
        (
            lambda case: 8192 < case.hidden <= 16384,
            FIRST,
            (),
            {("hidden", LEAST, 8193), ("hidden", MOST, 16384)},
        ),
        (
            lambda case: case.hidden in {1536, 6144},
            replace(FIRST, shape=(2, 1536)),
            (1536, 1537, 6144, 6145),
            {("hidden", ONE_OF, (1536, 6144))},
        ),
        (
            lambda case: case.rows >= 4096,
            replace(FIRST, shape=(4100, 24)),
            (),
            {("rows", LEAST, 4096)},
        ),
        (
            lambda case: case.rows * case.hidden > 260_000,
            replace(FIRST, shape=(254, 1024)),
            (),
            {("elements", LEAST, 260_001)},
        ),
    ],
    ids=["from a size", "between sizes", "two sizes", "rows", "elements"],
)
def test_the_constant_of_the_source_is_stated(
    fails: Fails, first: Case, sizes: tuple[int, ...], expected: set[tuple[str, Relation, object]]
) -> None:
    assert conditions(fails, first, *sizes) == expected


def test_three_conditions_that_meet_in_few_cases_are_found() -> None:
    def fails(case: Case) -> bool:
        has_bias = case.affine in {Affine.BOTH, Affine.BIAS}
        return case.hidden % 4 == 0 and not has_bias and case.rows >= 32

    found = conditions(fails, replace(FIRST, shape=(64, 40), affine=Affine.NONE))
    assert found == {
        ("has_bias", Relation.IS, False),
        ("rows", LEAST, 32),
        ("hidden", Relation.MULTIPLE, 4),
    }


@pytest.mark.parametrize(
    "fails",
    [
        lambda case: case.hidden > 8192 and crc32(case.id.encode()) % 4 > 0,
        lambda case: case.hidden > 8192 and crc32(str(case.shape).encode()) % 5 > 0,
        lambda case: case.hidden > 8192 and (case.rows < 3 or crc32(case.id.encode()) % 2 > 0),
    ],
    ids=["most cases", "most shapes", "half of the others"],
)
def test_what_part_of_the_cases_disproves_is_not_stated(fails: Fails) -> None:
    shapes = ((rows, hidden) for rows in range(2, 30) for hidden in range(8193, 8220))
    first = next(case for shape in shapes if fails(case := replace(FIRST, shape=shape)))
    found = conditions(fails, first)
    assert found is None or all(axis != "hidden" for axis, _, _ in found)
