"""Contract checks of arguments: valid forms are accepted, invalid ones raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ImplementationError, checked, guarded, refuses
from harness.numerics.outputs import Outputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.checks.outputs import (
    compute_y,
    first_differing_output,
    forward_case,
    outputs_beyond,
)
from harness.verify.scope import InScope, fitted, scope_of
from implementations.contract import Implementation

__all__ = [
    "accepts_arguments_like_torch",
    "rejects_parameters_of_wrong_shape",
    "rejects_parameters_with_fewer_axes",
    "rejects_wrong_normalized_shape",
]

_SMALL = 1 / 256  # scale of x; its variance is then close to eps, so that eps changes y


def rejects_parameters_of_wrong_shape(implementation: Implementation, case: Case) -> str | None:
    """A weight or bias of another shape raises and is not broadcast."""
    case, inputs = forward_case(implementation, case, (4, 6))
    shape = case.normalized_shape
    for name in ("weight", "bias"):
        parameter = getattr(inputs, name)
        if parameter is None:
            continue
        for wrong in (
            parameter[:1],
            parameter[: shape[0] // 2],
            parameter.repeat(2, *(1 for _ in shape[1:])),
            parameter.expand(4, *shape),
        ):
            given = {"weight": inputs.weight, "bias": inputs.bias, name: wrong}
            arguments = (inputs.x, shape, given["weight"], given["bias"], case.eps)
            if wrong.shape != shape and not refuses(implementation.function, *arguments):
                return (
                    f"accepts a {name} of shape {list(wrong.shape)} for a normalized_shape of "
                    f"{list(shape)}"
                )
    return None


def rejects_wrong_normalized_shape(implementation: Implementation, case: Case) -> str | None:
    """A normalized_shape that does not match the last axes of x raises."""
    scope = scope_of(implementation)
    if scope.normalized_shape is not None:
        return None
    case, inputs = forward_case(implementation, case, (4, 6))
    for wrong in ((4,), (2, 6), (4, 3), (3, 4, 6)):
        parameters: list[Tensor | None] = [None, None]
        if Affine.NONE not in scope.affines:
            given = (inputs.weight, inputs.bias)
            parameters = [None if each is None else each.new_ones(wrong) for each in given]
        if len(wrong) in scope.normalized_dims and not refuses(
            implementation.function, inputs.x, wrong, *parameters, case.eps
        ):
            return f"accepts a normalized_shape of {list(wrong)} for an x of shape [4, 6]"
    return None


def rejects_parameters_with_fewer_axes(implementation: Implementation, case: Case) -> str | None:
    """With several normalized axes, a weight or bias of fewer axes raises."""
    case = replace(case, shape=(3, 5, 7), normalized_dims=2, direction=Direction.FORWARD)
    case = fitted(implementation, case)
    inputs, shape = make_inputs(case), case.normalized_shape
    if inputs.weight is None or inputs.bias is None or len(shape) < 2:
        return None
    compute_y(implementation, case, inputs)  # a target that declines two axes skips this check
    for weight, bias in ((inputs.weight[0], inputs.bias), (inputs.weight, inputs.bias[0])):
        if not refuses(implementation.function, inputs.x, shape, weight, bias, case.eps):
            return (
                f"accepts a weight or bias of shape {list(shape[1:])} for a normalized_shape of "
                f"{list(shape)}"
            )
    return None


def accepts_arguments_like_torch(implementation: Implementation, case: Case) -> str | None:
    """Keyword arguments, a list as normalized_shape, an int eps and no eps give the same y."""
    case, inputs = forward_case(implementation, case, (6, 32))
    inputs = replace(inputs, x=inputs.x * _SMALL)
    scope = scope_of(implementation)
    usual = scope.eps if scope.eps is not None else 1e-5
    default = scope.default_eps if scope.default_eps is not None else 1e-5
    shape, function = case.normalized_shape, implementation.function
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    forms: dict[str, tuple[float, partial[Tensor]]] = {
        "a normalized_shape that is a list": (
            usual,
            partial(function, x, list(shape), weight, bias, usual),
        ),
        "keyword arguments": (
            usual,
            partial(function, x, normalized_shape=shape, weight=weight, bias=bias, eps=usual),
        ),
        "no eps": (default, partial(function, x, shape, weight, bias)),
    }
    if scope.eps is None:
        forms["an eps that is an int"] = (1.0, partial(function, x, shape, weight, bias, 1))
    for form, (eps, call) in forms.items():
        if not _fits_signature(call):
            continue  # its arguments have other names, or none may be left out
        with_eps = replace(case, eps=eps)
        expected = Outputs(y=compute_y(implementation, with_eps, inputs).clone())
        with _naming(form), torch.no_grad():
            outputs = Outputs(y=checked("y", guarded(call)(), x))
            if first_differing_output(implementation, with_eps, inputs, expected, outputs):
                return f"gives another y for {form}"
    if case.normalized_dims > 1:
        return None
    with _naming("an x of one axis"):
        return _differs_for_one_row(implementation, case, inputs)
    return None


def _fits_signature(call: partial[Tensor]) -> bool:
    """Whether the function's signature accepts the arguments; True if it has no signature."""
    function: Callable[..., object] = call.func
    function = function.function if isinstance(function, InScope) else function
    try:
        signature(function).bind(*call.args, **call.keywords)
    except TypeError:
        return False
    except ValueError:  # it declares none
        return True
    return True


def _differs_for_one_row(implementation: Implementation, case: Case, inputs: Inputs) -> str | None:
    """Compare an x of one axis with an x of one row."""
    shape = case.normalized_shape
    one_row, one_row_case = replace(inputs, x=inputs.x[:1]), replace(case, shape=(1, *shape))
    y = compute_y(implementation, replace(case, shape=shape), replace(inputs, x=inputs.x[0]))
    expected = Outputs(y=compute_y(implementation, case, one_row))
    if outputs_beyond(implementation, one_row_case, one_row, expected):
        return None  # it is wrong, and may be wrong by another amount each time
    outputs = Outputs(y=y[None])
    if first_differing_output(implementation, one_row_case, one_row, expected, outputs):
        return "gives another y for an x of one axis"
    return None


@contextmanager
def _naming(form: str) -> Iterator[None]:
    """Name the form of the call in what the implementation raises; declining a form is allowed."""
    try:
        yield
    except ImplementationError as raised:
        if raised.status is not Status.UNSUPPORTED:
            raise ImplementationError(raised.status, f"with {form}: {raised.reason}") from raised
