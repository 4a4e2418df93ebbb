"""The verifier finds every mutant and rejects no right LayerNorm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from factories.small_catalogue import use_small_catalogue

from harness.mutants import RIGHT, WRONG, Mutant, named
from harness.records.finding import RemarkKind
from harness.verify import self_test, verify
from harness.verify.checks import contract_checks
from harness.verify.checks.contract_checks import SMALL
from harness.verify.result import DTYPES, Verdict
from harness.verify.self_test import MutantResult, SelfTest, is_found, run_self_test
from implementations import Implementation

# each in one of its dtypes in turn; not in float64, whose exact reference is the slowest.
# --self-test tries all dtypes, and all quick cases
MUTANTS = [
    (mutant, dtypes[number % len(dtypes)])
    for number, mutant in enumerate(WRONG)
    for dtypes in [
        [name for name in DTYPES if name in mutant.dtypes and name != "float64"] or ["float64"]
    ]
]


@pytest.mark.parametrize(
    ("mutant", "dtype"),
    MUTANTS,
    ids=lambda value: value.name if isinstance(value, Mutant) else value,
)
def test_no_known_mistake_is_accepted(
    mutant: Mutant, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # many are right in all cases, and found by the contract checks that follow them
    with monkeypatch.context() as patch:
        use_small_catalogue(patch, largest=300, one_in=10)
        is_found_at_once = is_found(mutant, dtype)
    assert is_found_at_once or is_found(mutant, dtype), f"accepted: it {mutant.sentence}"


# rows of one element have a variance all the same
@pytest.mark.filterwarnings(r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(
    ("right", "dtype"),
    list(zip(RIGHT, cycle(DTYPES), strict=False)),
    ids=lambda value: value.name if isinstance(value, Implementation) else value,
)
def test_no_right_one_is_rejected(
    right: Implementation, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows of every length, but not many rows: --self-test and tox -e calibrate try all
    use_small_catalogue(monkeypatch, largest=30_000, one_in=6)
    if right.name == "compensated_sums":  # a Python loop over the elements of the row
        use_small_catalogue(monkeypatch, largest=1_000)
        monkeypatch.setattr(contract_checks, "settings_of", lambda check: (SMALL,))
    verdict = verify(right, quick=True, dtypes=(dtype,), fail_fast=True)
    assert [trial.case.id for trial in verdict.failures] == []
    assert verdict.violations == ()
    assert verdict.remarks == ()
    assert verdict.passed


def test_a_right_function_taken_for_a_mutant_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_catalogue(monkeypatch, largest=300)
    right = next(right for right in RIGHT if right.name == "module")
    claimed = Mutant(
        name="module",
        mistake="is right",
        function=lambda call, memory: call.by(right.function),
    )
    assert not is_found(claimed, "float32")


def test_a_mutant_of_a_remark_is_found_by_a_remark_of_that_kind_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_small_catalogue(monkeypatch, largest=300)
    mutant = named("eps_of_1e_12_by_default")
    assert mutant.remark is RemarkKind.DEFAULT_EPS
    assert is_found(mutant, "float32")
    assert not is_found(replace(mutant, remark=RemarkKind.PROMOTES), "float32")
    assert not is_found(replace(mutant, remark=None), "float32")


def test_the_self_test_passes_if_all_is_found_and_nothing_rejected() -> None:
    found, missed = (
        MutantResult(name="no_root", mistake="divides", dtype="float32", is_found=is_found)
        for is_found in (True, False)
    )
    assert SelfTest(mutants=(found, found), rejected=()).passed
    assert not SelfTest(mutants=(), rejected=()).passed
    assert not SelfTest(mutants=(found, missed), rejected=()).passed
    assert not SelfTest(mutants=(found,), rejected=("module",)).passed


def in_one_dtype(dtype: str, target: Implementation, **options: Any) -> Verdict:
    return verify(target, **options | {"dtypes": (dtype,)})


def test_the_self_test_tries_every_mutant_and_every_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_small_catalogue(monkeypatch, largest=300)
    mutant, right = WRONG[0], RIGHT[0]
    monkeypatch.setattr(self_test, "WRONG", (mutant,))
    monkeypatch.setattr(self_test, "RIGHT", (right,))
    # one dtype instead of four: this test is about the lists
    monkeypatch.setattr(self_test, "verify", partial(in_one_dtype, "float32"))
    lines: list[str] = []
    result = run_self_test(lines.append)
    assert result.passed
    assert [row.dtype for row in result.mutants] == [
        dtype for dtype in DTYPES if dtype in mutant.dtypes
    ]
    assert [line.partition("]")[0] for line in lines] == ["[1/2", "[2/2"]


def test_the_self_test_fails_where_a_right_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Implementation(name="wrong", function=WRONG[0].fresh(), source="")
    monkeypatch.setattr(self_test, "WRONG", ())
    monkeypatch.setattr(self_test, "RIGHT", (wrong,))
    result = run_self_test()
    assert result.rejected == ("wrong",)
    assert not result.passed
