"""Other inputs whose results are known from those of the first ones, bit by bit.

In a forward the rows are moved on by one, and the rows of y with them. In a backward x and dy
change sign: then dx and dbias do too, and dweight stays. Rounding is the same either way, unless
a row's result depends on its place or its sign.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.inputs import LAYOUTS, Inputs
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction

__all__ = ["is_turned", "turned"]

_SIGNS = {"dx": -1, "dweight": 1, "dbias": -1}


def turned(inputs: Inputs, case: Case) -> Inputs | None:
    """Return the other inputs, laid out as the first; None where they would be the same."""
    if case.direction is not Direction.FORWARD:
        assert inputs.dy is not None  # a backward case has one
        return replace(inputs, x=LAYOUTS[case.layout](-inputs.x), dy=-inputs.dy)
    if case.layout == "expanded" or case.rows < 2 or case.shape[0] < 2:
        return None
    return replace(inputs, x=LAYOUTS[case.layout](inputs.x.roll(1, 0)))


def is_turned(found: Outputs, first: Outputs, case: Case) -> bool:
    """Whether ``found`` is what turned inputs give, if the first gave ``first``; NaN is not."""
    if case.direction is Direction.FORWARD:
        return torch.equal(found.y, first.y.roll(1, 0))
    return all(
        _is_same(getattr(found, name), getattr(first, name), sign) for name, sign in _SIGNS.items()
    )


def _is_same(found: Tensor | None, first: Tensor | None, sign: int) -> bool:
    if found is None or first is None:
        return found is first
    return torch.equal(found, sign * first)
