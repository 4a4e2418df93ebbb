"""Arguments of a constructor and parameters of a module are recognised by name or value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import UnsupportedError
from implementations.targets.construct import Constructor, makes_modules
from implementations.targets.module_parameters import ParameterNames, parameter_names, run_module
from implementations.targets.signatures import signature_text

WIDTH = 6


def of(build: Callable[..., nn.Module], **given: object) -> Constructor:
    return Constructor.of(build, given)


def made(build: Callable[..., nn.Module], shape: tuple[int, ...] = (WIDTH,), **how: Any) -> Any:
    return of(build).make(shape, how.pop("eps", None), **{"weight": True, "bias": True} | how)


class Kept(nn.Module):
    """Keeps its arguments."""

    def __init__(self, *given: object) -> None:
        super().__init__()
        self.given = given


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda normalized_shape: Kept(normalized_shape), "normalized_shape"),
        (lambda hidden_size, eps=1e-6: Kept(hidden_size, eps), "hidden_size"),
        (lambda bias, ndim: Kept(ndim, bias), "ndim"),
        (lambda d_model: Kept(d_model), "d_model"),
        (lambda hidden_size=None: Kept(hidden_size), "hidden_size"),
        (lambda c_in, eps=1e-5: Kept(c_in, eps), "c_in"),
        (lambda eps=1e-5: Kept(eps), None),
        (lambda *passed_on: Kept(*passed_on), ""),
    ],
)
def test_the_size_has_a_known_name_or_is_the_first_required_argument(
    build: Callable[..., nn.Module], size: str | None
) -> None:
    assert of(build).size == size


@pytest.mark.parametrize(
    ("build", "given"),
    [
        (lambda dim: Kept(dim), (WIDTH,)),
        (lambda *passed_on: Kept(*passed_on), (WIDTH,)),
        (lambda eps=1e-5: Kept(eps), (1e-5,)),
        (lambda dim, eps: Kept(eps), (1e-5,)),
    ],
    ids=["int", "passed on", "no size", "required eps"],
)
def test_sizes_are_ints_and_a_required_eps_has_the_default_of_torch(
    build: Callable[..., nn.Module], given: tuple[object, ...]
) -> None:
    assert made(build).given == given


def test_an_annotation_says_how_the_size_is_written() -> None:
    def as_int(normalized_shape: int) -> Kept:
        return Kept(normalized_shape)

    def as_size(dim: torch.Size) -> Kept:
        return Kept(dim)

    def as_either(dim: int | tuple[int, ...]) -> Kept:
        return Kept(dim)

    assert made(as_int).given == (WIDTH,)
    assert isinstance(made(as_size).given[0], torch.Size)
    assert made(as_either).given == (WIDTH,)
    assert made(as_either, (2, 3)).given == ((2, 3),)
    assert [of(build).takes_several_axes for build in (as_int, as_size, as_either)] == [
        False, True, True
    ]  # fmt: skip


def test_several_axes_are_allowed_by_shape_in_the_name_unless_annotated() -> None:
    def of_anything(normalized_shape: Any) -> Kept:
        return Kept(normalized_shape)

    assert of(of_anything).takes_several_axes
    assert of(lambda normalized_shape: Kept(normalized_shape)).takes_several_axes
    assert not of(lambda hidden_size: Kept(hidden_size)).takes_several_axes


def test_a_size_that_the_constructor_refuses_is_written_in_another_form() -> None:
    def of_lists(shape: Any) -> Kept:
        if not isinstance(shape, list):
            raise TypeError("a list, please")
        return Kept(shape)

    assert made(of_lists).given == ([WIDTH],)


# --- eps and flags -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda dim, eps=1e-6: Kept(eps),
        lambda dim, epsilon: Kept(epsilon),
        lambda dim, variance_epsilon=1e-12: Kept(variance_epsilon),
        lambda dim, layer_norm_eps=1e-12: Kept(layer_norm_eps),
        lambda dim, e=1e-5: Kept(e),
        lambda dim, **options: Kept(options["eps"]),
    ],
)
def test_eps_has_any_name(build: Callable[..., nn.Module]) -> None:
    assert made(build, eps=0.25).given == (0.25,)


def test_flags_switch_weight_and_bias() -> None:
    def build(dim: int, bias: bool, elementwise_affine: bool = True) -> Kept:
        return Kept(bias, elementwise_affine)

    assert of(build).flags == {"bias": "bias", "elementwise_affine": "affine"}
    assert made(build, weight=True, bias=False).given == (False, True)
    assert made(build, weight=False, bias=False).given == (False, False)
    assert of(lambda dim, scale=1.0: Kept(dim, scale)).flags == {}  # a number is no flag


# --- arguments of the user -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "init", "given"),
    [
        (lambda dim, depth: Kept(dim, depth), {"depth": 3}, (WIDTH, 3)),
        (lambda dim, eps=1e-5: Kept(dim), {"dim": 8}, (8,)),
        (lambda dim, **others: Kept(others["depth"]), {"depth": 3}, (3,)),
    ],
    ids=["another argument", "the size", "variable keywords"],
)
def test_arguments_of_the_user_are_passed_on(
    build: Callable[..., nn.Module], init: dict[str, object], given: tuple[object, ...]
) -> None:
    constructor = of(build, **init)
    assert (constructor.size is None) == ("dim" in init)
    assert constructor.make((WIDTH,), None, weight=True, bias=True).given == given


@pytest.mark.parametrize(
    ("build", "init", "words"),
    [
        (lambda dim, depth, heads: Kept(), {}, r"needs depth, heads: give --init 'depth=\.\.\.'"),
        (lambda dim, depth=2: Kept(), {"depht": 3}, "has no argument named depht"),
        (lambda dim: Kept(), {}, r"takes no eps: <lambda>\(dim\)"),
    ],
)
def test_arguments_that_are_missing_or_unknown_are_refused(
    build: Callable[..., nn.Module], init: dict[str, object], words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        of(build, **init).make((WIDTH,), 0.25, weight=True, bias=True)


# --- building ------------------------------------------------------------------------------------


def test_a_class_that_cannot_be_built_is_refused_with_its_exception() -> None:
    def odd(dim: int) -> Kept:
        raise ValueError("dim must be odd")

    with pytest.raises(UnsupportedError, match=r"odd\(.*\[6\]: ValueError: dim must be odd"):
        made(odd)


def test_building_does_not_change_the_random_state() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    made(lambda dim: nn.Linear(dim, dim))
    assert torch.equal(torch.rand(1), expected)


def test_a_function_that_takes_a_size_first_makes_modules() -> None:
    assert makes_modules(lambda hidden_size, eps=1e-5: Kept(hidden_size))
    assert not makes_modules(lambda x, weight, bias: x)
    assert not makes_modules(lambda shape, weight: shape)  # a function of a shape, as likely


def test_a_signature_is_shown_as_it_is_written() -> None:
    def build(dim: int, eps: float = 1e-5) -> Kept:
        return Kept(dim, eps)

    assert signature_text(build).startswith("build(dim: 'int', eps: 'float' = 1e-05)")
    assert signature_text(max) == "max(...)"


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
