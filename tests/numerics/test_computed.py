"""Calls of an implementation that keep the contract, and calls that are bound once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.calling import BACKWARD, FORWARD, TRAINING, changed, raising
from factories.known_functions import good
from torch import Tensor

from harness.cases.inputs import make_inputs
from harness.records import Affine, Case, Direction, Mode
from harness.run.call import (
    ImplementationError,
    bind,
    bind_recording_forward,
    function_of,
    grad_mode,
    run_once,
)
from implementations import find

# --- a contract that is kept ---------------------------------------------------------------------


def test_a_forward_returns_only_y() -> None:
    inputs = make_inputs(FORWARD)
    outputs = run_once(good, FORWARD, inputs)
    assert torch.equal(outputs.y, good(inputs.x, (6,), inputs.weight, inputs.bias))
    assert (outputs.dx, outputs.dweight, outputs.dbias) == (None, None, None)


@pytest.mark.parametrize("case", [BACKWARD, TRAINING], ids=lambda each: each.direction)
def test_a_backward_gives_the_gradients_that_autograd_gives(case: Case) -> None:
    inputs = make_inputs(case)
    outputs = run_once(good, case, inputs)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs.tensors[:-1]]
    expected = torch.autograd.grad(good(leaves[0], (6,), *leaves[1:]), leaves, inputs.dy)
    assert all(map(torch.equal, (outputs.dx, outputs.dweight, outputs.dbias), expected))
    assert not outputs.y.requires_grad


@pytest.mark.parametrize(
    ("affine", "names"),
    [
        (Affine.BOTH, {"dx", "dweight", "dbias"}),
        (Affine.WEIGHT, {"dx", "dweight"}),
        (Affine.BIAS, {"dx", "dbias"}),
        (Affine.NONE, {"dx"}),
    ],
)
def test_each_existing_parameter_gets_a_gradient(affine: Affine, names: set[str]) -> None:
    case = Case(
        implementation="implementation", shape=(4, 6), direction=Direction.BACKWARD, affine=affine
    )
    outputs = run_once(good, case, make_inputs(case))
    found = {name for name in ("dx", "dweight", "dbias") if getattr(outputs, name) is not None}
    assert found == names


@pytest.mark.parametrize("affine", Affine)
def test_parameters_are_passed_under_their_own_names(affine: Affine) -> None:
    case = Case(implementation="implementation", shape=(4, 6), affine=affine, eps=0.25)
    inputs = make_inputs(case)
    seen: list[Any] = []

    def implementation(x: Tensor, *rest: Any) -> Tensor:
        seen.extend([x, *rest])
        return good(x, *rest)

    run_once(implementation, case, inputs)
    x, normalized_shape, weight, bias, eps = seen
    assert x is inputs.x
    assert weight is inputs.weight
    assert bias is inputs.bias
    assert (normalized_shape, eps) == ((6,), 0.25)


def test_nan_in_an_output_is_not_a_contract_violation() -> None:
    outputs = run_once(changed(lambda y: y * float("nan")), FORWARD, make_inputs(FORWARD))
    assert outputs.y.isnan().all()


@pytest.mark.parametrize("shape", [(0, 6), (4, 0)], ids=str)
def test_empty_inputs_keep_the_contract(shape: tuple[int, ...]) -> None:
    case = Case(implementation="implementation", shape=shape, direction=Direction.BACKWARD)

    def implementation(
        x: Tensor, normalized_shape: object, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        return x * weight + bias

    outputs = run_once(implementation, case, make_inputs(case))
    assert outputs.y.shape == shape


# --- calls that are bound once and made often ----------------------------------------------------


@pytest.mark.parametrize(("case", "forwards"), [(FORWARD, 2), (BACKWARD, 1), (TRAINING, 2)])
def test_a_bound_call_can_be_repeated(case: Case, forwards: int) -> None:
    calls: list[None] = []

    def function(*arguments: Any) -> Tensor:
        calls.append(None)
        return good(*arguments)

    with grad_mode(case):
        call = bind(function, case, make_inputs(case).tensors)
        one, other = call(), call()
    assert len(calls) == forwards
    assert len(one) == len(other) == (4 if case is FORWARD else 3)  # type: ignore[arg-type]
    assert all(map(torch.equal, one, other))  # type: ignore[call-overload]


def test_the_forward_of_a_backward_case_keeps_its_graph() -> None:
    y = bind_recording_forward(good, BACKWARD, make_inputs(BACKWARD).tensors)()
    assert isinstance(y, Tensor)
    assert y.grad_fn is not None


@pytest.mark.parametrize("bound", [bind, bind_recording_forward])
def test_a_bound_call_is_guarded_too(bound: Callable[..., Callable[[], object]]) -> None:
    with pytest.raises(ImplementationError, match="ValueError: no"):
        bound(raising(ValueError("no")), BACKWARD, make_inputs(BACKWARD).tensors)()


def test_binding_leaves_the_inputs_without_gradient() -> None:
    inputs = make_inputs(BACKWARD)
    bind(good, BACKWARD, inputs.tensors)()
    assert not any(tensor.requires_grad for tensor in inputs.tensors)
    assert inputs.x.grad is None


# --- modes ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
def test_only_compiled_mode_compiles_the_function() -> None:
    native = find("native")
    assert function_of(native, Mode.EAGER) is native.function
    assert function_of(native, Mode.COMPILED) is not native.function
