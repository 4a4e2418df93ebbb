"""Calls of an implementation: their results, and how a broken contract or an error is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from factories.calling import BACKWARD, FORWARD, TRAINING, Function, changed, raising
from factories.known_functions import good
from torch import Tensor

from harness.cases import LAYOUTS, Inputs, make_inputs
from harness.records import Affine, Case, Direction, Mode, Status
from harness.run.call import (
    ContractViolationError,
    ImplementationError,
    bind,
    bind_recording_forward,
    function_of,
    grad_mode,
    run_once,
)
from implementations import UnsupportedError, find

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


# === Calls that break the contract or raise become a status and one line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y[:2], "y has shape [2, 6], expected [4, 6]"),
        (lambda y: y.t(), "y has shape [6, 4], expected [4, 6]"),
        (lambda y: y[None], "y has shape [1, 4, 6], expected [4, 6]"),
        (lambda y: y.double(), "y has dtype torch.float64, expected torch.float32"),
        (lambda y: y.half(), "y has dtype torch.float16, expected torch.float32"),
        (lambda y: y.to("meta"), "y has device meta, expected cpu"),
        (lambda y: (y, y.mean()), "y is of type tuple, expected torch.Tensor itself"),
        (lambda y: [y], "y is of type list, expected torch.Tensor itself"),
        (lambda y: y.detach().numpy(), "y is of type ndarray, expected torch.Tensor itself"),
        (lambda y: None, "y is of type NoneType, expected torch.Tensor itself"),
        (lambda y: 1, "y is of type int, expected torch.Tensor itself"),
    ],
)
@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=lambda each: each.direction)
def test_another_type_shape_dtype_or_device_is_named(
    case: Case, change: Callable[[Tensor], object], words: str
) -> None:
    with pytest.raises(ContractViolationError) as found:
        run_once(changed(change), case, make_inputs(case))
    assert str(found.value) == words


def in_place(x: Tensor, *rest: Any) -> Tensor:
    with torch.no_grad():
        x.detach().add_(1)
    return good(x, *rest)


def scales_weight(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    weight.detach().mul_(2)
    return good(x, shape, weight, bias, eps)


def clears_bias(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y = good(x, shape, weight, bias.clone(), eps)
    bias.detach().zero_()
    return y


def negates_zeros(x: Tensor, *rest: Any) -> Tensor:
    x.detach().copy_(torch.where(x == 0, -x, x))
    return good(x, *rest)


@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=lambda each: each.direction)
@pytest.mark.parametrize("function", [in_place, scales_weight, clears_bias, negates_zeros])
def test_an_input_that_was_modified_is_noticed(function: Function, case: Case) -> None:
    inputs = make_inputs(case)
    inputs.x[0, 0] = 0
    with pytest.raises(ContractViolationError, match="modified one of its inputs"):
        run_once(function, case, inputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_element_that_was_modified_is_noticed_in_every_layout(layout: str, dtype: str) -> None:
    for shape in ((1,), (1, 1), (1, 1, 1)):
        case = Case(implementation="", shape=shape, dtype=dtype, param_dtype=dtype, layout=layout)
        assert run_once(good, case, make_inputs(case)).y.shape == shape
        with pytest.raises(ContractViolationError, match="modified one of its inputs"):
            run_once(in_place, case, make_inputs(case))


def test_inputs_with_nan_are_not_modified_inputs() -> None:
    inputs = make_inputs(FORWARD)
    inputs.x[0, 0] = float("nan")
    assert run_once(good, FORWARD, inputs).y.shape == (4, 6)


def test_a_y_that_is_x_itself_is_not_a_modification() -> None:
    assert run_once(lambda x, *_: x, FORWARD, make_inputs(FORWARD)).y.shape == (4, 6)


@pytest.mark.parametrize("case", [BACKWARD, TRAINING], ids=lambda each: each.direction)
def test_a_y_without_gradient_is_noticed(case: Case) -> None:
    with pytest.raises(ContractViolationError, match="without gradient"):
        run_once(changed(Tensor.detach), case, make_inputs(case))


@pytest.mark.parametrize(("detached", "gradient"), [(0, "dx"), (2, "dweight"), (3, "dbias")])
def test_a_missing_gradient_is_noticed(detached: int, gradient: str) -> None:
    def function(*arguments: Any) -> Tensor:
        given = list(arguments)
        given[detached] = given[detached].detach()
        return good(*given)

    with pytest.raises(ContractViolationError, match=f"{gradient} is None"):
        run_once(function, BACKWARD, make_inputs(BACKWARD))


# === Exceptions of an implementation become a status and one line; others pass through


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
