"""Mutants are wrong as they say and right elsewhere; the self-test asks the verifier for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from factories.small_catalogue import use_small_catalogue

from harness.mutants import CONDITIONS, RIGHT, WRONG, Mutant, gradient, layer_norm_of, named
from harness.mutants.mutant import mutants_in
from harness.records import Case, Direction, RemarkKind, Status
from harness.run.attempt import attempt
from harness.run.integrity import process_state_restored
from harness.verify import (
    DTYPES,
    MutantResult,
    SelfTest,
    Verdict,
    is_found,
    run_self_test,
    self_test,
    verify,
)
from implementations import Implementation, adopt

BACKWARD = Case(implementation="", shape=(6, 40), direction=Direction.BACKWARD)


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Try few small cases, and undo what the mutants that change the process have changed."""
    use_small_catalogue(monkeypatch, largest=300, one_in=10)
    with process_state_restored():
        yield


# --- the self-test; `verify --self-test` asks for all of them, in every dtype --------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("unbiased_variance", "float32"),
        ("statistics_in_bfloat16", "bfloat16"),  # inaccurate
        ("parameters_in_bfloat16", "bfloat16"),  # rounded again
        ("vector_tail_dropped", "bfloat16"),
        ("dx_without_projection", "float32"),
        ("second_derivative_of_constant_statistics", "float32"),  # a remark
        ("statistics_of_the_latest_forward", "float16"),
        ("one_of_two_buffers", "float32"),
        ("weight_once_trained", "bfloat16"),
        ("random_numbers_seeded", "float16"),
        ("default_dtype_left_wide", "float16"),
        ("frozen_weight_stops_dx", "float32"),
        ("output_buffer_reused_for_long_rows", "bfloat16"),
    ],
)
def test_a_mistake_of_each_kind_is_found(name: str, dtype: str) -> None:
    assert is_found(named(name), dtype)


# rows of one element have a variance all the same
@pytest.mark.filterwarnings(r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("rows_in_portions", "float64"),
        ("columns_first", "float32"),
        ("batch_norm_of_rows", "bfloat16"),
    ],
)
def test_a_right_one_written_in_an_unusual_way_has_no_finding(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_catalogue(monkeypatch, largest=30_000, one_in=6)
    right = next(right for right in RIGHT if right.name == name)
    verdict = verify(right, quick=True, dtypes=(dtype,), fail_fast=True)
    assert verdict.passed
    assert (verdict.failures, verdict.violations, verdict.remarks) == ((), (), ())


@pytest.mark.parametrize(
    "changes", [{"remark": RemarkKind.PROMOTES}, {"remark": None}], ids=["other remark", "mistake"]
)
def test_a_mutant_is_found_by_the_finding_that_it_declares_alone(changes: dict[str, Any]) -> None:
    mutant = named("eps_of_1e_12_by_default")
    assert mutant.remark is RemarkKind.DEFAULT_EPS
    assert not is_found(replace(mutant, **changes), "bfloat16")


@pytest.mark.parametrize(
    ("found", "rejected", "passes"),
    [
        ((True, True), (), True),
        ((), (), False),
        ((True, False), (), False),
        ((True,), ("module",), False),
    ],
)
def test_the_self_test_passes_if_all_is_found_and_nothing_rejected(
    found: tuple[bool, ...], rejected: tuple[str, ...], passes: bool
) -> None:
    results = tuple(
        MutantResult(name="no_root", mistake="divides", dtype="float32", is_found=each)
        for each in found
    )
    assert SelfTest(mutants=results, rejected=rejected).passed is passes


def in_one_dtype(dtype: str, target: Implementation, **options: Any) -> Verdict:
    return verify(target, **options | {"dtypes": (dtype,)})


def test_the_self_test_tries_every_mutant_in_its_dtypes_and_rejects_what_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant, right = WRONG[0], RIGHT[0]
    wrong = Implementation(name="wrong", function=mutant.fresh(), source="")
    monkeypatch.setattr(self_test, "WRONG", (mutant,))
    monkeypatch.setattr(self_test, "RIGHT", (right, wrong))
    # one dtype instead of four: this test is about the lists
    monkeypatch.setattr(self_test, "verify", partial(in_one_dtype, "float32"))
    lines: list[str] = []
    result = run_self_test(lines.append)
    assert [row.dtype for row in result.mutants] == [
        dtype for dtype in DTYPES if dtype in mutant.dtypes
    ]
    assert all(row.is_found and row.mistake == mutant.sentence for row in result.mutants)
    assert result.rejected == ("wrong",)
    assert [line.partition("]")[0] for line in lines] == ["[1/3", "[2/3", "[3/3"]


# --- mutants ------------------------------------------------------------------------------------


def test_every_mutant_is_listed_once_and_says_what_its_mistake_is() -> None:
    listed = [known.name for known in (*WRONG, *RIGHT)]
    assert len(listed) == len({*listed}) > 190
    assert len({mutant.sentence for mutant in WRONG}) == len(WRONG)
    for mutant in WRONG:
        assert mutant.mistake[0].islower()
        assert not mutant.mistake.endswith(".")
        assert mutant.dtypes
        assert mutant.dtypes <= {*DTYPES}


def test_a_fresh_mutant_remembers_nothing() -> None:
    mutant = named("output_of_the_first_call")
    first, second = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).unbind()
    used = mutant.fresh()
    once = used(first, (8,))
    assert torch.equal(used(second, (8,)), once)
    assert not torch.equal(mutant.fresh()(second, (8,)), once)


FORWARD = replace(BACKWARD, direction=Direction.FORWARD)
LAYOUTS = [replace(BACKWARD, layout=name) for name in ("contiguous", "transposed", "padded_rows")]
# the mutants of a backward alone, and those that are wrong in inference alone, where they are right
RIGHT_THERE = [
    *((mutant, FORWARD) for mutant in mutants_in(gradient)),
    *(
        (mutant, case)
        for mutant in WRONG
        if mutant.name.endswith("_in_inference")
        for case in LAYOUTS
    ),
]


@pytest.mark.parametrize(
    ("mutant", "case"), RIGHT_THERE, ids=lambda value: getattr(value, "layout", None) or value.name
)
def test_a_mutant_is_right_where_its_mistake_is_not_made(mutant: Mutant, case: Case) -> None:
    assert attempt(adopt(mutant.fresh(), mutant.name), case).status is Status.OK


WRONG_HERE = replace(BACKWARD, layout="transposed")


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (WRONG_HERE, Status.WRONG),
        (BACKWARD, Status.OK),
        (replace(WRONG_HERE, shape=(6, 32)), Status.OK),
        (replace(WRONG_HERE, grad_output="nan_row"), Status.OK),
    ],
)
def test_a_mutant_under_conditions_is_wrong_where_all_hold(case: Case, status: Status) -> None:
    texts = {"N > 32", "x is not contiguous", "dy is finite"}
    trigger = tuple(condition for condition in CONDITIONS if condition.text in texts)
    assert len(trigger) == len(texts)
    target = adopt(replace(named("dbias_zero"), where=trigger).fresh(), "target")
    assert attempt(target, case).status is status


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "case", [BACKWARD, replace(BACKWARD, shape=(200, 3, 5), layout="padded_rows")]
)
def test_what_most_mutants_change_is_right(case: Case, dtype: str) -> None:
    unchanged = adopt(layer_norm_of(lambda rows: rows.y), "unchanged")
    assert attempt(unchanged, replace(case, dtype=dtype, param_dtype=dtype)).status is Status.OK
