"""The verifier verified: no known mistake is accepted, no right LayerNorm is rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.verify import self_test
from harness.verify.findings import RemarkKind
from harness.verify.mutants import RIGHT, WRONG, Mutant
from harness.verify.self_test import Matrix, Row, is_found, matrix_lines, run_self_test
from harness.verify.verify import DTYPES, verify
from implementations import Implementation

MUTANTS = [(each, dtype) for each in WRONG for dtype in DTYPES if dtype in each.dtypes]


def row(mutant: str = "no_root", *, found: bool = True, dtype: str = "float32") -> Row:
    return Row(
        mutant=mutant,
        mistake="leaves the root out",
        dtype=dtype,
        found_by_us=found,
        found_by_peers={},
    )


@pytest.mark.parametrize(
    ("mutant", "dtype"),
    MUTANTS,
    ids=lambda each: each.name if isinstance(each, Mutant) else each,
)
def test_no_known_mistake_is_accepted(mutant: Mutant, dtype: str) -> None:
    assert is_found(mutant, dtype), f"accepted: it {mutant.mistake}"


# rows of one element have a variance all the same
@pytest.mark.filterwarnings(r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize("right", RIGHT, ids=lambda each: each.name)
def test_no_right_one_is_rejected(right: Implementation) -> None:
    verdict = verify(right, quick=True, fail_fast=True)
    assert [each.case.id for each in verdict.failures] == []
    assert verdict.violations == ()
    assert verdict.passed


def test_a_right_function_taken_for_a_mutant_is_not_found() -> None:
    right = next(each for each in RIGHT if each.name == "module")
    claimed = Mutant(
        name="module", mistake="is right", family=WRONG[0].family, function=right.function
    )
    assert not is_found(claimed, "float32")


def test_a_mutant_of_a_remark_is_found_by_a_remark_of_that_kind_alone() -> None:
    mutant = next(each for each in WRONG if each.name == "eps_of_1e_12_by_default")
    assert mutant.remark is RemarkKind.DEFAULT_EPS
    assert is_found(mutant, "float32")
    assert not is_found(replace(mutant, remark=RemarkKind.PROMOTES), "float32")
    assert not is_found(replace(mutant, remark=None), "float32")


def test_a_matrix_passes_where_all_is_found_and_nothing_rejected() -> None:
    assert Matrix(rows=(row(), row(dtype="float64")), rejected=()).passed


def test_an_empty_matrix_does_not_pass() -> None:
    assert Matrix(rows=(), rejected=()).passed is False


def test_one_missed_mistake_fails_the_matrix() -> None:
    assert Matrix(rows=(row(), row("no_eps", found=False)), rejected=()).passed is False


def test_one_rejected_right_one_fails_the_matrix() -> None:
    assert Matrix(rows=(row(),), rejected=("module",)).passed is False


def test_the_lines_name_what_was_missed_and_what_was_rejected() -> None:
    matrix = Matrix(
        rows=(row(), row("no_eps", found=False, dtype="bfloat16")), rejected=("module", "recentred")
    )
    lines = matrix_lines(matrix)
    assert "wrong and accepted by us: no_eps in bfloat16" in lines
    assert "right and rejected by us: module, recentred" in lines


def test_the_lines_say_none_where_nothing_was_missed() -> None:
    lines = matrix_lines(Matrix(rows=(row(),), rejected=()))
    assert "wrong and accepted by us: none" in lines
    assert "right and rejected by us: none" in lines


def test_a_peer_without_a_test_for_a_dtype_is_no_peer_that_accepts() -> None:
    lines = matrix_lines(Matrix(rows=(row(found=False),), rejected=()))
    (counts,) = (each for each in lines if each.startswith("float32 (of 1)"))
    ours, *peers = counts.removeprefix("float32 (of 1)").split()
    assert ours == "1"
    assert set(peers) == {"-"}


def test_the_self_test_is_of_every_mutant_and_every_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant, right = WRONG[0], RIGHT[0]
    monkeypatch.setattr(self_test, "WRONG", (mutant,))
    monkeypatch.setattr(self_test, "RIGHT", (right,))
    monkeypatch.setattr(self_test, "PEER_CHECKS", ())
    lines: list[str] = []
    matrix = run_self_test(lines.append)
    assert matrix.passed
    assert [each.dtype for each in matrix.rows] == [
        each for each in DTYPES if each in mutant.dtypes
    ]
    assert lines == [
        f"[1/2] verifying a LayerNorm that {mutant.mistake}",
        f"[2/2] verifying {right.name}, which is right",
    ]


def test_the_self_test_fails_where_a_right_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Implementation(name="wrong", function=WRONG[0].function, source="")
    monkeypatch.setattr(self_test, "WRONG", ())
    monkeypatch.setattr(self_test, "RIGHT", (wrong,))
    matrix = run_self_test()
    assert matrix.rejected == ("wrong",)
    assert not matrix.passed
