"""Contract checks of the derivative of the gradients: it is right, and there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ImplementationError, guarded
from harness.records import Case
from harness.verify.checks.answers import outputs_beyond, outputs_of
from harness.verify.checks.graph import INPUTS, with_each_affine
from implementations.contract import Implementation

__all__ = ["differentiates_again_correctly", "differentiates_again_without_error"]

_DIRECTIONS = 4  # no term is at right angles to all of them
_STEP = 1 / 128  # of the spread of x; less is rounding in float32, more is curvature
_OF_A_TERM = 0.05  # right ones came within 1e-4 here, one without a term 0.27 off
_NOTHING = 1e-6  # of a change that float32 may make of none


def differentiates_again_correctly(implementation: Implementation, case: Case) -> str | None:
    """The derivative of the gradients is what they change by, or an error: no term is left out.

    A term is left out where a backward, itself recorded, computes from statistics that were saved
    as constants. Checked in float32 and float64, whose rounding hides no term, where the gradients
    are right: coarser ones change by more or less than their derivative.
    """
    for asked, inputs in _with_right_gradients(implementation, case):
        second = _second_derivative(implementation, asked, inputs)
        if isinstance(second, ImplementationError):
            continue
        if name := _wrongly_derived(implementation, asked, inputs, second):
            return f"has a wrong second derivative: that of its gradients by {name}, without error"
    return None


def differentiates_again_without_error(implementation: Implementation, case: Case) -> str | None:
    """The gradients have a derivative, as those of torch's own have."""
    for asked, inputs in _with_right_gradients(implementation, case):
        second = _second_derivative(implementation, asked, inputs)
        # of the first form alone: torch's own has none without a weight
        return (
            f"has no second derivative: {second}"
            if isinstance(second, ImplementationError)
            else None
        )
    return None


def _with_right_gradients(
    implementation: Implementation, case: Case
) -> Iterator[tuple[Case, Inputs]]:
    """Yield small cases until one has a wrong gradient, which no derivative can be held to."""
    if case.dtype not in {"float32", "float64"}:
        return
    for asked, inputs in with_each_affine(implementation, case):
        found = outputs_of(implementation, asked, inputs)
        if outputs_beyond(implementation, asked, inputs, found):
            return
        yield asked, inputs


def _second_derivative(
    implementation: Implementation, asked: Case, inputs: Inputs
) -> tuple[Tensor, ...] | ImplementationError:
    """The derivative of the gradients along a direction, or what was raised instead."""
    names = [name for name in INPUTS if getattr(inputs, name) is not None]
    function = partial(_called, implementation.function, names, asked)
    along = make_inputs(replace(asked, seed=asked.seed + 1)).tensors
    try:
        second = guarded(_second, function, inputs.tensors, along)()
    except ImplementationError as ended:
        return ended
    assert isinstance(second, tuple)  # what that returns
    return second


def _wrongly_derived(
    implementation: Implementation, asked: Case, inputs: Inputs, second: tuple[Tensor, ...]
) -> str | None:
    """Return by what the gradients are derived wrongly; None if by nothing."""
    names = [name for name in INPUTS if getattr(inputs, name) is not None]
    function = partial(_called, implementation.function, names, asked)
    along, *directions = (
        make_inputs(replace(asked, seed=asked.seed + 1 + place)).tensors
        for place in range(1 + _DIRECTIONS)
    )
    for place, name in enumerate([*names, "dy"]):
        derived, changes = [], []
        for direction in directions:
            step = _STEP * direction[place]
            ahead, behind = (
                guarded(_total, function, _moved(inputs.tensors, place, by), along)()
                for by in (step, -step)
            )
            assert isinstance(ahead, Tensor)  # what that returns, and so below
            assert isinstance(behind, Tensor)
            changes.append(ahead - behind)
            derived.append(2 * (second[place] * step).sum())
        told, seen = torch.stack(derived).detach(), torch.stack(changes).detach()
        if not (told - seen).norm() <= _OF_A_TERM * seen.norm() + _NOTHING * along[0].numel():
            return name
    return None


def _called(
    function: Callable[..., Tensor], names: Sequence[str], asked: Case, leaves: Sequence[Tensor]
) -> Tensor:
    given = dict(zip(names, leaves, strict=True))
    x, shape = given.pop("x"), asked.normalized_shape
    return function(x, shape, given.get("weight"), given.get("bias"), asked.eps)


def _total(
    function: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    along: Sequence[Tensor],
) -> Tensor:
    """The gradients, each times what lies in its direction, as one number that can be derived."""
    *inputs, dy = tensors
    leaves = [each if each.requires_grad else each.clone().requires_grad_() for each in inputs]
    with torch.enable_grad():
        gradients = torch.autograd.grad(function(leaves), leaves, dy, create_graph=True)
        parts = zip(gradients, along[:-1], strict=True)
        return torch.stack([(gradient * each).sum() for gradient, each in parts]).sum()


def _second(
    function: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    along: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The derivative of that number by x, weight, bias and dy."""
    leaves = tuple(each.clone().requires_grad_() for each in tensors)
    # not autograd.grad, which passes the error of once_differentiable by: no leaf lies behind it
    _total(function, leaves, along).backward()
    return tuple(torch.zeros_like(each) if each.grad is None else each.grad for each in leaves)


def _moved(tensors: Sequence[Tensor], place: int, by: Tensor) -> list[Tensor]:
    return [each + by if here == place else each for here, each in enumerate(tensors)]
