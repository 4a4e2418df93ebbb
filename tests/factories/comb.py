"""Two small rows whose exact LayerNorm is known in every dtype, and errors measured on them."""

from __future__ import annotations

import torch

from harness.cases import Inputs
from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction, Errors
from implementations import find

TWO_PASS = find("two_pass")

COMB = [[1.0, -1.0, 1.0, -1.0], [2.0, -2.0, 2.0, -2.0]]
"""Mean 0 and deviation 1 or 2: with eps = 0 the exact y is +-1, in every dtype."""

DTYPES = ["float32", "float64", "bfloat16", "float16"]


def comb_case(dtype: str = "float32", direction: Direction = Direction.FORWARD) -> Case:
    return Case(
        implementation="two_pass",
        shape=(2, 4),
        dtype=dtype,
        param_dtype=dtype,
        direction=direction,
        eps=0.0,
    )


def comb_inputs(
    case: Case, weight: float = 1.0, bias: float = 0.0, dy: list[list[float]] | None = None
) -> Inputs:
    dtype = getattr(torch, case.dtype)
    return Inputs(
        x=torch.tensor(COMB, dtype=dtype),
        weight=torch.full((4,), weight, dtype=dtype),
        bias=torch.full((4,), bias, dtype=dtype),
        dy=None if dy is None else torch.tensor(dy, dtype=dtype),
    )


def measure(outputs: Outputs, inputs: Inputs, case: Case) -> Errors:
    return measure_errors(
        outputs, inputs, case, error_bound_of(TWO_PASS, case), Reference(inputs, case)
    )
