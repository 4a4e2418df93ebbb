"""Contract checks of the second derivative: it exists, and it is correct."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.computed import ImplementationError, guarded
from harness.records import Case
from harness.verify.checks.graph import INPUTS, with_each_affine
from harness.verify.checks.outputs import compute, outputs_beyond
from harness.verify.checks.settings import LONG, PADDED, SMALL, TAIL, TWO_AXES, at
from harness.verify.scope import scope_of
from implementations.contract import Implementation

__all__ = ["second_derivative_exists", "second_derivative_is_correct"]

_DIRECTIONS = 4  # random; a missing term is not orthogonal to all of them
_STEP = 1 / 128  # of the spread of x; rounding dominates below it, curvature above
_RELATIVE_LIMIT = 0.05  # measured here: correct ones are within 1e-4, a missing term is 0.27
_ABSOLUTE_LIMIT = 1e-6  # per element: what float32 rounding makes of a zero change


@at(SMALL, TAIL, LONG, TWO_AXES, PADDED)
def second_derivative_is_correct(implementation: Implementation, case: Case) -> str | None:
    """The second derivative matches finite differences of the gradients, or raises.

    A recorded backward that computes from statistics saved as constants misses a term. The check
    runs in float32 and float64 only: narrower gradients are too coarse for finite differences. It
    needs correct gradients.
    """
    for sized, inputs in _with_right_gradients(implementation, case):
        second = _second_derivative(implementation, sized, inputs)
        if isinstance(second, ImplementationError):
            continue
        if name := _wrongly_derived(implementation, sized, inputs, second):
            return f"has a wrong second derivative with respect to {name}, without an error"
    return None


def second_derivative_exists(implementation: Implementation, case: Case) -> str | None:
    """The gradients have a derivative, as those of torch.nn.functional.layer_norm have."""
    for sized, inputs in _with_right_gradients(implementation, case):
        second = _second_derivative(implementation, sized, inputs)
        # only the first case is looked at: torch's own has no second derivative without a weight
        is_missing = isinstance(second, ImplementationError)
        return f"has no second derivative: {second}" if is_missing else None
    return None


def _with_right_gradients(
    implementation: Implementation, case: Case
) -> Iterator[tuple[Case, Inputs]]:
    """Yield small cases, up to the first with a wrong gradient."""
    if case.dtype not in {"float32", "float64"}:
        return
    for sized, inputs in with_each_affine(implementation, case):
        first = scope_of(implementation).affines_with_gradient[0]
        if case.shape != SMALL.shape and sized.affine is not first:
            return  # every affine at one size, and one at every size
        outputs = compute(implementation, sized, inputs)
        if outputs_beyond(implementation, sized, inputs, outputs):
            return
        yield sized, inputs


def _second_derivative(
    implementation: Implementation, sized: Case, inputs: Inputs
) -> tuple[Tensor, ...] | ImplementationError:
    """Return the derivative of the gradients along a direction, or what was raised."""
    names = [name for name in INPUTS if getattr(inputs, name) is not None]
    function = partial(_called, implementation.function, names, sized)
    along = make_inputs(replace(sized, seed=sized.seed + 1)).tensors
    try:
        second = guarded(_second, function, inputs.tensors, along)()
    except ImplementationError as raised:
        return raised
    assert isinstance(second, tuple)  # the type that _second returns
    return second


def _wrongly_derived(
    implementation: Implementation, sized: Case, inputs: Inputs, second: tuple[Tensor, ...]
) -> str | None:
    """Return the input whose second derivative is wrong; None if all are right."""
    names = [name for name in INPUTS if getattr(inputs, name) is not None]
    function = partial(_called, implementation.function, names, sized)
    along, *directions = (
        make_inputs(replace(sized, seed=sized.seed + 1 + place)).tensors
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
            assert isinstance(ahead, Tensor)  # the type that _total returns
            assert isinstance(behind, Tensor)
            changes.append(ahead - behind)
            derived.append(2 * (second[place] * step).sum())
        predicted, measured = torch.stack(derived).detach(), torch.stack(changes).detach()
        limit = _RELATIVE_LIMIT * measured.norm() + _ABSOLUTE_LIMIT * along[0].numel()
        if not (predicted - measured).norm() <= limit:
            return name
    return None


def _called(
    function: Callable[..., Tensor], names: Sequence[str], sized: Case, leaves: Sequence[Tensor]
) -> Tensor:
    given = dict(zip(names, leaves, strict=True))
    x, shape = given.pop("x"), sized.normalized_shape
    return function(x, shape, given.get("weight"), given.get("bias"), sized.eps)


def _total(
    function: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    along: Sequence[Tensor],
) -> Tensor:
    """Return the inner product of the gradients with a direction, as a differentiable scalar."""
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
    """Return the derivative of that scalar with respect to x, weight, bias and dy."""
    leaves = tuple(each.clone().requires_grad_() for each in tensors)
    # not autograd.grad: it skips the node in which once_differentiable raises
    _total(function, leaves, along).backward()
    return tuple(torch.zeros_like(each) if each.grad is None else each.grad for each in leaves)


def _moved(tensors: Sequence[Tensor], place: int, by: Tensor) -> list[Tensor]:
    return [each + by if here == place else each for here, each in enumerate(tensors)]
