"""Exceptions of an implementation become a status and one line; others pass through."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from factories.calling import BACKWARD, FORWARD, TRAINING, raising
from factories.known_functions import good
from torch import Tensor

from harness.cases.inputs import Inputs, make_inputs
from harness.records import Case, Status
from harness.run.call import ImplementationError, run_once
from implementations import UnsupportedError


class FailingGradient(torch.autograd.Function):
    """The identity, whose gradient raises what it was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: BaseException) -> Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise ctx.error


RAISED = [
    (UnsupportedError("rows longer than 1024"), Status.UNSUPPORTED, "rows longer than 1024"),
    (torch.OutOfMemoryError("tried 3 GiB"), Status.OUT_OF_MEMORY, "tried 3 GiB"),
    (MemoryError(), Status.OUT_OF_MEMORY, "out of memory"),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        Status.OUT_OF_MEMORY,
        "DefaultCPUAllocator: can't allocate memory: you tried",
    ),
    (RuntimeError("first\nsecond\nthird"), Status.ERROR, "RuntimeError: first"),
    (ValueError("\n\n  shapes differ  "), Status.ERROR, "ValueError: shapes differ"),
    (AssertionError(), Status.ERROR, "AssertionError: "),
    (NotImplementedError("no"), Status.ERROR, "NotImplementedError: no"),
    (StopIteration("done"), Status.ERROR, "StopIteration: done"),
]


@pytest.mark.parametrize(("error", "status", "reason"), RAISED, ids=lambda each: repr(each)[:30])
@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=lambda each: each.direction)
def test_an_exception_becomes_a_status_and_one_line(
    case: Case, error: Exception, status: Status, reason: str
) -> None:
    with pytest.raises(ImplementationError) as found:
        run_once(raising(error), case, make_inputs(case))
    assert (found.value.status, found.value.reason) == (status, reason)
    assert found.value.__cause__ is error
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("case", [BACKWARD, TRAINING], ids=lambda each: each.direction)
def test_an_exception_of_the_backward_becomes_a_status_too(case: Case) -> None:
    def implementation(x: Tensor, *rest: Any) -> Tensor:
        y: Tensor = FailingGradient.apply(good(x, *rest), UnsupportedError("no gradient here"))
        return y

    with pytest.raises(ImplementationError) as found:
        run_once(implementation, case, make_inputs(case))
    assert (found.value.status, found.value.reason) == (Status.UNSUPPORTED, "no gradient here")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=lambda each: each.direction)
def test_an_exception_that_ends_the_program_is_not_caught(case: Case, error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_once(raising(error), case, make_inputs(case))


def test_an_error_of_the_harness_is_raised_as_it_is() -> None:
    too_few = Inputs(x=torch.ones(4, 6), weight=None, bias=None, dy=None)
    with pytest.raises(IndexError):  # the case says that there are parameters
        run_once(good, FORWARD, too_few)
