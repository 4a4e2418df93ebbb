"""Running sums in a target that declares nothing are right, and a remark says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import running_sums
import torch
from small_catalogue import use_small_catalogue
from torch import Tensor, nn

from harness.mutants import RIGHT, WRONG
from harness.numerics.bounds import error_bound_of
from harness.records import Case, Status
from harness.records.finding import RemarkKind
from harness.run.attempt import Judged, attempt
from harness.verify import verify, verify_case
from harness.verify.case_results import (
    CaseResults,
    declared_bound,
    explanations,
    running_sum_declarations,
)
from harness.verify.result import Verdict
from implementations import Algorithm, Implementation, Reduction, adopt, implementation

CASE = Case(implementation="target", shape=(3, 1000), distribution="constant")
PLAIN = adopt(running_sums.two_passes, "plain")
TWO_PASS = {"source": "", "algorithm": Algorithm.TWO_PASS}

# torch warns of a variance over one element
pytestmark = pytest.mark.filterwarnings(
    r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning"
)


@pytest.fixture(autouse=True)
def small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """All small cases: running sums exceed the bound of trees in few of them."""
    use_small_catalogue(monkeypatch, largest=4100, one_in=1)


def quick(target: Any, *dtypes: str) -> Verdict:
    return verify(target, quick=True, dtypes=dtypes or ("float32",), fail_fast=True)


def then(change: Callable[[Tensor], Tensor]) -> Implementation:
    """A plain loop whose result is changed."""
    return adopt(lambda *arguments: change(running_sums.two_passes(*arguments)), "changed")


def judged(target: Implementation, case: Case = CASE) -> Judged:
    return attempt(target, case)


def explained_by(trial: Judged, target: Implementation) -> dict[Algorithm, Judged]:
    return explanations(trial, running_sum_declarations(target))


def test_a_plain_running_sum_is_a_layer_norm() -> None:
    verdict = quick(running_sums.two_passes)
    assert verdict.passed
    assert verdict.failures == ()
    assert [(each.kind, each.dtypes) for each in verdict.remarks] == [
        (RemarkKind.LESS_ACCURATE, ("float32",))
    ]
    assert verdict.bound == "two_pass by running sums"
    assert verdict.cases == verdict.ok + verdict.out_of_guarantee


@pytest.mark.parametrize(
    "right",
    [each for each in RIGHT if each.reduction is Reduction.SEQUENTIAL],
    ids=lambda each: each.name,
)
def test_a_right_target_need_not_declare_its_sums(right: Implementation) -> None:
    assert quick(adopt(right.function, right.name)).passed


def test_declared_trees_are_not_excused() -> None:
    verdict = quick(implementation(**TWO_PASS)(running_sums.two_passes))
    assert verdict.failed
    assert verdict.bound == "two_pass"


def test_a_module_class_can_declare() -> None:
    declared = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(nn.LayerNorm)
    found = adopt(declared, "mine")
    assert (found.name, found.reduction) == ("LayerNorm", Reduction.SEQUENTIAL)
    assert found.declared
    assert verify_case(declared, (3, 8)).status is Status.OK


def test_a_mistake_besides_running_sums_is_found() -> None:
    verdict = quick(then(lambda y: y * (1 + 2**-8)))
    assert not verdict.passed
    assert verdict.bound == "welford"


def test_running_sums_explain_rounding() -> None:
    assert set(explained_by(judged(PLAIN), PLAIN)) == {Algorithm.TWO_PASS, Algorithm.WELFORD}


@pytest.mark.parametrize(
    "change",
    [
        lambda y: torch.where(torch.arange(y.shape[-1]) == 0, float("nan"), y),
        lambda y: y[:, :0],
    ],
    ids=["NaN", "shape"],
)
def test_running_sums_do_not_explain_nan_or_a_wrong_shape(
    change: Callable[[Tensor], Tensor],
) -> None:
    target = then(change)
    trial = judged(target)
    assert (trial.status, explained_by(trial, target)) == (Status.WRONG, {})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_count_in_float16_is_not_explained(dtype: str) -> None:
    # counting 4097 elements as 4096 is within the bound of 4097 roundings
    counting = next(each for each in WRONG if each.name == "count_in_float16")
    case = replace(CASE, shape=(3, 4097), distribution="normal", dtype=dtype, param_dtype=dtype)
    target = adopt(counting.fresh(), "counting")
    trial = judged(target, case)
    assert (trial.status, explained_by(trial, target)) == (Status.WRONG, {})


# of rows so long that running sums guarantee no digit there, and tree sums do
LONG = replace(CASE, shape=(4, 4097), distribution="offset_1e4")


@pytest.mark.parametrize("function", [running_sums.two_passes, running_sums.welford])
def test_running_sums_without_a_digit_left_are_explained(function: Callable[..., Tensor]) -> None:
    target = adopt(function, "plain")
    trial = judged(target, LONG)
    assert trial.status is Status.OK or Algorithm.TWO_PASS in explained_by(trial, target)


def test_an_infinite_bound_explains_nothing() -> None:
    clamped = next(each for each in WRONG if each.name == "one_pass_clamped")
    target = adopt(clamped.fresh(), "clamped")
    trial = judged(target, LONG)
    assert (trial.status, explained_by(trial, target)) == (Status.WRONG, {})
    looser = declared_bound(running_sum_declarations(PLAIN)[-1], LONG)
    assert looser.algorithm is Algorithm.WELFORD
    assert looser.condition_limit(4097) < 1e4 < error_bound_of(PLAIN, LONG).condition_limit(4097)


def test_different_declarations_may_explain_different_cases() -> None:
    state = CaseResults(declarations=running_sum_declarations(PLAIN))
    trial = judged(PLAIN)
    again = explained_by(trial, PLAIN)
    for seed, algorithm in enumerate((Algorithm.TWO_PASS, Algorithm.WELFORD)):
        case = replace(trial.case, seed=seed)
        state.add(replace(trial, case=case), "")
        state.again[case] = {algorithm: again[algorithm]}
    assert state.unexplained == []
    assert state.declaration_for(PLAIN, "float32").algorithm is Algorithm.WELFORD
