"""Weight and bias of a module are recognised by name, or by their initial values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import UnsupportedError
from implementations.targets.module_parameters import ParameterNames, parameter_names, run_module

SHAPE = (6,)
X = torch.arange(12.0).reshape(2, 6)
WEIGHT, BIAS = torch.arange(1.0, 7.0), torch.arange(6.0)


class Named(nn.Module):
    """Has parameters of these names and values; normalises with ``weight`` and ``bias`` first."""

    def __init__(self, **values: float | Tensor) -> None:
        super().__init__()
        for name, value in values.items():
            start = value if isinstance(value, Tensor) else torch.full(SHAPE, value)
            setattr(self, name, nn.Parameter(start.clone()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(
            x, SHAPE, *(parameter.flatten() for parameter in self.parameters())
        )


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"weight": 1.0, "bias": 0.0}, ("weight", "bias")),
        ({"gamma": 1.0, "beta": 0.0}, ("gamma", "beta")),
        ({"g": 1.0, "b": 0.0}, ("g", "b")),
        ({"a_2": 1.0, "b_2": 0.0}, ("a_2", "b_2")),
        ({"gain": 1.0}, ("gain", None)),
        ({"beta": 0.0}, (None, "beta")),
        ({"alone": 1.0}, ("alone", None)),
        ({"second": 0.0, "first": 1.0}, ("first", "second")),
        ({"weight": 1.0, "other": 0.0}, ("weight", "other")),
        ({}, (None, None)),
    ],
)
def test_weight_and_bias_are_recognised_by_name_or_initial_value(
    values: dict[str, float], found: tuple[str | None, str | None]
) -> None:
    affine = parameter_names(Named(**values), SHAPE)
    assert ((affine.weight, affine.bias), affine.others) == (found, ())


def test_a_parameter_of_unknown_role_is_listed() -> None:
    module = Named(weight=1.0, bias=0.0, gate=torch.rand(SHAPE))
    assert parameter_names(module, SHAPE) == ParameterNames("weight", "bias", ("gate",))


def test_parameters_of_a_module_inside_are_found() -> None:
    assert parameter_names(nn.Sequential(Named(gamma=1.0, beta=0.0)), SHAPE) == ParameterNames(
        "0.gamma", "0.beta"
    )


@pytest.mark.parametrize("shapes", [(SHAPE, SHAPE), ((6, 1), (1, 6))], ids=str)
def test_the_given_parameters_replace_those_of_the_module_in_their_shapes(
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    module = Named(weight=torch.ones(shapes[0]), bias=torch.zeros(shapes[1]))
    y = run_module(module, parameter_names(module, SHAPE), X, SHAPE, WEIGHT, BIAS)
    assert torch.equal(y, functional.layer_norm(X, SHAPE, WEIGHT, BIAS))
    assert torch.equal(module.weight, torch.ones(shapes[0]))


@pytest.mark.parametrize(
    ("own", "given", "name"),
    [
        ({}, (WEIGHT, None), "weight"),
        ({}, (None, BIAS), "bias"),
        ({"weight": 1.0}, (WEIGHT, BIAS), "bias"),
        ({"weight": 1.0, "bias": 0.0}, (None, BIAS), "weight"),
        ({"weight": 1.0, "bias": 0.0}, (WEIGHT, None), "bias"),
    ],
)
def test_weight_and_bias_are_given_exactly_if_the_module_has_them(
    own: dict[str, float], given: tuple[Tensor | None, Tensor | None], name: str
) -> None:
    module = Named(**own)
    with pytest.raises(UnsupportedError, match=name):
        run_module(module, parameter_names(module, SHAPE), X, SHAPE, *given)


@pytest.mark.parametrize("wrong", [WEIGHT[:1], WEIGHT[:3], WEIGHT.repeat(2), WEIGHT.expand(2, 6)])
def test_a_parameter_of_another_shape_is_an_error(wrong: Tensor) -> None:
    module = Named(weight=1.0)
    with pytest.raises(ValueError, match=r"weight has shape .*, expected \[6\]"):
        run_module(module, parameter_names(module, SHAPE), X, SHAPE, wrong, None)
