"""What declares nothing and adds up one element after the other is right, and told what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import running_sums
import torch
from torch import Tensor, nn

from harness.records import Case, Status
from harness.verify import undeclared, verify, verify_case
from harness.verify.findings import RemarkKind
from harness.verify.mutants import RIGHT, WRONG
from harness.verify.result import Verdict
from harness.verify.trial import try_case
from implementations import Algorithm, Implementation, Reduction, adopt, implementation

CASE = Case(implementation="implementation", shape=(3, 1000), distribution="constant")
PLAIN = adopt(running_sums.two_passes, "plain")
CLAIMS = undeclared.running_sums(PLAIN)
TWO_PASS = {"source": "", "algorithm": Algorithm.TWO_PASS}

# rows of one element have a variance all the same
pytestmark = pytest.mark.filterwarnings(
    r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning"
)


def quick(target: Any, *dtypes: str, **options: Any) -> Verdict:
    return verify(target, quick=True, dtypes=dtypes or ("float32",), **options)


def then(change: Callable[[Tensor], Tensor]) -> Implementation:
    """A plain loop whose result is changed."""
    return adopt(lambda *arguments: change(running_sums.two_passes(*arguments)), "changed")


# --- the verdict ---------------------------------------------------------------------------------


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
    verdict = quick(function, dtype)
    assert verdict.passed
    assert verdict.failures == verdict.suspects == ()
    assert verdict.running_sums is not None
    assert verdict.running_sums.algorithm == algorithm
    assert verdict.running_sums.dtypes == (dtype,)
    assert 0 < verdict.running_sums.cases < verdict.ok
    assert verdict.cases == verdict.ok + verdict.out_of_guarantee


def test_it_is_remarked_that_it_is_less_accurate() -> None:
    verdict = quick(running_sums.two_passes)
    assert [each.kind for each in verdict.remarks] == [RemarkKind.LESS_ACCURATE]
    assert verdict.remarks[0].dtypes == ("float32",)


@pytest.mark.parametrize(
    "right",
    [each for each in RIGHT if each.reduction is Reduction.SEQUENTIAL],
    ids=lambda each: each.name,
)
def test_a_right_one_need_not_declare_its_sums(right: Implementation) -> None:
    silent = adopt(right.function, right.name)
    assert quick(silent, "float32", "float64", fail_fast=True).passed


def test_what_keeps_the_first_bound_is_not_called_less_accurate() -> None:
    verdict = quick(adopt(torch.nn.functional.layer_norm, "undeclared"))
    assert verdict.running_sums is None
    assert verdict.remarks == ()


# --- declared ------------------------------------------------------------------------------------


def test_what_is_declared_is_held_to_it() -> None:
    honest = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(running_sums.two_passes)
    verdict = quick(honest)
    assert verdict.passed
    assert verdict.running_sums is None


def test_what_declares_trees_is_not_excused() -> None:
    verdict = quick(implementation(**TWO_PASS)(running_sums.two_passes), fail_fast=True)
    assert verdict.failed
    assert verdict.running_sums is None


def test_a_module_class_can_declare_too() -> None:
    declared = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(nn.LayerNorm)
    found = adopt(declared, "mine")
    assert (found.name, found.reduction) == ("LayerNorm", Reduction.SEQUENTIAL)
    assert found.declared
    assert verify_case(declared, (3, 8)).status is Status.OK


# --- nothing else is excused ---------------------------------------------------------------------


def test_a_mistake_beside_running_sums_is_found_and_these_are_not_praised() -> None:
    verdict = quick(then(lambda y: y * (1 + 2**-8)), fail_fast=True)
    assert not verdict.passed
    assert verdict.running_sums is None


def test_a_dtype_is_excused_by_itself() -> None:
    spoilt = then(lambda y: y * (1 + 2**-8) if y.dtype is torch.float64 else y)
    verdict = quick(spoilt, "float32", "float64", fail_fast=True)
    assert not verdict.passed
    assert {each.case.dtype for each in verdict.failures} == {"float64"}
    assert verdict.running_sums is not None
    assert verdict.running_sums.dtypes == ("float32",)
    assert [each.failed for each in verdict.counts] == [0, verdict.failed]


def test_failing_fast_goes_on_where_running_sums_explain() -> None:
    assert quick(running_sums.two_passes, fail_fast=True).passed


def test_running_sums_do_not_explain_nan() -> None:
    def spoil(y: Tensor) -> Tensor:
        return torch.where(torch.arange(y.shape[-1]) == 0, float("nan"), y)

    assert set(try_case(PLAIN, CASE, CLAIMS).again) == {Algorithm.TWO_PASS, Algorithm.WELFORD}
    assert try_case(then(spoil), CASE, CLAIMS).again == {}


def test_running_sums_do_not_explain_what_raises() -> None:
    verdict = quick(then(lambda y: y if y.shape != (3, 1000) else y[:, :0]), fail_fast=True)
    assert not verdict.passed
    assert verdict.running_sums is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_count_in_float16_is_not_excused(dtype: str) -> None:
    # 4097 elements counted as 4096 are within what 4097 roundings may come to
    counting = next(each for each in WRONG if each.name == "count_in_float16")
    assert not quick(adopt(counting.fresh(), "counting"), dtype, fail_fast=True).passed
