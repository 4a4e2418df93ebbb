"""Running sums in a target that declares nothing are right, and a remark says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import running_sums
import torch
from torch import Tensor, nn

from harness.records import Case, Status
from harness.verify import verify, verify_case
from harness.verify.findings import RemarkKind
from harness.verify.mutants import RIGHT, WRONG
from harness.verify.result import Verdict
from harness.verify.running_sums import running_sum_claims
from harness.verify.trial import try_case
from implementations import Algorithm, Implementation, Reduction, adopt, implementation

CASE = Case(implementation="target", shape=(3, 1000), distribution="constant")
PLAIN = adopt(running_sums.two_passes, "plain")
CLAIMS = running_sum_claims(PLAIN)
TWO_PASS = {"source": "", "algorithm": Algorithm.TWO_PASS}

# torch warns of a variance over one element
pytestmark = pytest.mark.filterwarnings(
    r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning"
)


def quick(target: Any, *dtypes: str, **options: Any) -> Verdict:
    return verify(target, quick=True, dtypes=dtypes or ("float32",), **options)


def then(change: Callable[[Tensor], Tensor]) -> Implementation:
    """A plain loop whose result is changed."""
    return adopt(lambda *arguments: change(running_sums.two_passes(*arguments)), "changed")


@pytest.mark.parametrize(
    ("function", "dtype", "algorithm"),
    [
        (running_sums.two_passes, "float32", "two_pass"),
        (running_sums.two_passes, "float64", "two_pass"),
        (running_sums.welford, "float64", "welford"),
    ],
)
def test_a_plain_running_sum_is_a_layer_norm(
    function: Callable[..., Tensor], dtype: str, algorithm: str
) -> None:
    verdict = quick(function, dtype, fail_fast=True)
    assert verdict.passed
    assert verdict.failures == ()
    assert [(each.kind, each.dtypes) for each in verdict.remarks] == [
        (RemarkKind.LESS_ACCURATE, (dtype,))
    ]
    assert verdict.running_sums is not None
    assert verdict.running_sums.algorithm == algorithm
    assert verdict.running_sums.dtypes == (dtype,)
    assert 0 < verdict.running_sums.cases < verdict.ok
    assert verdict.cases == verdict.ok + verdict.out_of_guarantee


@pytest.mark.parametrize(
    "right",
    [each for each in RIGHT if each.reduction is Reduction.SEQUENTIAL],
    ids=lambda each: each.name,
)
def test_a_right_target_need_not_declare_its_sums(right: Implementation) -> None:
    silent = adopt(right.function, right.name)
    assert quick(silent, fail_fast=True).passed


def test_a_target_within_the_first_bound_gets_no_remark() -> None:
    verdict = quick(adopt(torch.nn.functional.layer_norm, "undeclared"), fail_fast=True)
    assert verdict.running_sums is None
    assert verdict.remarks == ()


def test_declared_running_sums_are_held_to_their_bound() -> None:
    honest = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(running_sums.two_passes)
    verdict = quick(honest, fail_fast=True)
    assert verdict.passed
    assert verdict.running_sums is None


def test_declared_trees_are_not_excused() -> None:
    verdict = quick(implementation(**TWO_PASS)(running_sums.two_passes), fail_fast=True)
    assert verdict.failed
    assert verdict.running_sums is None


def test_a_module_class_can_declare() -> None:
    declared = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(nn.LayerNorm)
    found = adopt(declared, "mine")
    assert (found.name, found.reduction) == ("LayerNorm", Reduction.SEQUENTIAL)
    assert found.declared
    assert verify_case(declared, (3, 8)).status is Status.OK


def test_a_mistake_besides_running_sums_is_found() -> None:
    verdict = quick(then(lambda y: y * (1 + 2**-8)), fail_fast=True)
    assert not verdict.passed
    assert verdict.running_sums is None


def test_each_dtype_is_explained_by_itself() -> None:
    spoilt = then(lambda y: y * (1 + 2**-8) if y.dtype is torch.float64 else y)
    verdict = quick(spoilt, "float32", "float64", fail_fast=True)
    assert not verdict.passed
    assert {each.case.dtype for each in verdict.failures} == {"float64"}
    assert verdict.running_sums is not None
    assert verdict.running_sums.dtypes == ("float32",)
    assert [each.failed for each in verdict.counts] == [0, verdict.failed]


def test_running_sums_do_not_explain_nan() -> None:
    def spoil(y: Tensor) -> Tensor:
        return torch.where(torch.arange(y.shape[-1]) == 0, float("nan"), y)

    assert set(try_case(PLAIN, CASE, CLAIMS).again) == {Algorithm.TWO_PASS, Algorithm.WELFORD}
    assert try_case(then(spoil), CASE, CLAIMS).again == {}


def test_running_sums_do_not_explain_a_wrong_shape() -> None:
    verdict = quick(then(lambda y: y if y.shape != (3, 1000) else y[:, :0]), fail_fast=True)
    assert not verdict.passed
    assert verdict.running_sums is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_count_in_float16_is_not_explained(dtype: str) -> None:
    # counting 4097 elements as 4096 is within the bound of 4097 roundings
    counting = next(each for each in WRONG if each.name == "count_in_float16")
    assert not quick(adopt(counting.fresh(), "counting"), dtype, fail_fast=True).passed
