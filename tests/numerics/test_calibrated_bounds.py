"""The bounds call no right implementation wrong; the self-test has the wrong ones.

A sample of short rows; experiments/calibration has longer ones, and every right LayerNorm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from harness.cases import DISTRIBUTIONS, DTYPES, Inputs, UnrepresentableError, make_inputs
from harness.numerics import Outputs, Reference, error_bound_of, measure_errors, verdict_of
from harness.records import Case, Direction, Errors, Status
from implementations import ALL, Implementation, find

IMPLEMENTATIONS = [implementation for implementation in ALL if "cpu" in implementation.devices]
# torch's CPU kernel adds dweight and dbias in the input dtype and keeps mean and rstd in it
KNOWN_WRONG = {("native", "bfloat16"), ("native", "float16")}


def case_of(shape: tuple[int, ...], dtype: str = "float32", **axes: Any) -> Case:
    usual = {"implementation": "any", "param_dtype": dtype, "direction": Direction.BACKWARD}
    return Case(shape=shape, dtype=dtype, **usual | axes)


def verdict(
    implementation: Implementation,
    case: Case,
    inputs: Inputs | None = None,
    reference: Reference | None = None,
) -> tuple[Status, str, Errors]:
    inputs = inputs or make_inputs(case)
    is_backward = case.direction is Direction.BACKWARD
    leaves = [tensor.clone().requires_grad_(is_backward) for tensor in inputs.tensors[:3]]
    x, weight, bias = leaves
    y = implementation(x, case.normalized_shape, weight, bias, case.eps)
    gradients = torch.autograd.grad(y, leaves, inputs.dy) if is_backward else []
    outputs, bound = Outputs(y.detach(), *gradients), error_bound_of(implementation, case)
    errors = measure_errors(outputs, inputs, case, bound, reference or Reference(inputs, case))
    return *verdict_of(errors, case, bound), errors


def beyond(errors: Errors) -> dict[str, float]:
    """The outputs beyond their bound, and how far."""
    ratios = {found.output: found.bound_ratio for found in errors.outputs}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None and not ratio <= 1}


def small_cases(distribution: str) -> Iterator[tuple[Case, Inputs]]:
    """Rows odd and even, on and off the multiples that kernels are written for."""
    shapes = [(5, 7), (5, 64)]
    if distribution in {"normal", "offset_1e2"}:
        shapes += [(5, 1), (5, 2), (5, 1000), (300, 64)]
    shapes_of = [*product(shapes, [Direction.BACKWARD]), ((5, 33), Direction.FORWARD)]
    for dtype, (shape, direction) in product(DTYPES, shapes_of):
        case = case_of(shape, dtype, distribution=distribution, direction=direction)
        with suppress(UnrepresentableError):
            yield case, make_inputs(case)


# by distribution, so that the exact result of a case is computed once for all implementations
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_no_implementation_is_called_wrong_that_is_not(distribution: str) -> None:
    for case, inputs in small_cases(distribution):
        reference = Reference(inputs, case)
        for implementation in IMPLEMENTATIONS:
            status, reason, errors = verdict(implementation, case, inputs, reference)
            is_known = (implementation.name, case.dtype) in KNOWN_WRONG
            excused = {"dx", "dweight", "dbias"} if is_known else set()
            assert {*beyond(errors)} <= excused, f"{implementation.name}, {case.id}: {reason}"
            assert (status is Status.WRONG) == bool(beyond(errors))


@pytest.mark.parametrize(("name", "dtype"), sorted(KNOWN_WRONG))
def test_a_known_mistake_is_wrong(name: str, dtype: str) -> None:
    status, _, errors = verdict(find(name), case_of((300, 64), dtype))
    assert status is Status.WRONG
    assert {*beyond(errors)} == {"dx", "dweight", "dbias"}


def test_uncentred_sums_of_the_backward_exceed_the_bound_of_centred_ones() -> None:
    native = find("native")
    case = case_of((4, 5120), distribution="offset_1e3", parameters="ones_weight")
    inputs = make_inputs(case)
    inputs = replace(inputs, dy=torch.full_like(inputs.x, -0.7))  # all addends have one sign
    _, _, errors = verdict(native, case, inputs)
    assert 0 < next(found.bound_ratio for found in errors.outputs if found.output == "dx") < 0.5
    _, _, centred = verdict(replace(native, centred_backward=True), case, inputs)
    assert "dx" in beyond(centred)  # 3 to 5 with AVX-512
