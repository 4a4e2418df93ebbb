"""Properties of an implementation that hold bit by bit; reported only, since none is required.

Negation and scaling by powers of two commute with every rounding. The other properties say whether
the same row always gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import Inputs, make_inputs
from harness.inputs.layouts import LAYOUTS
from harness.numerics.computed import ContractViolationError, ImplementationError, run_once
from harness.records import Affine, Case, Direction
from harness.verify.scope import fitted, scope_of
from implementations.contract import Implementation

__all__ = ["PROPERTIES", "properties_of"]

SHAPE = (64, 257)  # odd rows, so that vector bodies and tails both occur
REPEATS = 6


def properties_of(implementation: Implementation, case: Case) -> dict[str, bool | None]:
    """Return whether each property holds, by name; None if a call raised."""
    case = fitted(implementation, case, shape=SHAPE, direction=Direction.FORWARD)
    holds: dict[str, bool | None] = {}
    for has_property in PROPERTIES:
        try:
            with torch.no_grad():
                holds[has_property.__name__] = has_property(implementation, case, make_inputs(case))
        except (ImplementationError, ContractViolationError):
            holds[has_property.__name__] = None
    return holds


def deterministic(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """The same arguments give the same bits."""
    first = _y(implementation, case, inputs)
    return all(torch.equal(_y(implementation, case, inputs), first) for _ in range(REPEATS - 1))


def batch_invariant(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """A row gives the same bits alone, in a batch of 3 and in a batch of 64."""
    whole = _y(implementation, case, inputs)
    return all(
        torch.equal(
            _y(implementation, case, replace(inputs, x=inputs.x[:rows].clone())), whole[:rows]
        )
        for rows in (1, 3)
    )


def thread_invariant(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """One thread gives the same bits as two."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = _y(implementation, case, inputs)
        torch.set_num_threads(2)
        return torch.equal(_y(implementation, case, inputs), one)
    finally:
        torch.set_num_threads(before)


def layout_invariant(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """Every layout of the same numbers gives the same bits."""
    for layout in LAYOUTS.values():
        x = layout(inputs.x)
        plain = _y(implementation, case, replace(inputs, x=x.contiguous()))
        if not torch.equal(_y(implementation, case, replace(inputs, x=x)), plain):
            return False
    return True


def contiguous_like_x(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """A contiguous x gives a contiguous y, as torch.nn.functional.layer_norm does."""
    x = inputs.x.reshape(4, -1, *case.normalized_shape)
    return _y(implementation, case, replace(inputs, x=x)).is_contiguous()


def exact_under_negation(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """-x gives -y, without bias."""
    # a bias of zero for a target that needs one
    if Affine.WEIGHT in scope_of(implementation).affines:
        inputs, case = replace(inputs, bias=None), replace(case, affine=Affine.WEIGHT)
    elif inputs.bias is not None:
        inputs = replace(inputs, bias=torch.zeros_like(inputs.bias))
    return torch.equal(
        _y(implementation, case, replace(inputs, x=-inputs.x)), -_y(implementation, case, inputs)
    )


def exact_under_powers_of_two(implementation: Implementation, case: Case, inputs: Inputs) -> bool:
    """4 x with 16 eps gives y."""
    scaled = _y(implementation, replace(case, eps=16 * case.eps), replace(inputs, x=4 * inputs.x))
    return torch.equal(scaled, _y(implementation, case, inputs))


PROPERTIES: tuple[Callable[[Implementation, Case, Inputs], bool], ...] = (
    deterministic,
    batch_invariant,
    thread_invariant,
    layout_invariant,
    contiguous_like_x,
    exact_under_negation,
    exact_under_powers_of_two,
)


def _y(implementation: Implementation, case: Case, inputs: Inputs) -> Tensor:
    case = replace(case, shape=tuple(inputs.x.shape))
    return run_once(implementation.function, case, inputs).y
