"""Results that break the contract, and inputs that were modified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.calling import BACKWARD, FORWARD, TRAINING, Function, changed
from factories.known_functions import good
from torch import Tensor

from harness.cases.inputs import LAYOUTS, make_inputs
from harness.records import Case
from harness.run.call import ContractViolationError, run_once


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y[:2], "y has shape [2, 6], expected [4, 6]"),
        (lambda y: y.t(), "y has shape [6, 4], expected [4, 6]"),
        (lambda y: y[None], "y has shape [1, 4, 6], expected [4, 6]"),
        (lambda y: y.double(), "y has dtype torch.float64, expected torch.float32"),
        (lambda y: y.half(), "y has dtype torch.float16, expected torch.float32"),
        (lambda y: y.to("meta"), "y has device meta, expected cpu"),
        (lambda y: (y, y.mean()), "y is of type tuple, expected torch.Tensor itself"),
        (lambda y: [y], "y is of type list, expected torch.Tensor itself"),
        (lambda y: y.detach().numpy(), "y is of type ndarray, expected torch.Tensor itself"),
        (lambda y: None, "y is of type NoneType, expected torch.Tensor itself"),
        (lambda y: 1, "y is of type int, expected torch.Tensor itself"),
    ],
)
@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=lambda each: each.direction)
def test_another_type_shape_dtype_or_device_is_named(
    case: Case, change: Callable[[Tensor], object], words: str
) -> None:
    with pytest.raises(ContractViolationError) as found:
        run_once(changed(change), case, make_inputs(case))
    assert str(found.value) == words


def in_place(x: Tensor, *rest: Any) -> Tensor:
    with torch.no_grad():
        x.detach().add_(1)
    return good(x, *rest)


def scales_weight(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    weight.detach().mul_(2)
    return good(x, shape, weight, bias, eps)


def clears_bias(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y = good(x, shape, weight, bias.clone(), eps)
    bias.detach().zero_()
    return y


def negates_zeros(x: Tensor, *rest: Any) -> Tensor:
    x.detach().copy_(torch.where(x == 0, -x, x))
    return good(x, *rest)


@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=lambda each: each.direction)
@pytest.mark.parametrize("function", [in_place, scales_weight, clears_bias, negates_zeros])
def test_an_input_that_was_modified_is_noticed(function: Function, case: Case) -> None:
    inputs = make_inputs(case)
    inputs.x[0, 0] = 0
    with pytest.raises(ContractViolationError, match="modified one of its inputs"):
        run_once(function, case, inputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_element_that_was_modified_is_noticed_in_every_layout(layout: str, dtype: str) -> None:
    for shape in ((1,), (1, 1), (1, 1, 1)):
        case = Case(implementation="", shape=shape, dtype=dtype, param_dtype=dtype, layout=layout)
        assert run_once(good, case, make_inputs(case)).y.shape == shape
        with pytest.raises(ContractViolationError, match="modified one of its inputs"):
            run_once(in_place, case, make_inputs(case))


def test_inputs_with_nan_are_not_modified_inputs() -> None:
    inputs = make_inputs(FORWARD)
    inputs.x[0, 0] = float("nan")
    assert run_once(good, FORWARD, inputs).y.shape == (4, 6)


def test_a_y_that_is_x_itself_is_not_a_modification() -> None:
    assert run_once(lambda x, *_: x, FORWARD, make_inputs(FORWARD)).y.shape == (4, 6)


@pytest.mark.parametrize("case", [BACKWARD, TRAINING], ids=lambda each: each.direction)
def test_a_y_without_gradient_is_noticed(case: Case) -> None:
    with pytest.raises(ContractViolationError, match="without gradient"):
        run_once(changed(Tensor.detach), case, make_inputs(case))


@pytest.mark.parametrize(("detached", "gradient"), [(0, "dx"), (2, "dweight"), (3, "dbias")])
def test_a_missing_gradient_is_noticed(detached: int, gradient: str) -> None:
    def function(*arguments: Any) -> Tensor:
        given = list(arguments)
        given[detached] = given[detached].detach()
        return good(*given)

    with pytest.raises(ContractViolationError, match=f"{gradient} is None"):
        run_once(function, BACKWARD, make_inputs(BACKWARD))
