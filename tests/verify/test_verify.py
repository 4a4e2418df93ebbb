"""What a verification finds, says and leaves behind."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import implementations
from harness.records import Case, Direction, Status
from harness.verify import assert_layer_norm, verify, verify_case
from harness.verify.catalogue import QUICK, cases_of
from harness.verify.mutants import WRONG
from harness.verify.result import Verdict
from harness.verify.text import verdict_lines
from implementations import TargetError, UnsupportedError

FORWARD = (Direction.FORWARD,)


def wrapped(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def then(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A right LayerNorm whose result is changed."""

    def changed(*arguments: Any) -> Tensor:
        return change(wrapped(*arguments))

    return changed


def quick(target: Any, *dtypes: str, **options: Any) -> Verdict:
    return verify(target, quick=True, dtypes=dtypes or ("float32",), **options)


def wrong(name: str) -> Callable[..., Tensor]:
    return next(each for each in WRONG if each.name == name).fresh()


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


@pytest.fixture
def unbiased(tmp_path: Path) -> str:
    """A file's function that divides the variance by N - 1."""
    path = tmp_path / "unbiased_variance.py"
    path.write_text(UNBIASED)
    return f"{path}:unbiased"


# --- right ---------------------------------------------------------------------------------------


def test_a_right_implementation_passes() -> None:
    verdict = quick("two_pass")
    assert verdict.passed
    assert verdict.failures == ()
    assert verdict.suspects == ()
    assert verdict.reproduce is None
    assert "a LayerNorm" in verdict_lines(verdict)[0]


def test_a_plain_function_around_the_kernel_passes() -> None:
    verdict = quick(wrapped, "float32", "float64")
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
    assert seen[1:] == listed
    assert 0 <= verdict.oracle_s + verdict.guest_s <= verdict.wall_s


# --- wrong ---------------------------------------------------------------------------------------


def test_a_mistake_is_named(unbiased: str) -> None:
    verdict = quick(unbiased)
    assert not verdict.passed
    assert verdict.failed > 0
    assert verdict.suspects[0].name == "unbiased_variance"
    assert "N-1" in "\n".join(verdict_lines(verdict))
    assert "NOT a LayerNorm" in verdict_lines(verdict)[0]


def test_the_line_that_reproduces_a_failure_shows_it(unbiased: str) -> None:
    verdict = quick(unbiased)
    assert verdict.reproduce is not None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(verdict.reproduce, {})
    assert "Trial(" in said.getvalue()
    assert "'wrong'" in said.getvalue()


def test_failures_are_listed_smallest_first(unbiased: str) -> None:
    sizes = [each.case.rows * each.case.hidden for each in quick(unbiased).failures]
    assert sizes == sorted(sizes)
    assert len(sizes) > 1


def test_failing_fast_stops_at_the_first_failures(unbiased: str) -> None:
    verdict = quick(unbiased, fail_fast=True)
    assert not verdict.passed
    assert verdict.failed < quick(unbiased).failed
    assert verdict.grades == verdict.suspects == ()


def test_a_function_that_changes_after_many_calls_fails() -> None:
    calls = itertools.count()

    def tiring(*arguments: Any) -> Tensor:
        y = wrapped(*arguments)
        return y if next(calls) < 120 else y + 1

    verdict = quick(tiring)
    assert verdict.failed or verdict.violations
    assert not verdict.passed


@pytest.mark.parametrize(
    "result",
    [lambda y: (y, y), lambda y: y.detach().numpy(), lambda y: None, lambda y: y.flatten()],
    ids=["tuple", "array", "nothing", "flat"],
)
def test_what_is_no_tensor_like_x_fails(result: Callable[[Tensor], Tensor]) -> None:
    verdict = quick(then(result), fail_fast=True)
    assert not verdict.passed
    assert verdict.failed
    assert "y " in verdict.failures[0].reason


# --- NaN: every comparison fails it --------------------------------------------------------------


def test_nan_everywhere_fails() -> None:
    verdict = quick(then(lambda y: y * float("nan")))
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
    # those left are of no element, or NaN there in truth
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
    return wrapped(x, normalized_shape, weight, bias, eps)


def test_nan_in_dweight_alone_fails() -> None:
    verdict = quick(nan_in_dweight)
    assert not verdict.passed
    assert verdict.failures
    assert all("dweight" in each.reason for each in verdict.failures)


# --- which passes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["dx_without_projection", "dbias_missing", "dx_adds_up", "detached"]
)
def test_a_wrong_backward_fails_only_where_gradients_are_asked_for(name: str) -> None:
    assert not quick(wrong(name)).passed
    verdict = quick(wrong(name), directions=FORWARD)
    assert [each.reason for each in verdict.failures] == []
    assert verdict.violations == ()
    assert verdict.passed


def test_forward_alone_tries_no_backward_case() -> None:
    seen: list[Case] = []
    assert quick("two_pass", directions=FORWARD, on_case=seen.append).passed
    assert {each.direction for each in seen} == {Direction.FORWARD}


def test_a_wrong_forward_fails_without_gradients_too(unbiased: str) -> None:
    assert not quick(unbiased, directions=FORWARD).passed


# --- declined ------------------------------------------------------------------------------------


def raising(*arguments: Any) -> Tensor:
    raise RuntimeError("not today")


def declining(*arguments: Any) -> Tensor:
    raise UnsupportedError("not today")


def test_what_declines_every_case_is_said_to_decline() -> None:
    assert "it declines every case" in verdict_lines(quick(declining))[0]


def test_what_raises_in_every_case_is_said_to_raise_and_is_not_passed() -> None:
    verdict = quick(raising)
    assert verdict.cases == 0
    assert verdict.declined
    assert not verdict.passed
    said = verdict_lines(verdict)
    assert said[0].endswith("it raises in every case: RuntimeError: not today")
    assert not [each for each in said if "declines" in each]
    assert {each.reason for each in verdict.declined} == {"RuntimeError: not today"}


def test_a_dtype_declined_as_a_whole_is_a_limit() -> None:
    def no_halves(x: Tensor, *others: Any) -> Tensor:
        if x.dtype is torch.float16:
            raise TypeError("no halves")
        return wrapped(x, *others)

    verdict = quick(no_halves, "float32", "float16")
    assert verdict.passed
    assert verdict.declined
    assert all("float16" in each.what for each in verdict.declined)


def test_one_case_that_raises_among_others_fails() -> None:
    def odd(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 7 and x.dim() == 2:
            raise IndexError("seven")
        return wrapped(x, *others)

    verdict = quick(odd)
    assert not verdict.passed
    assert {each.status for each in verdict.failures} == {Status.ERROR}
    assert {each.case.shape[-1] for each in verdict.failures} == {7}


def test_a_group_that_raises_what_a_mistake_raises_fails() -> None:
    def long(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] > 100:
            raise IndexError("boom")
        return wrapped(x, *others)

    verdict = quick(long)
    assert not verdict.passed
    assert verdict.is_verified
    assert "IndexError: boom" in {each.reason for each in verdict.failures}


def test_a_dtype_that_raises_so_in_every_case_is_declined() -> None:
    known = {torch.float32: 1}

    def of_one_dtype(x: Tensor, *others: Any) -> Tensor:
        known[x.dtype]
        return wrapped(x, *others)

    verdict = quick(of_one_dtype, "float32", "float16")
    assert verdict.passed
    assert "; not verified in float16 (0 of " in verdict_lines(verdict)[0]


def test_what_declines_most_is_not_verified() -> None:
    def choosy(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] != 33:
            raise UnsupportedError("33 alone")
        return wrapped(x, *others)

    verdict = quick(choosy)
    assert (verdict.passed, verdict.is_wrong, verdict.is_verified) == (False, False, False)
    assert "NOT verified. It answers" in verdict_lines(verdict)[0]


def test_a_case_declared_unsupported_is_a_limit() -> None:
    def odd(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 7 and x.dim() == 2:
            raise UnsupportedError("not seven")
        return wrapped(x, *others)

    verdict = quick(odd)
    assert verdict.passed
    assert {each.reason for each in verdict.declined} == {"not seven"}


# --- in a test suite -----------------------------------------------------------------------------


def test_assert_layer_norm_says_nothing_of_a_right_one() -> None:
    assert assert_layer_norm(wrapped, dtypes=("float32",)) is None


def test_assert_layer_norm_names_the_mistake(unbiased: str) -> None:
    with pytest.raises(AssertionError, match="divides the variance by N-1 instead of N"):
        assert_layer_norm(unbiased, dtypes=("float32",))


def test_assert_layer_norm_fails_what_raises_everywhere() -> None:
    with pytest.raises(AssertionError, match="raises in every case: RuntimeError: not today"):
        assert_layer_norm(raising, dtypes=("float32",))


# --- classes -------------------------------------------------------------------------------------


def test_the_strictest_class_is_named_with_its_dtypes_and_none_is_explained() -> None:
    verdict = verify("two_pass_input_dtype", quick=True, dtypes=("float32", "bfloat16"))
    said = "\n".join(verdict_lines(verdict))
    assert verdict.passed
    assert "strictest class whose bound it keeps: two_pass (tree) in float32; none in" in said
    assert "in bfloat16 it loses more than any class of algorithm may that keeps its" in said


# --- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["native", "torch.nn:LayerNorm", implementations.native])
def test_targets_are_names_and_objects(target: Any) -> None:
    assert quick(target, fail_fast=True).passed


def test_a_module_class_is_a_target() -> None:
    verdict = quick(nn.LayerNorm)
    assert verdict.target == "LayerNorm"
    assert verdict.passed
    assert verdict.declined  # it has no bias without weight


def test_a_wrong_module_class_fails() -> None:
    assert not quick(nn.RMSNorm, fail_fast=True, directions=FORWARD).passed


@pytest.mark.parametrize("target", ["nativ", "json:nope", "json:decoder", "gone.py:f"])
def test_a_text_that_names_nothing_is_refused(target: str) -> None:
    with pytest.raises(TargetError):
        quick(target)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TargetError, match="of type int"):
        quick(3)


# --- one case ------------------------------------------------------------------------------------


def test_one_case_is_tried_by_plain_texts() -> None:
    trial = verify_case("two_pass", (3, 5), direction="backward", dtype="float64")
    assert trial.status is Status.OK
    assert trial.case.direction is Direction.BACKWARD


def test_one_case_of_a_wrong_one_is_wrong(unbiased: str) -> None:
    assert verify_case(unbiased, (3, 5)).status is Status.WRONG


def test_one_case_that_raises_is_an_error() -> None:
    trial = verify_case(raising, (3, 5))
    assert (trial.status, trial.errors) == (Status.ERROR, None)


# --- what is left behind -------------------------------------------------------------------------


@pytest.mark.parametrize("target", [wrapped, raising])
def test_the_threads_of_the_process_are_as_before(target: Callable[..., Tensor]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        quick(target, fail_fast=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_threads_are_as_before_where_a_verification_is_interrupted() -> None:
    def interrupt(case: Case) -> None:
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            quick(wrapped, on_case=interrupt)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_whether_gradients_are_recorded_is_as_before() -> None:
    with torch.no_grad():
        assert quick(wrapped, fail_fast=True).passed
        assert not torch.is_grad_enabled()
