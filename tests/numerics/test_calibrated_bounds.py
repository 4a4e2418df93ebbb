"""By the bounds right code is never called wrong, and wrong code never right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from harness.inputs import DISTRIBUTIONS, Inputs, UnrepresentableError, make_inputs
from harness.numerics.bounds import guarantee_of
from harness.numerics.error_measurement import Outputs, measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.verdict import verdict_of
from harness.records import Case, Direction, Errors, Status
from implementations import ALL, Implementation, find

TWO_PASS = find("two_pass")


# --- calibration: correct code is never called wrong ---------------------------------------------


def run(implementation: Implementation, inputs: Inputs, case: Case) -> Outputs:
    """Outputs of ``implementation``, gradients included in a backward case."""
    if case.direction is Direction.FORWARD:
        y = implementation(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
        return Outputs(y)
    assert inputs.weight is not None
    assert inputs.bias is not None
    leaves = [each.clone().requires_grad_() for each in (inputs.x, inputs.weight, inputs.bias)]
    x, weight, bias = leaves
    y = implementation(x, case.normalized_shape, weight, bias, case.eps)
    return Outputs(y.detach(), *torch.autograd.grad(y, leaves, inputs.dy))


def verdict(
    implementation: Implementation, inputs: Inputs, case: Case, outputs: Outputs | None = None
) -> tuple[Status, str, Errors]:
    found = guarantee_of(implementation, case)
    outputs = outputs or run(implementation, inputs, case)
    errors = measure_errors(outputs, inputs, case, found, Reference(inputs, case))
    return *verdict_of(errors, case, found), errors


def small_cases(
    implementation: str, dtype: str, distribution: str, direction: Direction
) -> Iterator[Case]:
    """Rows short and long, odd and even, on and off the multiples kernels like."""
    for shape in ((5, 1), (5, 2), (5, 3), (5, 7), (5, 64), (5, 257), (5, 1000), (300, 64)):
        yield Case(
            implementation=implementation,
            shape=shape,
            dtype=dtype,
            param_dtype=dtype,
            distribution=distribution,
            direction=direction,
        )


# What is really wrong, so that calling it so is right. (implementation, dtype, outputs, why)
KNOWN_WRONG = (
    # torch's CPU kernel adds dweight and dbias in the input dtype and keeps mean and rstd in it
    ("native", "bfloat16", {"dx", "dweight", "dbias"}),
    ("native", "float16", {"dx", "dweight", "dbias"}),
)


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "implementation", [each for each in ALL if "cpu" in each.devices], ids=lambda each: each.name
)
def test_no_implementation_is_called_wrong_that_is_not(
    implementation: Implementation, dtype: str, direction: Direction
) -> None:
    excused = {
        output
        for name, excused_dtype, outputs in KNOWN_WRONG
        if (name, excused_dtype) == (implementation.name, dtype)
        for output in outputs
    }
    for distribution in DISTRIBUTIONS:
        for case in small_cases(implementation.name, dtype, distribution, direction):
            try:
                inputs = make_inputs(case)
            except UnrepresentableError:
                continue
            status, reason, errors = verdict(implementation, inputs, case)
            broken = {
                each.output
                for each in errors.outputs
                if each.bound_ratio is not None and not each.bound_ratio <= 1
            }
            assert broken <= excused, f"{case.id}: {reason}"
            assert (status is Status.WRONG) == bool(broken)


@pytest.mark.parametrize(
    ("name", "dtype", "distribution", "wrong"),
    [
        ("native", "bfloat16", "normal", {"dx", "dweight", "dbias"}),
        ("native", "float16", "normal", {"dx", "dweight", "dbias"}),
    ],
)
def test_what_is_known_to_be_wrong_is_called_wrong(
    name: str, dtype: str, distribution: str, wrong: set[str]
) -> None:
    case = Case(
        implementation=name,
        shape=(300, 64),
        dtype=dtype,
        param_dtype=dtype,
        distribution=distribution,
        direction=Direction.BACKWARD,
    )
    status, reason, _ = verdict(find(name), make_inputs(case), case)
    assert status is Status.WRONG
    assert all(f"{output}" in reason for output in wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_pass_is_out_of_guarantee_where_it_cancels(dtype: str) -> None:
    distribution = "offset_1e6" if dtype == "float32" else "ulp_comb"
    case = Case(implementation="one_pass", shape=(5, 257), dtype=dtype, distribution=distribution)
    status, reason, _ = verdict(find("one_pass"), make_inputs(case), case)
    assert status is Status.OUT_OF_GUARANTEE
    assert "promises nothing" in reason


# --- mutants: wrong code is never called right ---------------------------------------------------

Mutant = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)


def correct(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean, variance = moments(x)
    return (x - mean) / (variance + eps).sqrt() * weight + bias


def unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, keepdim=True, correction=1) + eps
    ).sqrt() * weight + bias


def eps_outside_the_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean, variance = moments(x)
    return (x - mean) / (variance.sqrt() + eps) * weight + bias


def no_eps(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return correct(x, weight, bias, 0.0)


def another_eps(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return correct(x, weight, bias, 1e-6)


def no_bias(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return correct(x, weight, torch.zeros_like(bias), eps)


def no_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return correct(x, torch.ones_like(weight), bias, eps)


def first_weight_for_all(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return correct(x, weight[:1], bias, eps)


def bias_before_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (correct(x, torch.ones_like(weight), torch.zeros_like(bias), eps) + bias) * weight


def root_mean_square(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def statistics_of_all_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + eps).sqrt() * weight + bias


def last_column_forgotten(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean, variance = moments(x[:, :-1])
    return (x - mean) / (variance + eps).sqrt() * weight + bias


def mean_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean, variance = moments(x)
    return (x - mean.bfloat16().double()) / (variance + eps).sqrt() * weight + bias


def no_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean, variance = moments(x)
    return (x - mean) / (variance + eps) * weight + bias


def one_row_forgotten(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return correct(x, weight, bias, eps).index_fill(0, torch.tensor(x.shape[0] - 1), 0.0)


def judged(function: Mutant, distribution: str, dtype: str) -> Status:
    """Status of a forward function that computes in float64 and rounds once."""
    case = Case(
        implementation="two_pass",
        shape=(64, 257),
        dtype=dtype,
        param_dtype=dtype,
        distribution=distribution,
    )
    inputs = make_inputs(case)
    assert inputs.weight is not None
    assert inputs.bias is not None
    y = function(inputs.x.double(), inputs.weight.double(), inputs.bias.double(), case.eps)
    return verdict(TWO_PASS, inputs, case, Outputs(y.to(inputs.x.dtype)))[0]


ALL_DTYPES = ["float32", "bfloat16", "float16", "float64"]


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_the_function_that_the_mutants_change_is_right(dtype: str) -> None:
    for distribution in ("normal", "tiny_variance"):
        assert judged(correct, distribution, dtype) is Status.OK


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize(
    "mutant",
    [
        unbiased_variance,
        no_bias,
        no_weight,
        first_weight_for_all,
        bias_before_weight,
        root_mean_square,
        statistics_of_all_rows,
        last_column_forgotten,
        mean_in_bfloat16,
        no_root,
        one_row_forgotten,
    ],
)
def test_a_mutant_is_wrong_on_normal_inputs(mutant: Mutant, dtype: str) -> None:
    assert judged(mutant, "normal", dtype) is Status.WRONG


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mutant", [eps_outside_the_root, no_eps, another_eps])
def test_a_mistake_with_eps_is_wrong_on_normal_inputs_in_wide_dtypes(
    mutant: Mutant, dtype: str
) -> None:
    assert judged(mutant, "normal", dtype) is Status.WRONG


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("mutant", [eps_outside_the_root, no_eps, another_eps])
def test_a_mistake_with_eps_is_wrong_where_eps_matters(mutant: Mutant, dtype: str) -> None:
    assert judged(mutant, "tiny_variance", dtype) is Status.WRONG


def gradients(inputs: Inputs, eps: float) -> dict[str, Tensor]:
    """The terms that backward mutants leave out, in float64."""
    assert inputs.weight is not None
    assert inputs.dy is not None
    x, dy = inputs.x.double(), inputs.dy.double()
    mean, variance = moments(x)
    rstd = (variance + eps).rsqrt()
    normalised, scaled = (x - mean) * rstd, dy * inputs.weight.double()
    return {
        "dy": dy,
        "rstd": rstd,
        "normalised": normalised,
        "deviation": x - mean,
        "scaled": scaled,
        "plain": scaled.mean(-1, keepdim=True),
        "across": (scaled * normalised).mean(-1, keepdim=True),
    }


BACKWARD_MUTANTS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "dx_without_the_mean_of_dy": lambda t: {
        "dx": t["rstd"] * (t["scaled"] - t["normalised"] * t["across"])
    },
    "dx_without_the_projection_on_x": lambda t: {"dx": t["rstd"] * (t["scaled"] - t["plain"])},
    "dx_with_both_means_over_n_minus_1": lambda t: {
        "dx": t["rstd"] * (t["scaled"] - (t["plain"] + t["normalised"] * t["across"]) * 257 / 256)
    },
    "dweight_of_deviations": lambda t: {"dweight": (t["dy"] * t["deviation"]).sum(0)},
    "dweight_averaged": lambda t: {"dweight": (t["dy"] * t["normalised"]).mean(0)},
    "dweight_without_the_last_row": lambda t: {"dweight": (t["dy"] * t["normalised"])[:-1].sum(0)},
    "dbias_without_the_last_row": lambda t: {"dbias": t["dy"][:-1].sum(0)},
    "dbias_of_scaled_dy": lambda t: {"dbias": t["scaled"].sum(0)},
}


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("mutant", ["none", *BACKWARD_MUTANTS])
def test_a_wrong_gradient_is_wrong_and_a_right_one_is_not(mutant: str, dtype: str) -> None:
    case = Case(
        implementation="two_pass",
        shape=(64, 257),
        dtype=dtype,
        param_dtype=dtype,
        direction=Direction.BACKWARD,
    )
    inputs = make_inputs(case)
    right = {
        name: getattr(run(TWO_PASS, inputs, case), name) for name in ("y", "dx", "dweight", "dbias")
    }
    wrong = BACKWARD_MUTANTS.get(mutant, lambda terms: {})(gradients(inputs, case.eps))
    outputs = Outputs(**right | {name: each.to(inputs.x.dtype) for name, each in wrong.items()})
    status, reason, _ = verdict(TWO_PASS, inputs, case, outputs)
    assert status is (Status.WRONG if wrong else Status.OK)
    assert all(name in reason for name in wrong)


def test_a_bound_does_not_depend_on_the_block_that_a_row_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(implementation="two_pass", shape=(20, 64), direction=Direction.BACKWARD)
    inputs = make_inputs(case)
    outputs = run(TWO_PASS, inputs, case)
    whole = verdict(TWO_PASS, inputs, case, outputs)[2]
    monkeypatch.setattr("harness.numerics.oracle._BLOCK_ELEMENTS", 3 * 64)
    parts = verdict(TWO_PASS, inputs, case, outputs)[2]
    for one, other in zip(whole.outputs, parts.outputs, strict=True):
        # the exact sums over rows are added in another order: 1e-16 of them, 1e-9 of an ulp
        assert one.bound_ratio == pytest.approx(other.bound_ratio, rel=1e-6)
        assert one.scaled_max_ulp == pytest.approx(other.scaled_max_ulp, rel=1e-6)
        assert one.elements == other.elements
