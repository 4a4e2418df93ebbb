"""What a verification finds, and the state of the process after it."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from verify_targets import layer_norm, mutant, then

import implementations
from harness.records import Affine, Case, Direction, Status
from harness.verify import assert_layer_norm, verify, verify_case
from harness.verify.cases.catalogue import QUICK, cases_of
from harness.verify.findings import Outcome, RemarkKind
from harness.verify.result import Verdict
from implementations import TargetError, UnsupportedError

FORWARD = (Direction.FORWARD,)


def quick(target: Any, *dtypes: str, **options: Any) -> Verdict:
    return verify(target, quick=True, dtypes=dtypes or ("float32",), **options)


UNBIASED = """
import torch


def unbiased(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    for each in (weight, bias):
        if each is not None and each.shape != tuple(normalized_shape):
            raise ValueError("wrong shape")
    if x.shape[x.dim() - len(normalized_shape) :] != tuple(normalized_shape):
        raise ValueError("wrong shape")
    axes = tuple(range(-len(normalized_shape), 0))
    deviation = x - x.mean(axes, keepdim=True)
    count = max(x.shape[x.dim() - len(normalized_shape) :].numel() - 1, 1)
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
def verdict_of_unbiased(unbiased: str) -> Verdict:
    return quick(unbiased)


def test_a_right_implementation_passes() -> None:
    verdict = quick("two_pass")
    assert verdict.passed
    assert verdict.failures == ()
    assert verdict.suspects == ()
    assert verdict.reproduce is None
    assert verdict.outcome is Outcome.LAYER_NORM


def test_a_plain_function_passes() -> None:
    verdict = quick(layer_norm, "float32", "float64")
    assert verdict.passed
    assert {each.dtype for each in verdict.grades} == {"float32", "float64"}


def test_the_numbers_of_a_verdict_add_up() -> None:
    seen: list[Case] = []
    verdict = quick("one_pass", on_case=seen.append)
    listed = [
        case for group in QUICK for case in cases_of(group, "one_pass", "float32", "cpu", False)
    ]
    assert verdict.passed
    assert verdict.out_of_guarantee > 0
    assert verdict.cases == verdict.ok + verdict.out_of_guarantee + verdict.failed
    assert verdict.cases + sum(each.cases for each in verdict.declined) == len(listed)
    assert {*listed} <= {*seen}
    assert verdict.left == 0
    assert 0 <= verdict.oracle_s + verdict.implementation_s <= verdict.wall_s


def test_a_known_mistake_is_named(verdict_of_unbiased: Verdict) -> None:
    verdict = verdict_of_unbiased
    assert verdict.outcome is Outcome.WRONG
    assert verdict.failed > 0
    assert verdict.suspects[0].name == "unbiased_variance"
    assert "N-1" in verdict.suspects[0].mistake


def test_the_line_that_reproduces_a_failure_runs(verdict_of_unbiased: Verdict) -> None:
    assert verdict_of_unbiased.reproduce is not None
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(verdict_of_unbiased.reproduce, {})
    assert "Trial(" in output.getvalue()
    assert "'wrong'" in output.getvalue()


def test_failures_are_listed_smallest_first(verdict_of_unbiased: Verdict) -> None:
    sizes = [each.case.rows * each.case.hidden for each in verdict_of_unbiased.failures]
    assert sizes == sorted(sizes)
    assert len(sizes) > 1


def test_failing_fast_stops_at_the_first_failures(
    unbiased: str, verdict_of_unbiased: Verdict
) -> None:
    verdict = quick(unbiased, fail_fast=True)
    assert not verdict.passed
    assert verdict.failed < verdict_of_unbiased.failed
    assert verdict.grades == verdict.suspects == ()


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
def test_a_result_that_is_no_tensor_like_x_fails(result: Callable[[Tensor], Tensor]) -> None:
    verdict = quick(then(result), fail_fast=True)
    assert not verdict.passed
    assert verdict.failed
    assert "y " in verdict.failures[0].reason


def test_nan_everywhere_fails() -> None:
    verdict = quick(then(lambda y: y * float("nan")), directions=FORWARD)
    assert not verdict.passed
    assert verdict.ok < verdict.failed


def _one_nan(y: Tensor) -> Tensor:
    spoiled = torch.zeros_like(y)
    if y.numel():
        spoiled.view(-1)[-1] = float("nan")
    return y + spoiled


def test_nan_in_one_element_fails() -> None:
    verdict = quick(then(_one_nan))
    assert not verdict.passed
    # the other cases are empty, or their exact value is NaN
    assert verdict.ok <= 5


class _NanWeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


def nan_in_dweight(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if weight is not None:
        weight = _NanWeightGradient.apply(weight)
    return layer_norm(x, normalized_shape, weight, bias, eps)


def test_nan_in_dweight_alone_fails() -> None:
    verdict = quick(nan_in_dweight)
    assert not verdict.passed
    assert verdict.failures
    assert all("dweight" in each.reason for each in verdict.failures)


@pytest.mark.parametrize(
    "name", ["dx_without_projection", "dbias_missing", "dx_adds_up", "detached"]
)
def test_a_wrong_backward_fails_only_with_gradients(name: str) -> None:
    assert quick(mutant(name), fail_fast=True).is_wrong
    verdict = quick(mutant(name), directions=FORWARD, fail_fast=True)
    assert [each.reason for each in verdict.failures] == []
    assert verdict.violations == ()
    assert verdict.passed


def test_forward_alone_tries_no_backward_case() -> None:
    seen: list[Case] = []
    assert quick("two_pass", directions=FORWARD, on_case=seen.append).passed
    assert {each.direction for each in seen} == {Direction.FORWARD}


def test_a_wrong_forward_fails_without_gradients_too(unbiased: str) -> None:
    assert quick(unbiased, directions=FORWARD, fail_fast=True).is_wrong


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
    assert reason in verdict.declined[0].reason


def test_a_dtype_that_always_raises_is_a_limit() -> None:
    def no_halves(x: Tensor, *others: Any) -> Tensor:
        if x.dtype is torch.float16:
            raise TypeError("no halves")
        return layer_norm(x, *others)

    verdict = quick(no_halves, "float32", "float16", fail_fast=True)
    assert verdict.passed
    assert verdict.declined
    assert all("float16" in each.what for each in verdict.declined)


def kinds(verdict: Verdict) -> set[RemarkKind]:
    return {each.kind for each in verdict.remarks}


def test_one_case_that_raises_is_a_remark() -> None:
    def odd(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 7 and x.dim() == 2:
            raise IndexError("seven")
        return layer_norm(x, *others)

    verdict = quick(odd, fail_fast=True)
    assert verdict.passed
    assert kinds(verdict) == {RemarkKind.RAISES}
    assert {each.reason for each in verdict.declined} == {"IndexError: seven"}
    with pytest.raises(AssertionError, match="IndexError: seven"):
        assert_layer_norm(odd, dtypes=("float32",), strict=True)


def test_a_dtype_that_raises_a_lookup_error_is_not_verified() -> None:
    known = {torch.float32: 1}

    def of_one_dtype(x: Tensor, *others: Any) -> Tensor:
        known[x.dtype]
        return layer_norm(x, *others)

    verdict = quick(of_one_dtype, "float32", "float16", fail_fast=True)
    assert verdict.passed
    assert [each.is_verified for each in verdict.extents] == [True, False]


def test_a_target_that_declines_most_cases_is_not_verified() -> None:
    def choosy(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] not in {32, 33}:
            raise UnsupportedError("32 and 33 alone")
        return layer_norm(x, *others)

    verdict = quick(choosy, fail_fast=True)
    assert verdict.outcome is Outcome.NOT_VERIFIED
    assert verdict.cases > 0
    assert not verdict.is_wrong


def test_an_unsupported_case_is_a_limit() -> None:
    def odd(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 7 and x.dim() == 2:
            raise UnsupportedError("not seven")
        return layer_norm(x, *others)

    verdict = quick(odd, fail_fast=True)
    assert verdict.passed
    assert {each.reason for each in verdict.declined} == {"not seven"}


def test_assert_layer_norm_returns_for_a_right_target() -> None:
    assert assert_layer_norm(layer_norm, dtypes=("float32",)) is None


def test_assert_layer_norm_names_the_mistake(unbiased: str) -> None:
    with pytest.raises(AssertionError, match="divides the variance by N-1 instead of N"):
        assert_layer_norm(unbiased, dtypes=("float32",))


def test_assert_layer_norm_raises_for_a_target_that_always_raises() -> None:
    with pytest.raises(AssertionError, match=r"NOT verified.*RuntimeError: not today"):
        assert_layer_norm(raising, dtypes=("float32",))


def test_the_strictest_algorithm_met_is_reported_by_dtype() -> None:
    verdict = verify("two_pass_input_dtype", quick=True, dtypes=("float32", "bfloat16"))
    assert verdict.passed
    assert {each.dtype: each.meets for each in verdict.grades} == {
        "float32": "two_pass (tree)",
        "bfloat16": None,
    }


@pytest.mark.parametrize("target", ["native", "torch.nn:LayerNorm", implementations.native])
def test_targets_are_names_and_objects(target: Any) -> None:
    assert quick(target, fail_fast=True).passed


def test_a_module_class_is_a_target() -> None:
    verdict = quick(nn.LayerNorm, fail_fast=True)
    assert verdict.target == "LayerNorm"
    assert verdict.passed
    assert verdict.scope is not None
    assert Affine.BIAS not in verdict.scope.affines


def test_a_wrong_module_class_fails() -> None:
    assert not quick(nn.RMSNorm, fail_fast=True, directions=FORWARD).passed


@pytest.mark.parametrize("target", ["nativ", "json:nope", "json:decoder", "gone.py:f"])
def test_a_string_that_names_nothing_is_refused(target: str) -> None:
    with pytest.raises(TargetError):
        quick(target)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TargetError, match="of type int"):
        quick(3)


def test_one_case_is_given_by_strings() -> None:
    trial = verify_case("two_pass", (3, 5), direction="backward", dtype="float64")
    assert trial.status is Status.OK
    assert trial.case.direction is Direction.BACKWARD


def test_one_case_of_a_wrong_one_is_wrong(unbiased: str) -> None:
    assert verify_case(unbiased, (3, 5)).status is Status.WRONG


def test_one_case_of_a_target_that_always_raises_is_unsupported() -> None:
    trial = verify_case(raising, (3, 5))
    assert (trial.status, trial.errors) == (Status.UNSUPPORTED, None)
    assert "RuntimeError: not today" in trial.reason


@pytest.mark.parametrize("target", [layer_norm, raising])
def test_the_number_of_threads_is_restored(target: Callable[..., Tensor]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        quick(target, fail_fast=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_is_restored_after_an_interruption() -> None:
    def interrupt(case: Case) -> None:
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            quick(layer_norm, on_case=interrupt)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_gradient_recording_is_restored() -> None:
    with torch.no_grad():
        assert quick(layer_norm, fail_fast=True).passed
        assert not torch.is_grad_enabled()
