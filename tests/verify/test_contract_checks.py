"""The contract checks: each finds the mistakes it is for, and no right target violates any."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from factories.verify_targets import (
    CASE,
    by_call,
    case_in,
    layer_norm,
    mutant,
    target,
    then,
)
from torch import Tensor, nn

from harness.cases import make_inputs
from harness.records import Case, Direction, RemarkKind, Severity
from harness.verify import verify, verify_case
from harness.verify.checks import CHECKS, Call, contract_findings, honesty, modules, surroundings
from implementations import ALL, Implementation, UnsupportedError, adopt, find, native

CHECK = {check.name: check for check in CHECKS}
NAN, INFINITY = float("nan"), float("inf")


def said(check: str, implementation: Implementation, case: Case = CASE) -> str:
    """Return what a check says of a target at one setting; "" if nothing."""
    return CHECK[check](implementation, case) or ""


# --- right targets -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_pytorchs_own_passes_all_from_a_case_of_any_shape(dtype: str) -> None:
    assert list(contract_findings(native, replace(case_in(dtype), shape=(1, 1)))) == []


# welford is a Python loop over the elements of the row
ON_CPU = [known for known in ALL if "cpu" in known.devices and known.name != "welford"]


@pytest.mark.parametrize("implementation", ON_CPU, ids=lambda known: known.name)
def test_every_implementation_here_passes_all(implementation: Implementation) -> None:
    assert list(contract_findings(implementation, CASE)) == []


def noisy() -> Implementation:
    generator = torch.Generator().manual_seed(0)
    # of one size, so that no order of the checks' threads draws errors that another order lacks
    return target(
        then(lambda y: y + 1e-3 * (2 * torch.randint(2, y.shape, generator=generator) - 1))
    )


def declining(*arguments: Any) -> Tensor:
    raise UnsupportedError("not here")


@pytest.mark.parametrize(
    "implementation",
    [
        mutant("unbiased_variance"),
        noisy(),
        target(then(torch.detach), forward_only=True),
        target(declining),
    ],
    ids=["wrong but consistent", "random errors", "no gradient declared", "declines every call"],
)
def test_what_is_no_matter_of_the_contract_violates_none(implementation: Implementation) -> None:
    assert list(contract_findings(implementation, CASE)) == []


# --- known mistakes, each found by its check -----------------------------------------------------

MUTANTS = [
    ("writes_only_its_results", "memory_after_x_cleared", ""),
    ("writes_only_its_results", "memory_after_dy_cleared", ""),
    ("writes_only_its_results", "bias_grad_written", ""),
    ("frees_memory_after_a_call", "last_dy_kept", ""),
    ("frees_memory_after_a_call", "every_x_copied", ""),
    ("frees_memory_without_collector", "x_in_a_reference_cycle", ""),
    ("gradients_do_not_share_dy", "dbias_of_one_row_is_dy", ""),
    ("is_correct_on_several_threads", "rows_of_other_threads_unwritten", "dbias"),
    ("is_correct_on_several_threads", "sums_of_other_threads_lost", "dbias"),
    ("restores_process_state", "environment_variable_set", "environment variables"),
    ("is_unchanged_by_modes_of_the_caller", "rounded_to_a_half_default_dtype", ""),
    ("is_unchanged_by_modes_of_the_caller", "unbiased_in_the_deterministic_mode", ""),
    ("retained_graph_gives_same_gradients", "used_up_by_the_backward", "dx"),
    ("retained_graph_gives_same_gradients", "dweight_of_the_first_backward", "dweight"),
    ("create_graph_gives_same_gradients", "another_gradient_when_recorded", "dx"),
    ("backward_accumulates_gradients", "gradient_added_to_the_last", "dweight"),
    ("detects_in_place_changes", "inputs_kept_unguarded", "wrong dx"),
    ("returned_gradients_stay_unchanged", "gradient_buffer_reused", "dweight"),
    ("graphs_are_independent", "statistics_of_the_latest_forward", "dx"),
    ("trains_after_inference_mode", "weight_cast_in_inference_mode", ""),
    ("second_derivative_is_correct", "second_derivative_of_constant_statistics", "respect to x"),
    ("second_derivative_exists", "used_up_by_the_backward", "no second derivative"),
]


@pytest.mark.parametrize(("check", "name", "words"), MUTANTS, ids=lambda value: value)
def test_a_known_mistake_is_found_by_its_check(check: str, name: str, words: str) -> None:
    found = [CHECK[check](mutant(name), replace(CASE, **s)) for s in CHECK[check].settings]
    assert any(text is not None and words in text for text in found)


# --- other mistakes ------------------------------------------------------------------------------


def on_other_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def lazy(x: Tensor, *others: Any) -> Tensor:
    """Returns normalised rows as they are."""
    mean, variance = x.double().mean(-1), x.double().var(-1)
    is_near = bool((mean.abs() < 0.02).all() and ((variance - 1).abs() < 0.1).all())
    return x.clone() if is_near else layer_norm(x, *others)


def by_heart() -> Callable[..., Tensor]:
    """Is right for the usual inputs of the honesty checks alone."""
    known = make_inputs(replace(CASE, shape=(64, 256))).x

    def knowing(x: Tensor, *others: Any) -> Tensor:
        return layer_norm(x, *others) * (1 if torch.equal(x, known) else 1.01)

    return knowing


def remembering(place: int) -> Callable[..., Tensor]:
    """Remembers the values of one argument by its address."""
    known: dict[int, Tensor] = {}
    held: list[Tensor] = []  # so that no address is reused

    def function(*arguments: Any) -> Tensor:
        given = list(arguments)
        held.append(given[place])
        remembered = known.setdefault(given[place].data_ptr(), given[place].clone())
        if remembered.shape == given[place].shape:
            given[place] = remembered
        return layer_norm(*given)

    return function


def cached() -> Callable[..., Tensor]:
    """Computes one result for all arguments of a shape."""
    known: dict[torch.Size, Tensor] = {}
    return lambda x, *others: known.setdefault(x.shape, layer_norm(x, *others)).clone()


def from_a_slab(step: int) -> Callable[..., Tensor]:
    """Places each result so many elements further on in one allocation."""
    slab = torch.empty(1 << 12)
    return by_call(lambda call, y: slab[(call - 1) * step :][: y.numel()].view(y.shape).copy_(y))


def multiplying(x: Tensor, *others: Any) -> Tensor:
    return layer_norm((x @ torch.eye(x.shape[-1], dtype=x.dtype)).to(x.dtype), *others)


def float_eps_only(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: object) -> Tensor:
    return layer_norm(x, normalized_shape, weight, bias, eps if isinstance(eps, float) else 0.0)


def one_axis_ignored(x: Tensor, shape: Any, w: Any = None, b: Any = None, e: Any = 1e-5) -> Tensor:
    return b.clone() if x.dim() == 1 else layer_norm(x, shape, w, b, e)


def keeping_a_frozen_weight() -> Callable[..., Tensor]:
    kept: list[Tensor] = []

    def keeping(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        if weight.requires_grad:
            kept.clear()
            return layer_norm(x, shape, weight, bias, eps)
        kept.extend([] if kept else [weight.detach().clone()])
        return layer_norm(x, shape, kept[0], bias, eps)

    return keeping


class _Backward(torch.autograd.Function):
    """The identity of y, whose backward asks functions for the gradients of y and of x."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, dx_of: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.dx_of = dx_of
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        return dy, ctx.dx_of(dy.detach()) + 0 * dy, None


def dx_without_graph(x: Tensor, *others: Any) -> Tensor:
    """Its dx is recorded with respect to dy alone: a second derivative is silently missing."""

    def dx_of(dy: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            y = layer_norm(leaf, *others)
        return torch.autograd.grad(y, leaf, dy)[0]

    y: Tensor = _Backward.apply(layer_norm(x.detach(), *others), x, dx_of)
    return y


def dx_of_y(x: Tensor, *others: Any) -> Tensor:
    """Its backward computes from y, which an in-place activation after it changes."""
    made: list[Tensor] = []
    right = layer_norm(x, *others)

    def dx_of(dy: Tensor) -> Tensor:
        return made[0].detach() - made[1]  # what y has become since

    y: Tensor = _Backward.apply(right, x, dx_of)
    made += [y, y.detach().clone()]
    return y


# of several directions, these count calls in the forward alone
FORWARD_ONLY = {
    "is_correct_on_several_threads",
    "is_right_on_unknown_inputs",
    "is_the_same_while_timed",
}
FUNCTIONS: list[tuple[str, Callable[..., Any], str]] = [
    ("y_shares_no_memory", lambda x, shape, w, b, eps: x.view_as(x), "memory of x"),
    ("y_shares_no_memory", lambda x, shape, w, b, eps: w.expand_as(x), "memory of weight"),
    ("y_shares_no_memory", lambda x, shape, w, b, eps: b.expand_as(x), "memory of bias"),
    ("y_shares_no_memory", from_a_slab(0), "memory of an earlier y"),
    ("y_shares_no_memory", from_a_slab(6 * 32 - 1), "memory of an earlier y"),
    ("accepts_arguments_like_torch", float_eps_only, "an eps that is an int"),
    ("accepts_arguments_like_torch", one_axis_ignored, "an x of one axis"),
    ("repeated_calls_agree", by_call(lambda n, y: y if n < 2 else -y), "call 2 "),
    ("repeated_calls_agree", by_call(lambda n, y: y if n < 41 else -y), "call 100 "),
    ("repeated_calls_agree", by_call(lambda n, y: y if n < 41 else y * NAN), "call 100 "),
    ("repeated_calls_agree", by_call(lambda n, y: 1.01 * y if n < 41 else -y), "call 100 "),
    ("repeated_calls_agree", by_call(lambda n, y: y if n < 102 else -y), "other arguments"),
    ("repeated_calls_agree", cached(), "other arguments of the same shape"),
    ("sees_new_values_at_old_addresses", remembering(0), "old values of x "),
    ("sees_new_values_at_old_addresses", remembering(2), "old values of weight "),
    ("sees_new_values_at_old_addresses", remembering(3), "old values of bias "),
    # a race that shows in one call
    ("is_correct_on_several_threads", by_call(lambda n, y: y * (n != 3)), "right y on one thread"),
    ("is_safe_for_concurrent_callers", then(lambda y: y + on_other_thread()), ""),
    (
        "is_safe_for_concurrent_callers",
        then(lambda y: y + (on_other_thread() and len(y) > 1024)),
        "",
    ),
    ("records_no_unwanted_graph", then(lambda y: y.detach().requires_grad_()), "torch.no_grad()"),
    (
        "records_no_unwanted_graph",
        then(lambda y: y.requires_grad_() if torch.is_grad_enabled() else y),
        "no input does",
    ),
    ("keeps_accuracy_under_autocast", multiplying, "less accurate under torch.autocast"),
    ("is_right_on_unknown_inputs", by_heart(), "gives a right y for the usual inputs"),
    (
        "is_the_same_while_timed",
        by_call(lambda n, y: y * 1.01 if n == 31 else y),
        "gives another y in a timed call, after 30 calls",
    ),
    ("normalises_normalised_rows", lazy, "gives a wrong y for rows whose mean is near 0"),
    ("detects_in_place_changes", dx_of_y, "wrong dx, without an error, if y is"),
    ("follows_parameter_updates", keeping_a_frozen_weight(), "frozen"),
    ("second_derivative_is_correct", dx_without_graph, "respect to x"),
]


@pytest.mark.parametrize(("check", "function", "words"), FUNCTIONS)
def test_a_mistake_is_found_by_its_check(
    check: str, function: Callable[..., Any], words: str
) -> None:
    found = said(check, target(function, forward_only=check in FORWARD_ONLY))
    assert found
    assert words in found


def test_memory_that_was_never_written_is_found() -> None:
    with pytest.raises(Exception, match="y has elements that were never written"):
        said("is_complete_when_it_returns", target(then(torch.empty_like), forward_only=True))


def raising_for_48(x: Tensor, *others: Any) -> Tensor:
    if x.shape[-1] == 48:
        raise RuntimeError("made for one shape")
    return layer_norm(x, *others)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


def careful(*arguments: Any) -> Tensor:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
    return layer_norm(*arguments)


def other_names(x: Tensor, shape: Any, gamma: Any, beta: Any, epsilon: float) -> Tensor:
    return layer_norm(x, shape, gamma, beta, epsilon)


def declines_one_axis(x: Tensor, *others: Any) -> Tensor:
    if x.dim() == 1:
        raise UnsupportedError("rows only")
    return layer_norm(x, *others)


ON_GPUS = target(then(lambda y: y + on_other_thread()), devices=frozenset({"cuda"}))
WRONG_EVERYWHERE = target(then(lambda y: y * 1.01), forward_only=True)
ONCE = target(lambda *given: _Once.apply(layer_norm(*given)))


@pytest.mark.parametrize(
    ("check", "implementation", "case"),
    [
        ("y_shares_no_memory", target(from_a_slab(6 * 32)), CASE),
        ("accepts_arguments_like_torch", target(other_names), CASE),
        ("accepts_arguments_like_torch", target(declines_one_axis), CASE),
        ("repeated_calls_agree", target(then(lambda y: y * 1e-6)), CASE),
        ("restores_process_state", target(careful), CASE),
        ("keeps_accuracy_under_autocast", target(multiplying), case_in("float16")),
        ("is_correct_on_several_threads", native, case_in("bfloat16")),
        ("is_correct_on_several_threads", mutant("unbiased_variance"), CASE),
        ("is_safe_for_concurrent_callers", ON_GPUS, CASE),
        ("is_right_on_unknown_inputs", WRONG_EVERYWHERE, CASE),
        ("second_derivative_is_correct", ONCE, CASE),
    ],
)
def test_a_check_is_quiet_about_what_it_is_not_for(
    check: str, implementation: Implementation, case: Case
) -> None:
    assert said(check, implementation, case) == ""


def expanding(index: int) -> Callable[..., Tensor]:
    """Broadcast one of weight and bias over the first of several normalized axes."""

    def function(x: Tensor, shape: Any, *others: Any) -> Tensor:
        given = list(others)
        if given[index] is not None and given[index].dim() < len(shape):
            given[index] = given[index].expand(shape)
        return layer_norm(x, shape, *given)

    return function


def weight_per_row(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    if weight.shape == x.shape:
        return layer_norm(x, shape, None, bias, eps) * weight
    return layer_norm(x, shape, weight, bias, eps)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (layer_norm, None),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, None, b, eps) * w, " of weight"),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, w, None, eps) + b, " of bias"),
        (weight_per_row, " of weight"),
        (expanding(0), " of weight"),
        (expanding(1), " of bias"),
        (lambda x, shape, *others: layer_norm(x, x.shape[-1:], *others), " of normalized_shape"),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, eps=eps) * w + b, "s of weight and bias"),
    ],
)
def test_the_arguments_whose_shapes_are_not_checked_are_named(
    function: Callable[..., Tensor], names: str | None
) -> None:
    text = said("rejects_wrong_shapes", target(function))
    assert text == ("" if names is None else f"does not check the shape{names}")


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
    assert name in said("restores_process_state", target(changing, forward_only=True))
    assert (dict(os.environ), list(warnings.filters)) == (environment, filters)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert float(torch.tensor(1e-40) * 1)


def test_the_check_of_threads_restores_their_number() -> None:
    before = torch.get_num_threads()

    def failing(*arguments: Any) -> Tensor:
        if torch.get_num_threads() > 1:
            raise ValueError("no threads")
        return layer_norm(*arguments)

    with pytest.raises(Exception, match="no threads"):
        said("is_correct_on_several_threads", target(failing))
    assert torch.get_num_threads() == before


def test_reuse_of_results_is_looked_for_in_training_steps_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Direction] = []

    def reuse(timed: Any) -> str | None:
        tried.append(timed.case.direction)
        return "reuses" if len(tried) == 2 else None

    monkeypatch.setattr(honesty, "reuse", reuse)
    assert said("is_the_same_while_timed", target(layer_norm)) == "reuses"
    assert tried == [Direction.FORWARD, Direction.FORWARD_BACKWARD]


# --- modules -------------------------------------------------------------------------------------


class Right(nn.Module):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class AnotherInEvaluation(Right):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - (0 if self.training else self.bias)


class FoldedInEvaluation(Right):
    """Keeps weight and bias of its first call in evaluation mode."""

    folded: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        self.folded = self.folded or (self.weight.detach().clone(), self.bias.detach().clone())
        return layer_norm(x, self.weight.shape, *self.folded, self.eps)


class OfItsFirstWeight(Right):
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        self.folded = getattr(self, "folded", self.weight.detach().clone())
        return layer_norm(x, self.weight.shape, self.folded, self.bias, self.eps)


class AnotherByItself(Right):
    """Is wrong where it is called with the parameters that it was made with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + isinstance(self.weight, nn.Parameter))


class AnotherWhenNew(Right):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)


@pytest.mark.parametrize(
    ("module", "kind", "severity"),
    [
        (AnotherInEvaluation, "is_right_in_evaluation_mode", Severity.WRONG),
        (FoldedInEvaluation, "is_right_in_evaluation_mode", Severity.WRONG),
        (OfItsFirstWeight, "follows_parameter_updates", Severity.WRONG),
        (AnotherByItself, "is_right_as_a_module", Severity.WRONG),
        (AnotherWhenNew, "initial_parameters_match_torch", Severity.WRONG),
    ],
)
def test_a_mistake_in_the_life_of_a_module_is_found(
    module: type, kind: str, severity: Severity
) -> None:
    found = contract_findings(adopt(module, "module"), CASE)
    assert kind in [own.kind for own in found if own.severity is severity]


class Wrapped(nn.Module):
    def __init__(self, size: Any, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = Right(size, eps)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


class ShowsAnotherEps(Right):
    def __init__(self, size: Any, eps: float = 1e-6) -> None:
        super().__init__(size, 1e-5)
        self.added = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.added)


SHOWN_EPS = [RemarkKind.DEFAULT_EPS, RemarkKind.SHOWN_EPS]


@pytest.mark.parametrize(("module", "remarks"), [(Wrapped, []), (ShowsAnotherEps, SHOWN_EPS)])
@pytest.mark.usefixtures("small_catalogue")
def test_a_module_is_verified_with_its_own_parameters_and_eps(
    module: type, remarks: list[RemarkKind]
) -> None:
    verdict = verify(module, quick=True, dtypes=["float32"], fail_fast=True)
    assert verdict.passed
    assert [own.kind for own in verdict.remarks] == remarks


# --- findings ------------------------------------------------------------------------------------


def batch_of_one(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(x, *others) if x.shape[0] == 6 else x.view_as(x)


@pytest.mark.parametrize(
    ("implementation", "kind", "text"),
    [
        (
            mutant("output_buffer_reused"),
            "y_shares_no_memory",
            "returns a y that shares the memory of an earlier y",
        ),
        (
            mutant("used_up_by_the_backward_of_several_axes"),
            "retained_graph_gives_same_gradients",
            ", for an x of 3x4x6x10 (two axes are normalised), but not for an x of 6x32",
        ),
        (
            target(batch_of_one, forward_only=True),
            "y_shares_no_memory",
            ", for an x of 131x37 and an x of 2x35x64 and an x of 3x2048 and 5 more, but not for "
            "an x of 6x32",
        ),
    ],
)
def test_a_violation_names_its_check_and_the_settings_if_not_all(
    implementation: Implementation, kind: str, text: str
) -> None:
    violation = next(contract_findings(implementation, CASE))
    assert (violation.severity, violation.dtypes) == (Severity.WRONG, ("float32",))
    assert violation.kind == kind
    assert violation.text.endswith(text)


def under_autocast(x: Tensor, *others: Any) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        raise TypeError("halves")
    return layer_norm(x, *others)


AUTOCAST, RAISES = "keeps_accuracy_under_autocast", RemarkKind.RAISES


@cache
def hashed(shape: Any) -> Any:
    return shape


class _Accumulating(torch.autograd.Function):
    """The identity; its backward raises if x has a gradient already."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor) -> Tensor:
        ctx.x = x
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if ctx.x.grad is not None:
            raise RuntimeError("second backward")
        return dy, None


@pytest.mark.parametrize(
    ("implementation", "severity", "kind", "text"),
    [
        (
            target(raising_for_48),
            Severity.REMARK,
            RAISES,
            "raises in the check sees_new_values_at_old_addresses "
            "(RuntimeError: made for one shape)",
        ),
        (
            target(lambda x, shape, *others: layer_norm(x, hashed(shape), *others)),
            Severity.REMARK,
            RAISES,
            "raises with a normalized_shape that is a list (TypeError: unhashable type: 'list')",
        ),
        (target(under_autocast), Severity.RAISES, AUTOCAST, "torch.autocast is on"),
        (
            target(lambda x, *others: _Accumulating.apply(layer_norm(x, *others), x)),
            Severity.RAISES,
            "backward_accumulates_gradients",
            "gradients are accumulated",
        ),
        (
            target(then(lambda y: (y, None))),  # several checks find it
            Severity.WRONG,
            "y_shares_no_memory",
            "y is of type tuple, expected torch.Tensor itself",
        ),
        (mutant("dbias_of_one_row_is_dy"), Severity.REMARK, RemarkKind.SHARES_DY, ""),
    ],
)
def test_what_raises_or_does_no_harm_is_one_finding_of_its_severity(
    implementation: Implementation, severity: Severity, kind: str, text: str
) -> None:
    (found,) = contract_findings(implementation, CASE)
    assert (found.severity, found.kind) == (severity, kind)
    assert text in found.text
    assert found.dtypes == ("float32",)


def test_no_setting_is_tried_after_the_time_is_over() -> None:
    shapes: list[torch.Size] = []

    def recording(x: Tensor, *others: Any) -> Tensor:
        shapes.append(x.shape)
        return layer_norm(x, *others)

    assert list(contract_findings(target(recording), CASE, lambda: len(shapes) > 0)) == []
    assert set(shapes) == {(6, 32)}


# --- two results of a call -----------------------------------------------------------------------

DOUBLE = case_in("float64")  # so that a fraction of a bound can be represented


def one_bound() -> float:
    """Return what added to a right y is as far off as the bound of one element."""
    axes = {"dtype": "float64", "param_dtype": "float64"}
    errors = verify_case(target(then(lambda y: y + 1e-6)), DOUBLE.shape, **axes).errors
    assert errors is not None
    return 1e-6 / errors.outputs[0].bound_ratio


@pytest.mark.parametrize(
    ("first", "again", "differs"),
    [
        (0.9, -0.9, False),
        (0, 3, True),
        (1000, 1000 + 1500, False),  # both wrong: noise of the size of their error
        (1000, 1000 + 5000, True),
        (NAN, NAN, False),
        (NAN, 0, True),
        (INFINITY, 0, True),
    ],
)
def test_two_results_agree_within_their_bounds_or_their_errors(
    first: float, again: float, differs: bool
) -> None:
    call, bound = Call.of(native, DOUBLE, Direction.FORWARD), one_bound()
    right = call.outputs()
    one, other = (replace(right, y=right.y + times * bound) for times in (first, again))
    expected = ["y"] if differs else []
    assert call.differing(one, other) == expected
    assert call.differing(other, one) == expected


def test_results_without_a_bound_never_differ() -> None:
    case = Case(implementation="one_pass", shape=(6, 32), distribution="offset_1e6")
    call = Call.of(find("one_pass"), case, Direction.FORWARD)
    outputs = call.outputs()
    for y in (outputs.y + 1, outputs.y * NAN):
        assert call.differing(outputs, replace(outputs, y=y)) == []


def test_differing_gradients_are_named() -> None:
    call = Call.of(native, CASE)
    outputs = call.outputs()
    assert outputs.dx is not None
    assert outputs.dbias is not None
    other = replace(outputs, dx=outputs.dx + 1e-3, dbias=outputs.dbias + 1e-3)
    assert call.differing(outputs, other) == ["dx", "dbias"]


# --- a GPU, on a machine without one -------------------------------------------------------------


class OnGpu(Call):
    """A call of a case on a GPU, whose tensors are on the CPU."""

    def seeded(self, further: int) -> Call:
        case = replace(self.case, seed=self.case.seed + further)
        return replace(self, inputs=make_inputs(replace(case, device="cpu")))


def of_old_values(x: Tensor) -> Callable[..., Tensor]:
    """Read, in a second call, what the inputs held before the work queued on the stream."""
    return by_call(lambda n, y: y if n == 1 else layer_norm(x, (32,)))


@pytest.mark.parametrize("is_late", [False, True])
def test_work_on_another_stream_than_the_current_one_is_found(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        done.append(f"begin {stream}")
        yield
        done.append(f"end {stream}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda: "side")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(surroundings, "spin", lambda cycles: done.append("spin"))
    function = of_old_values(make_inputs(replace(CASE, seed=1)).x) if is_late else layer_norm
    call = OnGpu(target(function), replace(CASE, device="cuda"), make_inputs(CASE))
    found = CHECK["works_on_the_current_stream"].find(call)
    before = "computes y before the work queued on the current stream is done"
    assert found == (before if is_late else None)
    assert done == ["wait", "begin side", "spin", "end side", "wait"]


def test_a_cpu_has_no_streams_and_a_gpu_no_threads_of_the_cpu() -> None:
    assert said("works_on_the_current_stream", target(layer_norm)) == ""
    on_a_gpu = Call(target(layer_norm), replace(CASE, device="cuda"), make_inputs(CASE))
    assert CHECK["is_correct_on_several_threads"].find(on_a_gpu) is None


def test_every_check_has_a_test_in_which_it_fails() -> None:
    in_tables = {check for check, *_ in (*MUTANTS, *FUNCTIONS)}
    of_arguments = {"rejects_wrong_shapes", "is_complete_when_it_returns"}
    # tests/verify/checks/test_obtained_modules.py has those
    of_modules = {name for name, own in CHECK.items() if own.find.__module__ == modules.__name__}
    others = of_arguments | of_modules | {"works_on_the_current_stream"}
    assert in_tables | others == {*CHECK}
