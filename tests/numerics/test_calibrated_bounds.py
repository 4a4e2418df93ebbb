"""The bounds call no right implementation wrong; the self-test has the wrong ones.

A sample of short rows; experiments/calibration has longer ones, and every right LayerNorm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
import torch

from harness.cases import DISTRIBUTIONS, Inputs, UnrepresentableError, make_inputs
from harness.numerics.bounds import error_bound_of
from harness.numerics.error_measurement import measure_errors, verdict_of
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Case, Direction, Errors, Status
from implementations import ALL, Implementation, find

TWO_PASS = find("two_pass")
IMPLEMENTATIONS = [implementation for implementation in ALL if "cpu" in implementation.devices]


def run(implementation: Implementation, inputs: Inputs, case: Case) -> Outputs:
    """Outputs of ``implementation``, gradients included in a backward case."""
    if case.direction is Direction.FORWARD:
        y = implementation(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
        return Outputs(y)
    assert inputs.weight is not None
    assert inputs.bias is not None
    leaves = [tensor.clone().requires_grad_() for tensor in (inputs.x, inputs.weight, inputs.bias)]
    x, weight, bias = leaves
    y = implementation(x, case.normalized_shape, weight, bias, case.eps)
    return Outputs(y.detach(), *torch.autograd.grad(y, leaves, inputs.dy))


# torch's CPU kernel adds dweight and dbias in the input dtype and keeps mean and rstd in it
KNOWN_WRONG = {("native", "bfloat16"), ("native", "float16")}


def verdict(
    implementation: Implementation, inputs: Inputs, case: Case, reference: Reference | None = None
) -> tuple[Status, str, Errors]:
    error_bound = error_bound_of(implementation, case)
    outputs = run(implementation, inputs, case)
    reference = reference or Reference(inputs, case)
    errors = measure_errors(outputs, inputs, case, error_bound, reference)
    return *verdict_of(errors, case, error_bound), errors


def small_cases(distribution: str) -> Iterator[tuple[Case, Inputs]]:
    """Rows odd and even, on and off the multiples that kernels are written for."""
    shapes = [(5, 7), (5, 64)]
    if distribution in {"normal", "offset_1e2"}:
        shapes += [(5, 1), (5, 2), (5, 1000), (300, 64)]
    cases = [*((shape, Direction.BACKWARD) for shape in shapes), ((5, 33), Direction.FORWARD)]
    for dtype, (shape, direction) in product(("float32", "float64", "bfloat16", "float16"), cases):
        case = Case(
            implementation="any",
            shape=shape,
            dtype=dtype,
            param_dtype=dtype,
            distribution=distribution,
            direction=direction,
        )
        with suppress(UnrepresentableError):
            yield case, make_inputs(case)


# by distribution, so that the exact result of a case is computed once for all implementations
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_no_implementation_is_called_wrong_that_is_not(distribution: str) -> None:
    for case, inputs in small_cases(distribution):
        reference = Reference(inputs, case)
        for implementation in IMPLEMENTATIONS:
            status, reason, errors = verdict(implementation, inputs, case, reference)
            broken = {
                output.output
                for output in errors.outputs
                if output.bound_ratio is not None and not output.bound_ratio <= 1
            }
            is_known = (implementation.name, case.dtype) in KNOWN_WRONG
            excused = {"dx", "dweight", "dbias"} if is_known else set()
            assert broken <= excused, f"{implementation.name}, {case.id}: {reason}"
            assert (status is Status.WRONG) == bool(broken)


@pytest.mark.parametrize(("name", "dtype"), sorted(KNOWN_WRONG))
def test_a_known_mistake_is_wrong(name: str, dtype: str) -> None:
    case = Case(
        implementation=name,
        shape=(300, 64),
        dtype=dtype,
        param_dtype=dtype,
        direction=Direction.BACKWARD,
    )
    status, _, errors = verdict(find(name), make_inputs(case), case)
    assert status is Status.WRONG
    ratios = {output.output: output.bound_ratio or 0 for output in errors.outputs}
    assert all(ratios[name] > 1 for name in ("dx", "dweight", "dbias"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_pass_is_out_of_guarantee_where_it_cancels(dtype: str) -> None:
    distribution = "offset_1e6" if dtype == "float32" else "ulp_comb"
    case = Case(implementation="one_pass", shape=(5, 257), dtype=dtype, distribution=distribution)
    assert verdict(find("one_pass"), make_inputs(case), case)[0] is Status.OUT_OF_GUARANTEE


@pytest.mark.parametrize("hidden", [5120, 16384])
def test_uncentred_sums_of_the_backward_exceed_the_bound_of_centred_ones(hidden: int) -> None:
    native = find("native")
    case = Case(
        implementation="native",
        shape=(4, hidden),
        distribution="offset_1e3",
        parameters="ones_weight",
        direction=Direction.BACKWARD,
    )
    inputs = make_inputs(case)
    inputs = replace(inputs, dy=torch.full_like(inputs.x, -0.7))  # all addends have one sign
    _, _, errors = verdict(native, inputs, case)
    _, _, centred = verdict(replace(native, centred_backward=True), inputs, case)
    assert _ratio_of_dx(errors) < 0.5
    assert _ratio_of_dx(centred) > 1  # 3 to 5 with AVX-512


def _ratio_of_dx(errors: Errors) -> float:
    return next(output.bound_ratio or 0.0 for output in errors.outputs if output.output == "dx")


def test_a_bound_does_not_depend_on_the_block_that_a_row_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(implementation="two_pass", shape=(20, 64), direction=Direction.BACKWARD)
    inputs = make_inputs(case)
    whole = verdict(TWO_PASS, inputs, case)[2]
    monkeypatch.setattr("harness.numerics.oracle._BLOCK_ELEMENTS", 3 * 64)
    parts = verdict(TWO_PASS, inputs, case)[2]
    for one, other in zip(whole.outputs, parts.outputs, strict=True):
        # the exact sums over rows are added in another order: 1e-16 of them, 1e-9 of an ulp
        assert one.bound_ratio == pytest.approx(other.bound_ratio, rel=1e-6)
        assert one.scaled_max_ulp == pytest.approx(other.scaled_max_ulp, rel=1e-6)
        assert one.elements == other.elements
