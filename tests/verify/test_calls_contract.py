"""What a call promises beside its answer is missed where it is broken, whatever breaks it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.numerics.computed import ImplementationError
from harness.verify.checks.calls import (
    is_as_right_under_autocast,
    leaves_the_process_as_it_was,
    records_nothing_unasked,
    serves_several_callers_at_once,
    takes_arguments_as_torch_does,
)
from harness.verify.checks.contract_checks import refuses_parameters_of_fewer_axes
from harness.verify.trial import first_case
from implementations import Implementation, UnsupportedError

CASE = first_case("implementation", "float32", "cpu")


def right(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def implementation(function: Callable[..., Any], **claims: Any) -> Implementation:
    return Implementation(name="implementation", function=function, source="", **claims)


# --- forms of a call -----------------------------------------------------------------------------


def test_names_of_its_own_are_no_broken_promise() -> None:
    def named(x: Tensor, shape: Sequence[int], gamma: Any, beta: Any, epsilon: float) -> Tensor:
        return right(x, shape, gamma, beta, epsilon)

    assert takes_arguments_as_torch_does(implementation(named), CASE) is None


def test_an_eps_that_counts_as_a_float_alone_is_found() -> None:
    def choosy(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Tensor:
        return right(x, normalized_shape, weight, bias, eps if isinstance(eps, float) else 0.0)

    found = takes_arguments_as_torch_does(implementation(choosy), CASE)
    assert found == "gives another y for an eps that is an int"


def test_a_list_that_cannot_be_hashed_is_found() -> None:
    @cache
    def plan(shape: Any) -> Any:
        return shape

    def planned(x: Tensor, shape: Any, *others: Any) -> Tensor:
        return right(x, plan(shape), *others)

    with pytest.raises(
        ImplementationError, match="with a normalized_shape that is a list: TypeError"
    ):
        takes_arguments_as_torch_does(implementation(planned), CASE)


def test_a_form_that_is_declined_is_a_limit() -> None:
    def flat(x: Tensor, *others: Any) -> Tensor:
        if x.dim() == 1:
            raise UnsupportedError("rows alone")
        return right(x, *others)

    assert takes_arguments_as_torch_does(implementation(flat), CASE) is None


def test_an_x_of_one_axis_taken_for_something_else_is_found() -> None:
    def spread(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
        return bias.clone() if x.dim() == 1 else right(x, shape, weight, bias, eps)

    found = takes_arguments_as_torch_does(implementation(spread), CASE)
    assert found == "gives another y for an x of one axis"


@pytest.mark.parametrize("which", [0, 1])
def test_a_parameter_that_is_broadcast_over_an_axis_is_found(which: int) -> None:
    def broadcasting(x: Tensor, shape: Any, *others: Any) -> Tensor:
        parameters = list(others[:2])
        if parameters[which] is not None:
            parameters[which] = parameters[which].expand(shape)
        return right(x, shape, *parameters, *others[2:])

    found = refuses_parameters_of_fewer_axes(implementation(broadcasting), CASE)
    assert found == "accepts a weight or bias of shape [7] for a normalized_shape of [5, 7]"


# --- what it leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (lambda: torch.manual_seed(3), "torch's random numbers"),
        (lambda: torch.rand(1), "torch's random numbers"),
        (lambda: random.seed(3), "Python's random numbers"),
        (lambda: np.random.seed(3), "NumPy's random numbers"),
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype"),
        (lambda: torch.set_num_threads(1), "the number of threads"),
        (lambda: torch.set_flush_denormal(True), "what becomes of subnormal numbers"),
        (lambda: torch.use_deterministic_algorithms(True), "determinism"),
        (lambda: torch.set_grad_enabled(False), "whether gradients are recorded"),
    ],
)
def test_what_is_changed_for_the_caller_is_found_and_put_back(
    changes: Callable[[], object], what: str
) -> None:
    def changing(*arguments: Any) -> Tensor:
        y = right(*arguments)
        changes()
        return y

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    found = leaves_the_process_as_it_was(implementation(changing, forward_only=True), CASE)
    assert found == f"changes {what}, which is the caller's"
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert float(torch.tensor(1e-40) * 1)


def test_what_is_put_back_by_the_guest_is_not_changed() -> None:
    def careful(*arguments: Any) -> Tensor:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
        return right(*arguments)

    assert leaves_the_process_as_it_was(implementation(careful), CASE) is None


def test_a_y_that_asks_for_a_gradient_of_its_own_is_found() -> None:
    def asking(*arguments: Any) -> Tensor:
        return right(*arguments).detach().requires_grad_()

    found = records_nothing_unasked(implementation(asking), CASE)
    assert found == "y asks for a gradient under torch.no_grad()"

    def asking_if_recorded(*arguments: Any) -> Tensor:
        y = right(*arguments)
        return y.requires_grad_() if torch.is_grad_enabled() else y

    found = records_nothing_unasked(implementation(asking_if_recorded), CASE)
    assert found == "y asks for a gradient where no input does"


# --- in company ----------------------------------------------------------------------------------


def test_another_thread_of_python_that_is_answered_otherwise_is_found() -> None:
    main = threading.current_thread()

    def of_one_thread(*arguments: Any) -> Tensor:
        y = right(*arguments)
        return y if threading.current_thread() is main else y + 1

    found = serves_several_callers_at_once(implementation(of_one_thread), CASE)
    assert found == "y is another where a second thread of Python calls at the same time"
    on_a_gpu = implementation(of_one_thread, devices=frozenset({"cuda"}))
    assert serves_several_callers_at_once(on_a_gpu, CASE) is None


def test_what_autocast_takes_digits_from_is_found_in_float32() -> None:
    def multiplying(x: Tensor, shape: Any, *others: Any) -> Tensor:
        return right((x @ torch.eye(x.shape[-1], dtype=x.dtype)).to(x.dtype), shape, *others)

    found = is_as_right_under_autocast(implementation(multiplying), CASE)
    assert found == "loses digits under torch.autocast, which torch's own keeps"
    halves = first_case("implementation", "float16", "cpu")
    assert is_as_right_under_autocast(implementation(multiplying), halves) is None
