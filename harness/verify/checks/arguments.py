"""Contract checks of arguments: valid forms are accepted, invalid ones raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.numerics import Outputs, copies_of
from harness.records import Affine, Direction, Status
from harness.records.finding import RemarkKind
from harness.records.text import listed
from harness.run import ImplementationError
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import SMALL, TWO_AXES, RaisedInFormError, check
from harness.verify.in_scope import InScope, scope_of

__all__ = [
    "accepts_arguments_like_torch",
    "is_right_after_a_refusal",
    "rejects_wrong_shapes",
    "takes_a_list_that_has_changed",
]

_OTHER = (5, 48)
_SMALL = 1 / 256  # scale of x; its variance is then close to eps, so that eps changes y


@check(Direction.FORWARD, remark=RemarkKind.MALFORMED_ARGUMENTS)
def rejects_wrong_shapes(call: Call) -> Iterator[str]:
    """A weight, bias or normalized_shape whose shape does not fit x raises."""
    accepted: list[str] = []
    for accepts in (_wrong_parameters, _wrong_normalized_shapes, _parameters_with_fewer_axes):
        with suppress(ImplementationError):  # outside the scope
            accepted += accepts(call)
    names = [name for name in ("weight", "bias", "normalized_shape") if name in accepted]
    if names:
        yield f"does not check the shape{'s' if len(names) > 1 else ''} of {listed(names)}"


def _wrong_parameters(call: Call) -> Iterator[str]:
    """Yield the parameters of which another shape is accepted, by broadcasting."""
    call = call.changed(shape=(4, 6))
    shape = call.case.normalized_shape
    for name, parameter in call.parameters.items():
        for wrong in (
            parameter[:1],
            parameter[: shape[0] // 2],
            parameter.repeat(2, *(1 for _ in shape[1:])),
            parameter.expand(4, *shape),
        ):
            if wrong.shape != shape and not call.is_refused(shape, **{name: wrong}):
                yield name


def _wrong_normalized_shapes(call: Call) -> Iterator[str]:
    """Yield normalized_shape if one is accepted that does not match the last axes of x."""
    scope = scope_of(call.target)
    if scope.normalized_shape is not None:
        return
    call = call.changed(shape=(4, 6))
    needed = {} if scope.accepts("affine", Affine.NONE) else call.parameters
    for wrong in ((4,), (2, 6), (4, 3), (3, 4, 6)):
        parameters: dict[str, Tensor | None] = {"weight": None, "bias": None}
        parameters |= {name: parameter.new_ones(wrong) for name, parameter in needed.items()}
        is_taken = scope.accepts("normalized_axes", len(wrong))
        if is_taken and not call.is_refused(wrong, **parameters):
            yield "normalized_shape"


def _parameters_with_fewer_axes(call: Call) -> Iterator[str]:
    """Yield the parameters that are accepted with fewer axes than are normalised."""
    call = call.changed(shape=(3, 5, 7), normalized_dims=2)
    shape = call.case.normalized_shape
    if len(call.parameters) < 2 or len(shape) < 2:
        return
    call.outputs()  # a target that declines two axes is not asked
    for name, parameter in call.parameters.items():
        if not call.is_refused(shape, **{name: parameter[0]}):
            yield name


@check(Direction.FORWARD, SMALL, TWO_AXES)
def accepts_arguments_like_torch(call: Call) -> Iterator[str]:
    """Keyword arguments, a list or torch.Size, an int eps and no eps give the same y.

    So do an int as normalized_shape and numbers of NumPy, which may raise.
    """
    call = call.on(x=call.inputs.x * _SMALL)
    scope, shape = scope_of(call.target), call.case.normalized_shape
    usual = scope.eps if scope.eps is not None else 1e-5
    default = scope.default_eps if scope.default_eps is not None else 1e-5
    given = {"weight": call.inputs.weight, "bias": call.inputs.bias}
    parameters = tuple(given.values())
    as_list = [*shape]
    forms: list[tuple[str, float, tuple[Any, ...], dict[str, Any]]] = [
        ("a normalized_shape that is a list", usual, (as_list, *parameters, usual), {}),
        ("a torch.Size as normalized_shape", usual, (torch.Size(shape), *parameters, usual), {}),
        ("keyword arguments", usual, (), {"normalized_shape": shape, **given, "eps": usual}),
        ("no eps", default, (shape, *parameters), {}),
    ]
    if scope.eps is None:
        forms.append(("an eps that is an int", 1.0, (shape, *parameters, 1), {}))
    for form, eps, arguments, named in forms:
        if not _fits_signature(call.target.function, call.inputs.x, *arguments, **named):
            continue  # its arguments have other names, or none may be left out
        with_eps = call.of_case(eps=eps)
        expected = copies_of(with_eps.outputs())
        with _naming(form):
            found = call.y_for(*arguments, **named)
            yield from with_eps.gives_another(expected, found, f"for {form}")
    if as_list != [*shape]:
        yield "changes the list that it is given as normalized_shape"
    may_raise: list[tuple[str, Any, Any]] = [
        ("a normalized_shape of NumPy integers", tuple(map(np.int64, shape)), usual)
    ]
    if len(shape) == 1:
        may_raise.append(("a normalized_shape that is an int", shape[0], usual))
    if scope.eps is None:
        may_raise.append(("an eps that is a numpy.float32", shape, np.float32(0.5)))
    for form, normalized_shape, eps in may_raise:
        with_eps = call.of_case(eps=float(eps))
        expected = copies_of(with_eps.outputs())
        with suppress(ImplementationError):
            found = call.y_for(normalized_shape, *parameters, eps)
            yield from with_eps.gives_another(expected, found, f"for {form}")
    if len(shape) == 1:
        with _naming("an x of one axis"):
            yield from _another_for_one_row(call)


@check(Direction.FORWARD)
def takes_a_list_that_has_changed(call: Call) -> Iterator[str]:
    """A list that is normalized_shape may be another one in the next call."""
    given, is_taken = [*call.case.normalized_shape], False
    has_changed = "if the list that is its normalized_shape has changed"
    for own in (call, call.changed(shape=_OTHER)):
        given[:] = own.case.normalized_shape
        expected = own.outputs()
        try:
            found = own.y_for(given, own.inputs.weight, own.inputs.bias, own.case.eps)
        except ImplementationError:
            if is_taken:
                yield f"raises {has_changed}"
            return  # it takes no list
        yield from own.gives_another(expected, found, has_changed)
        is_taken = True


@check(None)
def is_right_after_a_refusal(call: Call) -> Iterator[str]:
    """A call that raised leaves nothing behind."""
    expected, other = copies_of(call.outputs()), call.changed(shape=_OTHER)
    x, shape = other.inputs.x, other.case.normalized_shape
    for wrong in (x.long(), x[..., 1:]):
        other.on(x=wrong).is_refused(shape)
    yield from call.gives_another(expected, call.outputs(), "after a call that raised")


def _fits_signature(function: Callable[..., object], *arguments: Any, **named: Any) -> bool:
    """Whether the function's signature accepts the arguments; True if it has no signature."""
    function = function.function if isinstance(function, InScope) else function
    try:
        with suppress(ValueError):  # it declares none
            signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    return True


def _another_for_one_row(call: Call) -> Iterator[str]:
    """Compare an x of one axis with an x of one row."""
    rows, shape = call.inputs.x.flatten(0, -2), [*call.case.normalized_shape]
    found = call.on(x=rows[0]).y_for(shape, call.inputs.weight, call.inputs.bias, call.case.eps)
    one_row = call.on(x=rows[:1]).forward()
    expected = one_row.outputs()
    if not one_row.beyond(expected):  # else it may be wrong by another amount each time
        found = Outputs(y=found.y[None])
        yield from one_row.gives_another(expected, found, "for an x of one axis")


@contextmanager
def _naming(form: str) -> Iterator[None]:
    """Name the form of the call in what the implementation raises; declining a form is allowed."""
    try:
        yield
    except ImplementationError as raised:
        if raised.status is not Status.UNSUPPORTED:
            raise RaisedInFormError(raised, form) from raised
