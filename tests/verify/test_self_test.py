"""The verifier finds every mutant and rejects no right LayerNorm."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
from mutant_dtypes import two_dtypes

from harness.verify import self_test
from harness.verify.findings import RemarkKind
from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.self_test import Matrix, Row, is_found, matrix_lines, run_self_test
from harness.verify.verify import DTYPES, verify
from implementations import Implementation

# the other two dtypes of each mutant are those of test_mutants.py
MUTANTS = [
    (mutant, dtype)
    for mutant in WRONG
    for dtype in DTYPES
    if dtype in mutant.dtypes
    and (dtype in two_dtypes(WRONG, start=1)[mutant.name] or len(mutant.dtypes) < len(DTYPES))
]


def row(mutant: str = "no_root", *, is_found: bool = True, dtype: str = "float32") -> Row:
    return Row(mutant=mutant, mistake="takes no root", dtype=dtype, is_found=is_found)


@pytest.mark.parametrize(
    ("mutant", "dtype"),
    MUTANTS,
    ids=lambda each: each.name if isinstance(each, Mutant) else each,
)
def test_no_known_mistake_is_accepted(mutant: Mutant, dtype: str) -> None:
    assert is_found(mutant, dtype), f"accepted: it {mutant.mistake}"


# rows of one element have a variance all the same
@pytest.mark.filterwarnings(r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(
    ("right", "dtype"),
    # the dtypes in turn: all of them take minutes, and are what --self-test tries
    zip(RIGHT, cycle(DTYPES), strict=False),
    ids=lambda each: each.name if isinstance(each, Implementation) else each,
)
def test_no_right_one_is_rejected(right: Implementation, dtype: str) -> None:
    verdict = verify(right, quick=True, dtypes=(dtype,), fail_fast=True)
    assert [trial.case.id for trial in verdict.failures] == []
    assert verdict.violations == ()
    assert verdict.passed


def test_a_right_function_taken_for_a_mutant_is_not_found() -> None:
    right = next(each for each in RIGHT if each.name == "module")
    claimed = Mutant(name="module", mistake="is right", function=right.function)
    assert not is_found(claimed, "float32")


def test_a_mutant_of_a_remark_is_found_by_a_remark_of_that_kind_alone() -> None:
    mutant = next(each for each in WRONG if each.name == "eps_of_1e_12_by_default")
    assert mutant.remark is RemarkKind.DEFAULT_EPS
    assert is_found(mutant, "float32")
    assert not is_found(replace(mutant, remark=RemarkKind.PROMOTES), "float32")
    assert not is_found(replace(mutant, remark=None), "float32")


@pytest.mark.parametrize(
    ("rows", "rejected", "passed"),
    [
        ((row(), row(dtype="float64")), (), True),
        ((), (), False),
        ((row(), row("no_eps", is_found=False)), (), False),
        ((row(),), ("module",), False),
    ],
    ids=["all found", "empty", "one missed", "one right rejected"],
)
def test_a_matrix_passes_where_all_is_found_and_nothing_rejected(
    rows: tuple[Row, ...], rejected: tuple[str, ...], passed: bool
) -> None:
    assert Matrix(rows=rows, rejected=rejected).passed is passed


def test_the_lines_name_what_was_missed_and_what_was_rejected() -> None:
    rows = (row(), row("no_eps", is_found=False, dtype="bfloat16"))
    *counts, missed, rejected = matrix_lines(Matrix(rows=rows, rejected=("module", "recentred")))
    assert [line.split() for line in counts[1:3]] == [
        ["float32", "0", "of", "1"],
        ["bfloat16", "1", "of", "1"],
    ]
    assert "no_eps in bfloat16" in missed
    assert "module, recentred" in rejected


def test_the_self_test_is_of_every_mutant_and_every_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant, right = WRONG[0], RIGHT[0]
    monkeypatch.setattr(self_test, "WRONG", (mutant,))
    monkeypatch.setattr(self_test, "RIGHT", (right,))
    lines: list[str] = []
    matrix = run_self_test(lines.append)
    assert matrix.passed
    assert [each.dtype for each in matrix.rows] == [
        dtype for dtype in DTYPES if dtype in mutant.dtypes
    ]
    assert [line.partition("]")[0] for line in lines] == ["[1/2", "[2/2"]


def test_the_self_test_fails_where_a_right_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Implementation(name="wrong", function=WRONG[0].function, source="")
    monkeypatch.setattr(self_test, "WRONG", ())
    monkeypatch.setattr(self_test, "RIGHT", (wrong,))
    matrix = run_self_test()
    assert matrix.rejected == ("wrong",)
    assert not matrix.passed
