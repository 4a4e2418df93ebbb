"""Two small rows whose exact LayerNorm is known in every dtype, and errors measured on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from harness.cases import Inputs
from harness.numerics import Outputs, Reference, error_bound_of, measure_errors
from harness.records import Case, Direction, Errors
from implementations import find

TWO_PASS = find("two_pass")
COMB = [[1.0, -1.0, 1.0, -1.0], [2.0, -2.0, 2.0, -2.0]]
"""Mean 0 and deviation 1 or 2: with eps = 0 the exact y is +-1, in every dtype."""


def comb(dtype: str = "float32", **changes: Any) -> tuple[Case, Inputs, Outputs]:
    """Return a case of these rows, with dy = 1, its inputs but for ``changes``, and exact outputs.

    The exact dx is 0, dweight the sum of y, dbias 2.
    """
    case = Case(implementation="two_pass", shape=(2, 4), dtype=dtype, param_dtype=dtype, eps=0.0)
    x = torch.tensor(COMB, dtype=getattr(torch, dtype))
    inputs = Inputs(x=x, weight=torch.ones_like(x[0]), bias=torch.zeros_like(x[0]), dy=x / x)
    y = x.sign()
    outputs = Outputs(y=y, dx=torch.zeros_like(x), dweight=y.sum(0), dbias=torch.full_like(x[0], 2))
    case = replace(case, direction=Direction.BACKWARD)
    return case, replace(inputs, **changes), outputs


def measured(case: Case, inputs: Inputs, outputs: Outputs) -> Errors:
    bound = error_bound_of(TWO_PASS, case)
    return measure_errors(outputs, inputs, case, bound, Reference(inputs, case))
