"""What is right, inaccurate or wrong: the line between the three, shown by functions.

Running sums, sums over the rows in half precision, and statistics in a narrower dtype are
inaccurate; what is only rounded again is right; a mistake beside any of them is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories import running_sums
from factories.small_catalogue import use_small_catalogue
from torch import Tensor, nn

from harness.mutants import WRONG
from harness.numerics.inaccuracy import Inaccuracy
from harness.records import Case, Direction, Severity, Status
from harness.run.attempt import Judged, attempt
from harness.verify import Outcome, Verdict, verify, verify_case
from implementations import Algorithm, Implementation, Reduction, adopt, implementation

CASE = Case(implementation="target", shape=(3, 1000), distribution="constant")
# of rows so long that running sums have no finite bound there, and tree sums do
LONG = replace(CASE, shape=(4, 4097), distribution="offset_1e4")
OFFSET = replace(CASE, shape=(64, 768), distribution="offset_1e3")
HALF = replace(
    CASE,
    shape=(300, 24),
    distribution="normal",
    dtype="bfloat16",
    param_dtype="bfloat16",
    direction=Direction.BACKWARD,
)
TWO_PASS = {"source": "", "algorithm": Algorithm.TWO_PASS}

# torch warns of a variance over one element
pytestmark = pytest.mark.filterwarnings(
    r"ignore:var_mean\(\). degrees of freedom is <= 0:UserWarning"
)


def mutant(name: str) -> Implementation:
    return adopt(next(own for own in WRONG if own.name == name).fresh(), name)


def then(change: Callable[[Tensor], Tensor]) -> Implementation:
    """A plain loop whose result is changed."""
    return adopt(lambda *arguments: change(running_sums.two_passes(*arguments)), "changed")


def judged(target: Any, case: Case = CASE, **changes: Any) -> Judged:
    target = target if isinstance(target, Implementation) else adopt(target, "target")
    return attempt(target, replace(case, **changes))


def quick(monkeypatch: pytest.MonkeyPatch, target: Any) -> Verdict:
    """Verify on all small cases: running sums exceed the bound of trees in few of them."""
    use_small_catalogue(monkeypatch, largest=4100, one_in=1)
    return verify(target, quick=True, dtypes=("float32",), fail_fast=True)


def in_two_paths(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    """x is converted twice: its two gradients meet in half precision."""
    mean = x.float().mean(-1, keepdim=True)
    deviation = x.float() - mean
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    normalised = ((x.float() - mean) * rstd).to(x.dtype)
    return normalised * weight + bias


@pytest.mark.parametrize(
    ("target", "case", "status", "kind"),
    [
        (running_sums.two_passes, CASE, Status.INACCURATE, Inaccuracy.RUNNING_SUMS),
        (running_sums.two_passes, LONG, Status.INACCURATE, Inaccuracy.RUNNING_SUMS),
        ("native", HALF, Status.INACCURATE, Inaccuracy.COLUMN_SUMS),
        (mutant("dbias_summed_in_bfloat16"), HALF, Status.INACCURATE, Inaccuracy.COLUMN_SUMS),
        (
            mutant("everything_in_input_dtype"),
            replace(HALF, distribution="offset_1e1"),
            Status.INACCURATE,
            Inaccuracy.STATISTICS,
        ),
        (
            mutant("float64_in_float32"),
            replace(CASE, distribution="normal", dtype="float64", param_dtype="float64"),
            Status.INACCURATE,
            Inaccuracy.STATISTICS,
        ),
        (in_two_paths, HALF, Status.OK, Inaccuracy.ROUNDED_AGAIN),
        (mutant("normalised_in_bfloat16"), HALF, Status.OK, Inaccuracy.ROUNDED_AGAIN),
        (mutant("unbiased_variance"), HALF, Status.WRONG, None),
        (mutant("one_pass_clamped"), LONG, Status.WRONG, None),
        (mutant("one_pass_in_disguise"), OFFSET, Status.WRONG, None),
        (
            mutant("one_pass_in_disguise"),
            replace(OFFSET, distribution="offset_1e2", dtype="float64", param_dtype="float64"),
            Status.WRONG,
            None,
        ),
        (mutant("dweight_averaged"), HALF, Status.WRONG, None),
    ],
)
def test_the_line_between_right_inaccurate_and_wrong(
    target: Any, case: Case, status: Status, kind: Inaccuracy | None
) -> None:
    from implementations import find

    found = judged(find(target) if isinstance(target, str) else target, case)
    strictest = {*found.explained_by.values()}
    assert found.status is status, found.reason
    assert kind in strictest if kind else not strictest
    assert bool(found.reason) is (status is not Status.OK or kind is not None)


def test_a_plain_running_sum_is_inaccurate(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = quick(monkeypatch, running_sums.two_passes)
    assert verdict.outcome is Outcome.INACCURATE
    assert verdict.failures == ()
    (finding,) = verdict.of(Severity.INACCURATE)
    assert (finding.kind, finding.dtypes) == (Inaccuracy.RUNNING_SUMS, ("float32",))
    assert verdict.cases == sum(own.answered for own in verdict.counts)


def test_declared_running_sums_are_right() -> None:
    declared = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(running_sums.two_passes)
    assert judged(declared).status is Status.OK
    in_trees = implementation(**TWO_PASS)(running_sums.two_passes)
    assert judged(in_trees).status is Status.INACCURATE


def test_a_module_class_can_declare() -> None:
    declared = implementation(**TWO_PASS, reduction=Reduction.SEQUENTIAL)(nn.LayerNorm)
    found = adopt(declared, "mine")
    assert (found.name, found.reduction) == ("LayerNorm", Reduction.SEQUENTIAL)
    assert found.declared
    assert verify_case(declared, (3, 8)).status is Status.OK


@pytest.mark.parametrize(
    "change",
    [
        lambda y: torch.where(torch.arange(y.shape[-1]) == 0, float("nan"), y),
        lambda y: y[:, :0],
        lambda y: y * (1 + 2**-8) + 2**-8,
    ],
    ids=["NaN", "shape", "scale"],
)
def test_a_mistake_besides_running_sums_is_wrong(change: Callable[[Tensor], Tensor]) -> None:
    found = judged(then(change), distribution="normal")
    assert (found.status, found.explained_by) == (Status.WRONG, {})


def test_a_count_in_float16_is_not_explained() -> None:
    # counting 4097 elements as 4096 is within the bound of 4097 roundings
    counted = judged(mutant("count_in_float16"), shape=(3, 4097), distribution="normal")
    assert (counted.status, counted.explained_by) == (Status.WRONG, {})
