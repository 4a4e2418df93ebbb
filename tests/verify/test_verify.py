"""What a verification finds, and the state of the process after it."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.small_catalogue import Plan
from factories.verify_targets import layer_norm, mutant, then
from torch import Tensor, nn

import implementations
from harness.records import Case, Direction, RemarkKind, Severity, Status
from harness.records.finding import OF_NATIVE
from harness.report.verdict import assert_layer_norm
from harness.verify import Outcome, Verdict, VerifyOptions, verify, verify_case, verify_target
from implementations import TargetError, UnsupportedError

pytestmark = pytest.mark.usefixtures("small_catalogue")

FORWARD = (Direction.FORWARD,)


def quick(target: Any, *dtypes: str, **options: Any) -> Verdict:
    return verify(target, quick=True, dtypes=dtypes or ("float32",), **options)


def watched(target: Any, on_case: Callable[[Case], None], **options: Any) -> Verdict:
    chosen = VerifyOptions(quick=True, dtypes=("float32",), **options)
    return verify_target(target, chosen, on_case=on_case)


UNBIASED = """
import math
import torch

def unbiased(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(-len(normalized_shape), 0))
    deviation = x - x.mean(axes, keepdim=True)
    count = max(math.prod(normalized_shape) - 1, 1)
    variance = deviation.square().sum(axes, keepdim=True) / count
    y = deviation * torch.rsqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
"""


@pytest.fixture(scope="module")
def unbiased(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file's function that divides the variance by N - 1."""
    path = tmp_path_factory.mktemp("unbiased") / "unbiased_variance.py"
    path.write_text(UNBIASED)
    return f"{path}:unbiased"


@pytest.fixture(scope="module")
def verdict_of_unbiased(small_catalogue: Plan, unbiased: str) -> Verdict:
    return quick(unbiased)


def test_the_numbers_of_a_verdict_add_up(small_catalogue: Plan) -> None:
    seen: list[Case] = []
    verdict = watched("one_pass", seen.append)
    planned = small_catalogue(implementations.find("one_pass"), 2, ("float32",), "cpu")
    assert verdict.passed
    assert verdict.out_of_guarantee > 0
    assert verdict.cases == verdict.ok + verdict.out_of_guarantee + verdict.failed
    assert verdict.cases + sum(finding.evidence[1] for finding in verdict.declined) == len(planned)
    assert {each.case for each in planned} <= {*seen}
    assert verdict.left == 0
    assert [(each.dtype, each.meets) for each in verdict.grades] == [("float32", "one_pass (tree)")]


def test_a_known_mistake_is_named(verdict_of_unbiased: Verdict) -> None:
    assert verdict_of_unbiased.outcome is Outcome.WRONG
    assert verdict_of_unbiased.failed > 0
    assert verdict_of_unbiased.of(Severity.CAUSE)[0].text.startswith("divides the variance by N-1")


def test_the_line_that_reproduces_a_failure_runs(verdict_of_unbiased: Verdict) -> None:
    assert verdict_of_unbiased.reproduce is not None
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(verdict_of_unbiased.reproduce, {})
    assert "Judged(" in output.getvalue()
    assert "'wrong'" in output.getvalue()


def test_failing_fast_stops_at_the_first_failure(
    unbiased: str, verdict_of_unbiased: Verdict
) -> None:
    verdict = quick(unbiased, fail_fast=True)
    assert not verdict.passed
    assert verdict.failed < verdict_of_unbiased.failed
    assert verdict.grades == verdict.of(Severity.CAUSE) == ()


def test_a_function_that_changes_after_many_calls_fails() -> None:
    calls = itertools.count()

    def tiring(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        return y if next(calls) < 120 else y + 1

    assert quick(tiring, fail_fast=True).is_wrong


@pytest.mark.parametrize(
    "result",
    [lambda y: (y, y), lambda y: y.detach().numpy(), lambda y: None, lambda y: y.flatten()],
    ids=["tuple", "array", "nothing", "flat"],
)
def test_a_result_that_is_not_a_tensor_like_x_fails(result: Callable[[Tensor], Tensor]) -> None:
    verdict = quick(then(result), fail_fast=True)
    assert verdict.failed
    assert "y " in verdict.failures[0].text


def test_nan_in_one_element_fails() -> None:
    def one_nan(y: Tensor) -> Tensor:
        spoiled = torch.zeros_like(y)
        if y.numel():
            spoiled.view(-1)[-1] = float("nan")
        return y + spoiled

    verdict = quick(then(one_nan), fail_fast=True)
    assert (verdict.ok, verdict.failed) == (0, 1)


@pytest.mark.parametrize("name", ["dx_without_projection", "detached"])
def test_a_wrong_backward_fails_only_with_gradients(name: str) -> None:
    assert quick(mutant(name), fail_fast=True).is_wrong
    seen: list[Case] = []
    assert watched(mutant(name), seen.append, directions=FORWARD, fail_fast=True).passed
    assert {each.direction for each in seen} == {Direction.FORWARD}


def raising(*arguments: Any) -> Tensor:
    raise RuntimeError("not today")


def declining(*arguments: Any) -> Tensor:
    raise UnsupportedError("not today")


@pytest.mark.parametrize(
    ("target", "reason"), [(declining, "not today"), (raising, "RuntimeError: not today")]
)
def test_a_target_that_always_raises_is_not_verified(
    target: Callable[..., Tensor], reason: str
) -> None:
    verdict = quick(target)
    assert (verdict.outcome, verdict.scope, verdict.cases) == (Outcome.NOT_VERIFIED, None, 0)
    assert reason in verdict.declined[0].text


@pytest.mark.parametrize("error", [TypeError("no halves"), KeyError(torch.float16)])
def test_a_dtype_that_always_raises_is_a_limit(error: Exception) -> None:
    def no_halves(x: Tensor, *others: Any) -> Tensor:
        if x.dtype is torch.float16:
            raise error
        return layer_norm(x, *others)

    verdict = quick(no_halves, "float32", "float16", fail_fast=True)
    assert verdict.passed
    assert [count.is_verified for count in verdict.counts] == [True, False]
    assert verdict.declined
    assert all("float16" in finding.evidence[0] for finding in verdict.declined)


def raising_for_31(error: Exception) -> Callable[..., Tensor]:
    def function(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 31:
            raise error
        return layer_norm(x, *others)

    return function


@pytest.mark.parametrize(
    ("error", "reason", "remarks"),
    [
        (UnsupportedError("not 31"), "not 31", []),
        (IndexError("thirty-one"), "IndexError: thirty-one", [RemarkKind.RAISES]),
    ],
)
def test_one_case_that_raises_is_a_limit_and_a_remark_unless_it_is_declared_unsupported(
    error: Exception, reason: str, remarks: list[RemarkKind]
) -> None:
    verdict = quick(raising_for_31(error), fail_fast=True)
    assert verdict.passed
    assert {finding.text for finding in verdict.declined} == {reason}
    assert [own.kind for own in verdict.remarks if own.kind not in OF_NATIVE] == remarks


def test_a_target_that_declines_most_cases_is_not_verified() -> None:
    def choosy(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] not in {32, 33}:
            raise UnsupportedError("32 and 33 alone")
        return layer_norm(x, *others)

    verdict = quick(choosy, fail_fast=True)
    assert verdict.outcome is Outcome.NOT_VERIFIED
    assert verdict.cases > 0


def test_assert_layer_norm_raises_for_a_remark_only_if_strict() -> None:
    target = raising_for_31(IndexError("thirty-one"))
    assert_layer_norm(target, quick=True, dtypes=("float32",), directions=FORWARD)
    with pytest.raises(AssertionError, match="IndexError: thirty-one"):
        assert_layer_norm(target, quick=True, dtypes=("float32",), directions=FORWARD, strict=True)


def test_assert_layer_norm_raises_for_a_target_that_always_raises() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not verified.*RuntimeError: not today"):
        assert_layer_norm(raising, quick=True, dtypes=("float32",))


@pytest.mark.parametrize(
    "target", ["native", "torch.nn:LayerNorm", implementations.native, nn.LayerNorm, layer_norm]
)
def test_targets_are_names_and_objects(target: Any) -> None:
    trial = verify_case(target, (3, 5), direction="backward")
    assert (trial.status, trial.case.direction) == (Status.OK, Direction.BACKWARD)


@pytest.mark.parametrize("target", ["nativ", "json:nope", "json:decoder", "gone.py:f", 3])
def test_a_target_that_names_nothing_or_cannot_be_called_is_refused(target: Any) -> None:
    with pytest.raises(TargetError):
        quick(target)


def test_one_case_of_a_target_that_always_raises_is_unsupported() -> None:
    trial = verify_case(raising, (3, 5))
    assert (trial.status, trial.errors) == (Status.UNSUPPORTED, None)
    assert "RuntimeError: not today" in trial.reason


def interrupt(case: Case) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("on_case", [lambda case: None, interrupt], ids=["ended", "interrupted"])
def test_the_number_of_threads_is_restored(on_case: Callable[[Case], None]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with contextlib.suppress(KeyboardInterrupt):
            watched(raising, on_case)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_gradients_are_verified_under_no_grad() -> None:
    with torch.no_grad():
        assert quick(layer_norm, fail_fast=True).passed
        assert not torch.is_grad_enabled()
