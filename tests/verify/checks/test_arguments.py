"""Contract checks of arguments, of the caller's state, of threads, and of the backward."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from factories.verify_targets import (
    CASE,
    WIDE,
    case_in,
    every_dtype,
    layer_norm,
    mutant,
    target,
    then,
)
from torch import Tensor
from torch.nn import functional

from harness.cases import make_inputs
from harness.run.integrity import process_state_restored
from harness.verify.checks import calls
from harness.verify.checks.arguments import (
    accepts_arguments_like_torch,
    rejects_wrong_shapes,
)
from harness.verify.checks.contract_checks import RaisedInFormError
from harness.verify.checks.gradients import (
    detects_in_place_changes,
    follows_parameter_updates,
    retained_graph_gives_same_gradients,
    returned_gradients_stay_unchanged,
    second_derivative_is_correct,
)
from harness.verify.checks.surroundings import (
    is_correct_on_several_threads,
    is_safe_for_concurrent_callers,
    keeps_accuracy_under_autocast,
    records_no_unwanted_graph,
    restores_process_state,
)
from implementations import UnsupportedError, native


def broadcast_weight(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, None, bias, eps) * weight


def broadcast_bias(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, weight, None, eps) + bias


def weight_per_row(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    if weight.shape == x.shape:
        return broadcast_weight(x, shape, weight, bias, eps)
    return layer_norm(x, shape, weight, bias, eps)


def last_axis(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
    return layer_norm(x, x.shape[-1:], *others)


def expanding(index: int) -> Callable[..., Tensor]:
    """Broadcast one of weight and bias over the first of several normalized axes."""

    def function(x: Tensor, shape: Any, *others: Any) -> Tensor:
        parameters = list(others[:2])
        if parameters[index] is not None and parameters[index].dim() < len(shape):
            parameters[index] = parameters[index].expand(shape)
        return layer_norm(x, shape, *parameters, *others[2:])

    return function


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (layer_norm, None),
        (broadcast_weight, " of weight"),
        (broadcast_bias, " of bias"),
        (weight_per_row, " of weight"),
        (expanding(0), " of weight"),
        (expanding(1), " of bias"),
        (last_axis, " of normalized_shape"),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, eps=eps) * w + b, "s of weight and bias"),
    ],
)
def test_the_arguments_whose_shapes_are_not_checked_are_named(
    function: Callable[..., Tensor], names: str | None
) -> None:
    text = rejects_wrong_shapes(target(function), CASE)
    assert text == (None if names is None else f"does not check the shape{names}")


def other_names(x: Tensor, shape: Any, gamma: Any, beta: Any, epsilon: float) -> Tensor:
    return layer_norm(x, shape, gamma, beta, epsilon)


def declines_one_axis(x: Tensor, *others: Any) -> Tensor:
    if x.dim() == 1:
        raise UnsupportedError("rows only")
    return layer_norm(x, *others)


@pytest.mark.parametrize("function", [other_names, declines_one_axis])
def test_other_argument_names_and_a_declined_form_are_allowed(
    function: Callable[..., Tensor],
) -> None:
    assert accepts_arguments_like_torch(target(function), CASE) is None


def float_eps_only(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: object) -> Tensor:
    eps = eps if isinstance(eps, float) else 0.0
    return layer_norm(x, normalized_shape, weight, bias, eps)


def one_axis_ignored(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return bias.clone() if x.dim() == 1 else layer_norm(x, shape, weight, bias, eps)


@pytest.mark.parametrize(
    ("function", "form"),
    [(float_eps_only, "an eps that is an int"), (one_axis_ignored, "an x of one axis")],
)
def test_a_form_with_another_result_is_found(function: Callable[..., Tensor], form: str) -> None:
    assert form in str(accepts_arguments_like_torch(target(function), CASE))


def test_a_form_that_raises_is_named() -> None:
    @cache
    def hashed(shape: Any) -> Any:
        return shape

    def caching(x: Tensor, shape: Any, *others: Any) -> Tensor:
        return layer_norm(x, hashed(shape), *others)

    with pytest.raises(RaisedInFormError, match="TypeError") as raised:
        accepts_arguments_like_torch(target(caching), CASE)
    assert raised.value.form == "a normalized_shape that is a list"


# === A call that changes the caller's state, or depends on its modes, is found


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.manual_seed(3), "torch's random"),
        (lambda: torch.rand(1), "torch's random"),
        (lambda: random.seed(3), "Python's random"),
        (lambda: np.random.seed(3), "NumPy's random"),
        (lambda: torch.set_default_dtype(torch.float64), "dtype"),
        (lambda: torch.set_num_threads(1), "threads"),
        (lambda: torch.set_flush_denormal(True), "subnormal"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic"),
        (lambda: torch.set_grad_enabled(False), "gradient recording"),
        (lambda: torch.set_default_device("meta"), "default device"),
        (lambda: torch.set_float32_matmul_precision("highest"), "float32 matrix products"),
        (lambda: torch.set_float32_matmul_precision("medium"), "float32 matrix products"),
        (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), "matrix products"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), "TF32 in convolutions"),
        (lambda: setattr(torch.backends.cudnn, "deterministic", True), "deterministic mode"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast on the CPU"),
        (lambda: torch.set_autocast_dtype("cuda", torch.bfloat16), "autocast on CUDA"),
        (lambda: torch.autograd.set_detect_anomaly(True), "anomaly mode"),
        (lambda: warnings.filterwarnings("ignore"), "filters of warnings"),
        (lambda: np.seterr(divide="raise"), "NumPy's error state"),
        (lambda: os.environ.pop("PATH", None), "environment variables"),
        (lambda: sys.path.append("/tmp"), "search path"),
        (lambda: sys.setrecursionlimit(5000), "recursion limit"),
        (gc.disable, "garbage collector"),
    ],
)
def test_a_changed_state_is_found_and_restored(change: Callable[[], object], name: str) -> None:
    def changing(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        change()
        return y

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    environment, filters = dict(os.environ), list(warnings.filters)
    with process_state_restored():
        assert name in str(restores_process_state(target(changing, forward_only=True), CASE))
    assert (dict(os.environ), list(warnings.filters)) == (environment, filters)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert float(torch.tensor(1e-40) * 1)


def test_a_state_that_the_target_restores_is_not_changed() -> None:
    def careful(*arguments: Any) -> Tensor:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
        return layer_norm(*arguments)

    assert restores_process_state(target(careful), CASE) is None


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda y: y.detach().requires_grad_(), "torch.no_grad()"),
        (lambda y: y.requires_grad_() if torch.is_grad_enabled() else y, "no input does"),
    ],
)
def test_an_unwanted_gradient_is_found(change: Callable[[Tensor], Tensor], fact: str) -> None:
    assert fact in str(records_no_unwanted_graph(target(then(change)), CASE))


def test_accuracy_lost_under_autocast_is_found_in_float32() -> None:
    def multiplying(x: Tensor, shape: Any, *others: Any) -> Tensor:
        return layer_norm((x @ torch.eye(x.shape[-1], dtype=x.dtype)).to(x.dtype), shape, *others)

    assert keeps_accuracy_under_autocast(target(multiplying), CASE) is not None
    assert keeps_accuracy_under_autocast(target(multiplying), case_in("float16")) is None


# === Results lost between threads of PyTorch or of Python are found


@every_dtype
@pytest.mark.parametrize("name", ["rows_of_other_threads_unwritten", "sums_of_other_threads_lost"])
def test_sums_that_other_threads_lose_are_found(name: str, dtype: str) -> None:
    assert "dbias" in str(is_correct_on_several_threads(mutant(name), case_in(dtype)))


def test_a_forward_that_loses_rows_is_found() -> None:
    forward = mutant("rows_of_other_threads_unwritten", forward_only=True)
    assert "a right y on one thread" in str(is_correct_on_several_threads(forward, CASE))


def test_a_race_that_shows_in_one_call_is_found() -> None:
    calls = 0

    def racing(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += torch.get_num_threads() > 1
        y = layer_norm(*arguments)
        return y * (y > 0) if calls == 3 else y

    assert is_correct_on_several_threads(target(racing, forward_only=True), CASE) is not None


def test_a_mistake_on_one_thread_is_not_one_of_several_threads() -> None:
    assert is_correct_on_several_threads(mutant("unbiased_variance"), CASE) is None
    assert is_correct_on_several_threads(native, case_in("bfloat16")) is None


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()

    def failing(*arguments: Any) -> Tensor:
        if torch.get_num_threads() > 1:
            raise ValueError("no threads")
        return layer_norm(*arguments)

    with pytest.raises(Exception, match="no threads"):
        is_correct_on_several_threads(target(failing), CASE)
    assert torch.get_num_threads() == before


def test_a_gpu_is_not_checked_for_threads_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "make_inputs", lambda case: make_inputs(replace(case, device="cpu")))
    assert is_correct_on_several_threads(target(layer_norm), replace(CASE, device="cuda")) is None


def test_a_result_that_depends_on_the_calling_thread_is_found() -> None:
    main = threading.current_thread()

    def of_one_thread(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        return y if threading.current_thread() is main else y + 1

    assert is_safe_for_concurrent_callers(target(of_one_thread), CASE) is not None
    on_a_gpu = target(of_one_thread, devices=frozenset({"cuda"}))
    assert is_safe_for_concurrent_callers(on_a_gpu, CASE) is None


def test_a_result_of_many_rows_that_depends_on_the_calling_thread_is_found() -> None:
    main = threading.current_thread()

    def of_many_rows(x: Tensor, *others: Any) -> Tensor:
        is_other = threading.current_thread() is not main
        return layer_norm(x, *others) + (is_other and len(x) > 1024)

    assert is_safe_for_concurrent_callers(target(of_many_rows), CASE) is not None


# === Each contract check of a backward, of training and of second derivatives finds a mistake


@every_dtype
def test_a_graph_that_its_backward_uses_up_is_found(dtype: str) -> None:
    wrong = mutant("used_up_by_the_backward")
    assert "dx" in str(retained_graph_gives_same_gradients(wrong, case_in(dtype)))


@every_dtype
def test_a_gradient_that_a_later_step_overwrites_is_found(dtype: str) -> None:
    wrong = mutant("gradient_buffer_reused")
    assert "dweight" in str(returned_gradients_stay_unchanged(wrong, case_in(dtype)))


@pytest.mark.parametrize("dtype", WIDE)
def test_a_second_derivative_without_a_term_is_found(dtype: str) -> None:
    wrong = mutant("second_derivative_of_constant_statistics")
    assert "respect to x" in str(second_derivative_is_correct(wrong, case_in(dtype)))


class _DxWithoutGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, dx_of: Any) -> Tensor:
        ctx.dx_of = dx_of
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        return dy, ctx.dx_of(dy.detach()) + 0 * dy, None


def test_a_second_derivative_that_is_silently_missing_is_found() -> None:
    """Its dx is recorded with respect to dy only."""

    def silent(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        def dx_of(dy: Tensor) -> Tensor:
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                y = layer_norm(leaf, shape, weight, bias, eps)
            return torch.autograd.grad(y, leaf, dy)[0]

        detached = layer_norm(x.detach(), shape, weight, bias, eps)
        y: Tensor = _DxWithoutGraph.apply(detached, x, dx_of)
        return y

    assert "respect to x" in str(second_derivative_is_correct(target(silent), CASE))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


def test_a_second_derivative_that_raises_is_not_wrong() -> None:
    once = target(lambda *each, **more: _Once.apply(layer_norm(*each, **more)))
    assert second_derivative_is_correct(once, CASE) is None


def test_inputs_changed_in_place_without_an_error_are_found() -> None:
    text = str(detects_in_place_changes(mutant("inputs_kept_unguarded"), CASE))
    assert "wrong dx" in text
    assert "if x is" in text


class _DxOfY(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, affine: Tensor) -> Tensor:
        y = affine.clone()
        ctx.kept = y, y.clone()
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, Tensor]:
        x, weight = ctx.saved_tensors
        now, before = ctx.kept
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = functional.layer_norm(leaf, x.shape[-1:], weight)
        (dx,) = torch.autograd.grad(y, leaf, dy)
        return dx + (now - before), None, dy


def test_a_result_changed_in_place_without_an_error_is_found() -> None:
    """A backward that computes from y: an in-place activation after it changes y."""

    def of_y(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        affine = layer_norm(x.detach() + 0 * x, shape, weight, bias, eps)  # dweight and dbias
        y: Tensor = _DxOfY.apply(x, weight, affine)
        return y

    text = str(detects_in_place_changes(target(of_y), CASE))
    assert "wrong dx" in text
    assert "if y is" in text


def test_a_frozen_weight_that_is_kept_is_found() -> None:
    kept: list[Tensor] = []

    def keeping(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
        if weight.requires_grad:
            kept.clear()
            return functional.layer_norm(x, shape, weight, bias, eps)
        kept.extend([] if kept else [weight.detach().clone()])
        return functional.layer_norm(x, shape, kept[0], bias, eps)

    assert "frozen" in str(follows_parameter_updates(target(keeping), CASE))
