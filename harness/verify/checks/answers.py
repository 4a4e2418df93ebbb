"""Answers of an implementation to one question, and whether two of them are the same."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import run_once
from harness.numerics.double_double import Pair
from harness.numerics.error_measurement import Outputs, measure_errors
from harness.numerics.oracle import Reference
from harness.records import Case, Direction
from harness.verify.exact_outputs import limits_of, wide_outputs
from implementations.contract import Implementation

__all__ = [
    "copies_of",
    "differing_outputs",
    "elsewhere",
    "first_difference",
    "has_bits_of",
    "is_same_answer",
    "outputs_beyond",
    "outputs_of",
    "y_of",
]

WORSE = 2.0  # ours: how much worse the other of two answers may be, where both are wrong
_LARGE = 1 << 21  # elements; allocators keep small and large memory apart, from 1 MiB at most
_NAMES = ("y", "dx", "dweight", "dbias")


def y_of(implementation: Implementation, case: Case, inputs: Inputs) -> Tensor:
    """Return y of a forward without gradients, as large as ``inputs.x``."""
    forward = replace(case, shape=tuple(inputs.x.shape), direction=Direction.FORWARD)
    with torch.no_grad():
        return run_once(implementation.function, forward, replace(inputs, dy=None)).y


def outputs_of(implementation: Implementation, case: Case, inputs: Inputs) -> Outputs:
    """Return all outputs of the case's direction."""
    with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
        return run_once(implementation.function, case, inputs)


# --- in memory of their own ----------------------------------------------------------------------


def elsewhere(tensor: Tensor) -> Tensor:
    """Return a copy at an address that no other had: in memory of a size that none asks for."""
    return tensor.new_empty(_LARGE)[: tensor.numel()].view(tensor.shape).copy_(tensor)


def copies_of(outputs: Outputs) -> Outputs:
    """Return them in memory of their own."""
    return Outputs(
        y=outputs.y.clone(),
        dx=_copy(outputs.dx),
        dweight=_copy(outputs.dweight),
        dbias=_copy(outputs.dbias),
    )


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


# --- whether two answers are the same ------------------------------------------------------------


def differing_outputs(
    implementation: Implementation, case: Case, inputs: Inputs, first: Outputs, again: Outputs
) -> list[str]:
    """Return in which outputs two answers to one question are two answers.

    Right ones are each within the a-priori bound B of the exact value, and so within 2 B of each
    other, whatever the order of their sums. If one is right, the other may be no further away. If
    neither is, the error check has failed both, and what is left to ask is whether the target is
    steady: B grows to what holds the better of the two, and :data:`WORSE` times that, since another
    order of summation changes a result by about as much as summation makes it wrong.
    """
    limits = limits_of(implementation, case, inputs)
    one, two = (wide_outputs(each, case) for each in (first, again))
    return [
        name
        for name, bound in limits.bounds.items()
        if name in one
        and name in two
        and not _agree(one[name], two[name], limits.exact[name], bound)
    ]


def first_difference(
    implementation: Implementation, case: Case, inputs: Inputs, one: Outputs, other: Outputs
) -> str | None:
    """Return the first output that both have and that is not the same; None where there is none."""
    if has_bits_of(one, other):
        return None
    return next(iter(differing_outputs(implementation, case, inputs, one, other)), None)


def outputs_beyond(
    implementation: Implementation, case: Case, inputs: Inputs, found: Outputs
) -> set[str]:
    """Return which outputs lie beyond the a-priori bound of what ``implementation`` declares."""
    guarantee = guarantee_of(implementation, case)
    errors = measure_errors(found, inputs, case, guarantee, Reference(inputs, case))
    return {
        each.output
        for each in errors.outputs
        if each.bound_ratio is not None and not each.bound_ratio <= 1
    }


def is_same_answer(
    implementation: Implementation, case: Case, first: Outputs | None, again: Outputs | None
) -> bool:
    """Whether two answers to ``case`` are one; no answer, None, is the same as none only."""
    if first is None or again is None:
        return first is again
    return not differing_outputs(implementation, case, make_inputs(case), first, again)


def _agree(one: Tensor, two: Tensor, exact: Pair, bound: Tensor) -> bool:
    better = min(_worst(one, exact, bound), _worst(two, exact, bound))
    allowed = 2 * bound if better <= 1 else 2 * WORSE * better * bound
    same = (one == two) | (torch.isnan(one) & torch.isnan(two)) | ~torch.isfinite(bound)
    return bool((same | ((one - two).abs() <= allowed)).all())  # False for NaN


def _worst(computed: Tensor, exact: Pair, bound: Tensor) -> float:
    """The largest error over its bound among the finite ones."""
    high, low = exact
    ratio = ((computed - high) - low).abs() / bound
    return float(torch.where(torch.isfinite(ratio), ratio, torch.zeros_like(ratio)).amax())


def has_bits_of(one: Outputs, two: Outputs) -> bool:
    """Whether what both answers have is equal bit by bit; NaN is equal to nothing."""
    pairs = ((getattr(one, name), getattr(two, name)) for name in _NAMES)
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
