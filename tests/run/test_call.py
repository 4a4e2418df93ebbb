"""Calls of an implementation: their results, and how a broken contract or an error is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
import torch
from factories.known_functions import good
from torch import Tensor

from harness.cases import make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.run import (
    ContractViolationError,
    ImplementationError,
    bind,
    grad_mode,
    run_once,
)
from implementations import UnsupportedError

FORWARD = Case(implementation="implementation", shape=(4, 6))
BACKWARD = replace(FORWARD, direction=Direction.BACKWARD)
TRAINING = replace(FORWARD, direction=Direction.FORWARD_BACKWARD)
every_direction = pytest.mark.parametrize("case", [FORWARD, BACKWARD, TRAINING])
with_gradients = pytest.mark.parametrize("case", [BACKWARD, TRAINING])


def changed(change: Callable[[Tensor], object]) -> Callable[..., Any]:
    """Return an implementation that changes y before returning it."""
    return lambda *arguments: change(good(*arguments))


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*arguments: object) -> NoReturn:
        raise error

    return function


# --- a contract that is kept ---------------------------------------------------------------------


def test_a_forward_returns_only_y() -> None:
    case = replace(FORWARD, affine=Affine.BIAS, eps=0.25)
    inputs = make_inputs(case)
    outputs = run_once(good, case, inputs)
    assert torch.equal(outputs.y, good(inputs.x, (6,), None, inputs.bias, 0.25))
    assert (outputs.dx, outputs.dweight, outputs.dbias) == (None, None, None)


@with_gradients
@pytest.mark.parametrize("affine", Affine)
def test_a_backward_gives_each_existing_input_the_gradient_of_autograd(
    case: Case, affine: Affine
) -> None:
    case = replace(case, affine=affine)
    inputs = make_inputs(case)
    outputs = run_once(good, case, inputs)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs.tensors[:-1]]
    names = [name for name in ("weight", "bias") if getattr(inputs, name) is not None]
    y = good(leaves[0], (6,), **dict(zip(names, leaves[1:], strict=True)))
    found = [outputs.dx, *(getattr(outputs, f"d{name}") for name in names)]
    assert all(map(torch.equal, found, torch.autograd.grad(y, leaves, inputs.dy)))
    assert (outputs.dweight is None) == ("weight" not in names)
    assert (outputs.dbias is None) == ("bias" not in names)
    assert not outputs.y.requires_grad


# --- a contract that is broken -------------------------------------------------------------------


def negates_zeros_of_x(x: Tensor, *others: Any) -> Tensor:
    y = good(x.clone(), *others)
    with torch.no_grad():
        x.copy_(torch.where(x == 0, -x, x))
    return y


@every_direction
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (changed(lambda y: y[None]), "y has shape [1, 4, 6], expected [4, 6]"),
        (changed(Tensor.double), "y has dtype torch.float64, expected torch.float32"),
        (changed(lambda y: y.to("meta")), "y has device meta, expected cpu"),
        (changed(lambda y: (y, y)), "y is of type tuple, expected torch.Tensor itself"),
        (negates_zeros_of_x, "modified one of its inputs"),
    ],
)
def test_a_call_that_breaks_the_contract_is_named(
    case: Case, function: Callable[..., Any], words: str
) -> None:
    inputs = make_inputs(case)
    inputs.x[0, 0] = 0
    with pytest.raises(ContractViolationError) as found:
        run_once(function, case, inputs)
    assert str(found.value) == words


def detaching(place: int) -> Callable[..., Tensor]:
    def function(*arguments: Any) -> Tensor:
        return good(*arguments[:place], arguments[place].detach(), *arguments[place + 1 :])

    return function


@with_gradients
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (changed(Tensor.detach), "returned a y without gradient"),
        (detaching(0), "dx is None"),
        (detaching(2), "dweight is None"),
        (detaching(3), "dbias is None"),
    ],
)
def test_a_missing_gradient_is_named(case: Case, function: Any, words: str) -> None:
    with pytest.raises(ContractViolationError, match=words):
        run_once(function, case, make_inputs(case))


# --- exceptions of an implementation become a status and one line; others pass through -----------


NO_MEMORY = "CPUAllocator: can't allocate memory"


def failing_backward(*arguments: Any) -> Tensor:
    y, error = good(*arguments), UnsupportedError("no gradient here")
    if not y.requires_grad:
        raise error
    y.register_hook(raising(error))
    return y


@every_direction
@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        (failing_backward, Status.UNSUPPORTED, "no gradient here"),
        (raising(torch.OutOfMemoryError("3 GiB")), Status.OUT_OF_MEMORY, "3 GiB"),
        (raising(RuntimeError(NO_MEMORY)), Status.OUT_OF_MEMORY, NO_MEMORY),
        (raising(ValueError("\n\n  shapes\nmore")), Status.ERROR, "ValueError: shapes"),
    ],
)
def test_an_exception_becomes_a_status_and_one_line(
    case: Case, function: Callable[..., Any], status: Status, reason: str
) -> None:
    with pytest.raises(ImplementationError) as alone:
        run_once(function, case, make_inputs(case))
    with grad_mode(case), pytest.raises(ImplementationError) as bound:
        bind(function, case, make_inputs(case).tensors)()
    for found in (alone.value, bound.value):
        assert (found.status, found.reason, str(found)) == (status, reason, reason)
