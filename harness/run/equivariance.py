"""The equivariance check: inputs whose exact results follow bit by bit from those of other inputs.

In a forward pass the rows are shifted by one, and the rows of y with them. In a backward pass x
and dy are negated: this negates dx and dbias and leaves dweight as it is. Rounding is the same
either way, unless a row's result depends on its place or its sign.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import LAYOUTS, Inputs
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction

__all__ = ["are_equivariant", "shifted_or_negated"]

_SIGNS = {"dx": -1, "dweight": 1, "dbias": -1}


def shifted_or_negated(inputs: Inputs, case: Case) -> Inputs | None:
    """Return the inputs of the check, in the layout of ``inputs``; None if they would be equal."""
    if case.direction is not Direction.FORWARD:
        assert inputs.dy is not None  # a backward case has one
        return replace(inputs, x=LAYOUTS[case.layout](-inputs.x), dy=-inputs.dy)
    if case.layout == "expanded" or case.rows < 2 or case.shape[0] < 2:
        return None
    return replace(inputs, x=LAYOUTS[case.layout](inputs.x.roll(1, 0)))


def are_equivariant(first: Outputs, outputs: Outputs, case: Case) -> bool:
    """Whether ``outputs``, of shifted or negated inputs, follow from ``first``; False if NaN."""
    if case.direction is Direction.FORWARD:
        return torch.equal(outputs.y, first.y.roll(1, 0))
    return all(
        _is_equal(getattr(outputs, name), getattr(first, name), sign)
        for name, sign in _SIGNS.items()
    )


def _is_equal(gradient: Tensor | None, first: Tensor | None, sign: int) -> bool:
    if gradient is None or first is None:
        return gradient is first
    return torch.equal(gradient, sign * first)
