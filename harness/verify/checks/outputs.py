"""Compute the outputs of one call, and compare the outputs of two calls."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.numerics.bound_ratio import bound_ratios
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import grad_mode, run_once
from harness.numerics.double_double import Pair
from harness.numerics.oracle import Reference
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.numerics.verdict import is_beyond
from harness.records import Case, Direction
from harness.verify.exact_outputs import exact_outputs, wide_outputs
from harness.verify.scope import fitted
from implementations.contract import Implementation

__all__ = [
    "compute",
    "compute_y",
    "differing_outputs",
    "elsewhere",
    "first_differing_output",
    "forward_case",
    "has_bits_of",
    "is_same_result",
    "outputs_beyond",
]

# of two wrong results, how much worse one may be; another order of summation changes a result by
# about its own error, which makes it at most twice as large
WORSE = 2.0
_LARGE = 1 << 21  # elements; allocators keep small and large blocks apart, from 1 MiB at most


def forward_case(
    implementation: Implementation, case: Case, shape: tuple[int, ...] | None = None
) -> tuple[Case, Inputs]:
    """Return the forward case, of another shape if one is given, and its inputs.

    It is fitted to the target's scope.
    """
    changes = {} if shape is None else {"shape": shape}
    case = fitted(implementation, case, direction=Direction.FORWARD, **changes)
    return case, make_inputs(case)


def compute_y(implementation: Implementation, case: Case, inputs: Inputs) -> Tensor:
    """Return y of a forward call without gradients, in the shape of ``inputs.x``."""
    forward = replace(case, shape=tuple(inputs.x.shape), direction=Direction.FORWARD)
    with torch.no_grad():
        return run_once(implementation.function, forward, replace(inputs, dy=None)).y


def compute(implementation: Implementation, case: Case, inputs: Inputs) -> Outputs:
    """Return all outputs of the case's direction."""
    with grad_mode(case):
        return run_once(implementation.function, case, inputs)


def elsewhere(tensor: Tensor) -> Tensor:
    """Return a copy at a new address: no other tensor asks for a block of this size."""
    return tensor.new_empty(_LARGE)[: tensor.numel()].view(tensor.shape).copy_(tensor)


def differing_outputs(
    implementation: Implementation, case: Case, inputs: Inputs, first: Outputs, again: Outputs
) -> list[str]:
    """Return the names of the outputs in which two results of the same call differ.

    Two right results are each within the a-priori bound B of the exact value, so they are within
    2 B of each other, whatever the order of their sums. If one result is right, the other may be no
    further away. If both are wrong, the error check has already failed them, and this function only
    asks whether the target is consistent: B grows to hold the better of the two, times
    :data:`WORSE`, since another order of summation changes a result by about its own error.
    """
    expected = exact_outputs(implementation, case, inputs)
    one, two = (wide_outputs(each, case) for each in (first, again))
    return [
        name
        for name, bound in expected.bounds.items()
        if name in one
        and name in two
        and not _agree(one[name], two[name], expected.exact[name], bound)
    ]


def first_differing_output(
    implementation: Implementation, case: Case, inputs: Inputs, one: Outputs, other: Outputs
) -> str | None:
    """Return the name of the first output that both have and that differs; None if none does."""
    if has_bits_of(one, other):
        return None
    return next(iter(differing_outputs(implementation, case, inputs, one, other)), None)


def outputs_beyond(
    implementation: Implementation,
    case: Case,
    inputs: Inputs,
    outputs: Outputs,
    reference: Reference | None = None,
) -> set[str]:
    """Return the names of the outputs that exceed the error bound of ``implementation``.

    Args:
        implementation: its declaration gives the bounds.
        case: the call that gave ``outputs``.
        inputs: those of the call.
        outputs: of the call.
        reference: to be shared by several results of one call; made if None.
    """
    guarantee = guarantee_of(implementation, case)
    reference = reference or Reference(inputs, case)
    ratios = bound_ratios(outputs, inputs, case, guarantee, reference)
    return {each.output for each in ratios if is_beyond(each)}


def is_same_result(
    implementation: Implementation, case: Case, first: Outputs | None, again: Outputs | None
) -> bool:
    """Whether two results of ``case`` agree; None, no result, agrees with None only."""
    if first is None or again is None:
        return first is again
    return not differing_outputs(implementation, case, make_inputs(case), first, again)


def _agree(one: Tensor, two: Tensor, exact: Pair, bound: Tensor) -> bool:
    better = min(_worst(one, exact, bound), _worst(two, exact, bound))
    allowed = 2 * bound if better <= 1 else 2 * WORSE * better * bound
    same = (one == two) | (torch.isnan(one) & torch.isnan(two)) | ~torch.isfinite(bound)
    return bool((same | ((one - two).abs() <= allowed)).all())  # False for NaN


def _worst(computed: Tensor, exact: Pair, bound: Tensor) -> float:
    """Return the largest finite ratio of an error to its bound."""
    high, low = exact
    ratio = ((computed - high) - low).abs() / bound
    return float(torch.where(torch.isfinite(ratio), ratio, torch.zeros_like(ratio)).amax())


def has_bits_of(one: Outputs, two: Outputs) -> bool:
    """Whether the outputs that both have are equal bit by bit; NaN equals nothing."""
    pairs = ((getattr(one, name), getattr(two, name)) for name in OUTPUTS)
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
