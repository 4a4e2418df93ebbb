"""Mutants are wrong as they say and right elsewhere; the self-test asks the verifier for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import quick

from harness.mutants import CONDITIONS, RIGHT, WRONG, Mutant, gradient, layer_norm_of, named
from harness.records import RemarkKind, Status
from harness.records.finding import OF_NATIVE
from harness.verify import (
    DTYPES,
    MutantResult,
    SelfTest,
    Verdict,
    is_found,
    run_self_test,
    self_test,
    verify,
    verify_case,
)
from implementations import Implementation, adopt


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try few small cases alone."""
    use_small_catalogue(monkeypatch, largest=300, one_in=10, contract=False, source=False)


# --- the self-test; `verify --self-test` asks for all of them, in every dtype --------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("unbiased_variance", "float32"),
        ("statistics_in_bfloat16", "bfloat16"),  # inaccurate
        ("eps_of_1e_12_by_default", "float32"),  # a remark
    ],
)
def test_a_mistake_of_each_kind_is_found(name: str, dtype: str) -> None:
    assert is_found(named(name), dtype)


def test_a_right_one_written_in_an_unusual_way_has_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_small_catalogue(monkeypatch, largest=3000, one_in=6, source=False)
    right = next(right for right in RIGHT if right.name == "batch_norm_of_rows")
    verdict = quick(right, "bfloat16", fail_fast=True)
    assert verdict.passed
    assert [own for own in verdict.findings if own.kind not in OF_NATIVE] == []


def test_a_mutant_is_found_by_the_finding_that_it_declares_alone() -> None:
    mutant = named("eps_of_1e_12_by_default")
    assert not is_found(replace(mutant, remark=RemarkKind.PROMOTES), "float32")


def test_the_self_test_passes_if_all_is_found_and_nothing_rejected() -> None:
    row = partial(MutantResult, name="no_root", mistake="divides", dtype="float32")
    found, missed = row(is_found=True), row(is_found=False)
    assert SelfTest(mutants=(found, found), rejected=()).passed
    assert not SelfTest(mutants=(found, found), rejected=("module",)).passed
    assert not SelfTest(mutants=(found, missed), rejected=()).passed


def test_the_self_test_tries_every_mutant_in_its_dtypes_and_rejects_what_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant, right = WRONG[0], RIGHT[0]
    wrong = Implementation(name="wrong", function=mutant.fresh(), source="")

    # one dtype instead of four: this test is about the lists
    def in_one_dtype(target: Implementation, **options: Any) -> Verdict:
        return verify(target, **options | {"dtypes": ("float32",)})

    monkeypatch.setattr(self_test, "WRONG", (mutant,))
    monkeypatch.setattr(self_test, "RIGHT", (right, wrong))
    monkeypatch.setattr(self_test, "verify", in_one_dtype)
    lines: list[str] = []
    result = run_self_test(lines.append)
    assert [row.dtype for row in result.mutants] == [own for own in DTYPES if own in mutant.dtypes]
    assert all(row.is_found for row in result.mutants)
    assert result.rejected == ("wrong",)
    assert [line.partition("]")[0] for line in lines] == ["[1/3", "[2/3", "[3/3"]


# --- mutants -------------------------------------------------------------------------------------


def test_every_mutant_is_listed_once_and_says_what_its_mistake_is() -> None:
    listed = [known.name for known in (*WRONG, *RIGHT)]
    assert len(listed) == len({*listed}) > 190
    assert len({mutant.sentence for mutant in WRONG}) == len(WRONG)
    assert all({*DTYPES} >= mutant.dtypes > set() for mutant in WRONG)


def status_of(mutant: Mutant, **axes: Any) -> Status:
    shape = axes.pop("shape", (6, 40))
    return verify_case(adopt(mutant.fresh(), mutant.name), shape, **axes).status


def test_a_mutant_is_right_where_its_mistake_is_not_made() -> None:
    of_a_backward = [mutant for mutant in WRONG if mutant.name in vars(gradient)]
    of_inference = [mutant for mutant in WRONG if mutant.name.endswith("_in_inference")]
    assert min(len(of_a_backward), len(of_inference)) > 4
    statuses = {own.name: status_of(own) for own in of_a_backward}
    statuses |= {own.name: status_of(own, direction="backward") for own in of_inference}
    assert {name: found for name, found in statuses.items() if found is not Status.OK} == {}


@pytest.mark.parametrize(
    ("axes", "status"),
    [
        ({}, Status.WRONG),
        ({"layout": "contiguous"}, Status.OK),
        ({"shape": (6, 32)}, Status.OK),
    ],
)
def test_a_mutant_under_conditions_is_wrong_where_all_hold(
    axes: dict[str, Any], status: Status
) -> None:
    texts = {"N > 32", "x is not contiguous"}
    trigger = tuple(condition for condition in CONDITIONS if condition.text in texts)
    mutant = replace(named("dbias_zero"), where=trigger)
    assert status_of(mutant, **{"direction": "backward", "layout": "transposed"} | axes) is status


def test_what_most_mutants_change_is_right() -> None:
    axes = {"direction": "backward", "dtype": "bfloat16", "param_dtype": "bfloat16"}
    unchanged = layer_norm_of(lambda rows: rows.y)
    assert verify_case(unchanged, (200, 3, 5), layout="padded_rows", **axes).status is Status.OK
