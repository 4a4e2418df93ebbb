"""An experiment finds what a target computes; names and values tell how to build and call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.operands import normal
from torch import Tensor, nn
from torch.nn import functional

from implementations import CallOptions, UnsupportedError, adopt
from implementations.targets import ModuleFunction
from implementations.targets.module_parameters import parameter_names

WIDTH = 32


def meaning_of(target: Any, **declared: Any) -> Any:
    return adopt(target, "target", CallOptions(**declared)).function.meaning()


def layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-6) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * weight + bias


def channels_first(x: Tensor, weight: Any = None, bias: Any = None) -> Tensor:
    return layer_norm(x.movedim(1, -1), weight, bias).movedim(-1, 1)


# --- which normalisation -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (lambda x, weight, bias: layer_norm(x, 1 + weight, bias), "LayerNorm with 1 + weight"),
        (lambda x, weight, bias: layer_norm(x) + bias, "LayerNorm without its weight"),
        (lambda x, weight, bias: layer_norm(x, weight), "LayerNorm without its bias"),
        (rms_norm, "RMSNorm"),
        (lambda x, weight, bias: x * weight + bias, "scale and shift without normalisation"),
        (lambda x, weight, bias: x, "Identity"),
        (nn.BatchNorm2d(WIDTH, affine=False), "BatchNorm"),
        (nn.GroupNorm(8, WIDTH, affine=False), "GroupNorm with 8 groups"),
        (nn.LayerNorm((4, 8)), "LayerNorm"),
        (lambda x, weight, bias: torch.sin(x), None),
        (lambda x, weight, bias: x.flatten(), None),
        (lambda x, weight, bias: x * float("nan"), None),
        (lambda x, weight, bias: (layer_norm(x, weight, bias), None), None),
    ],
)
def test_the_normalisation_is_named_if_it_is_known(target: Any, name: str | None) -> None:
    assert meaning_of(target).normalization == name


def test_channels_first_is_found() -> None:
    found = meaning_of(channels_first)
    assert (found.normalization, found.channels_first) == ("LayerNorm", True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_one_accepted_rank_and_dtype_are_enough(rank: int, dtype: torch.dtype) -> None:
    def narrow(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if (x.dim(), x.dtype) != (rank, dtype):
            raise ValueError("another x, please")
        return layer_norm(x, weight, bias)

    found = meaning_of(narrow)
    assert (found.normalization, len(found.leading)) == ("LayerNorm", rank - 1)


# --- eps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-3, 1e-12, 3e-7, 0.0])
def test_a_fixed_eps_is_measured(eps: float) -> None:
    found = meaning_of(lambda x, weight, bias: layer_norm(x, weight, bias, eps))
    assert (found.takes_eps, found.eps, found.default_eps) == (False, eps, eps)


def of_n_minus_1(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    deviation = x - x.mean(-1, keepdim=True)
    return deviation / torch.sqrt(x.var(-1, keepdim=True) + 1e-6) * weight + bias


@pytest.mark.parametrize(
    ("target", "declared", "eps", "default"),
    [
        (of_n_minus_1, {}, 1e-6, 1e-6),
        (nn.LayerNorm(WIDTH, eps=1.25e-6), {}, 1.25e-6, 1.25e-6),  # not rounded: it says so
        (layer_norm, {}, None, 1e-6),  # the caller chooses
        (lambda x, weight, bias: layer_norm(x, weight, bias), {"eps": 0.25}, 0.25, 0.25),
        (rms_norm, {}, None, None),
    ],
    ids=["N - 1", "attribute", "chosen", "declared", "no LayerNorm"],
)
def test_eps_is_that_of_the_target(
    target: Any, declared: dict[str, float], eps: float | None, default: float | None
) -> None:
    found = meaning_of(target, **declared)
    assert (found.eps, found.default_eps) == (eps, default)


# --- the constructor of a module -----------------------------------------------------------------


class Kept(nn.Module):
    """Keeps its arguments."""

    def __init__(self, *given: object) -> None:
        super().__init__()
        self.given = given


def as_int(normalized_shape: int) -> Kept:
    return Kept(normalized_shape)


def as_size(dim: torch.Size) -> Kept:
    return Kept(*dim)


def flagged(dim: int, bias: bool, elementwise_affine: bool = True, scale: float = 1.0) -> Kept:
    return Kept(bias, elementwise_affine, scale)


EPS = {"eps": 0.25}
DEPTH = {"init": {"depth": 3}}


@pytest.mark.parametrize(
    ("build", "how", "given"),
    [
        # the size, by its name and as annotated
        (lambda normalized_shape: Kept(normalized_shape), {}, (6,)),
        (lambda hidden_size, eps=1e-6: Kept(hidden_size, eps), {}, (6, 1e-6)),
        (lambda c_in, eps=1e-5: Kept(c_in), {}, (6,)),  # the first required one
        (lambda *passed_on: Kept(*passed_on), {}, (6,)),
        (as_int, {}, (6,)),
        (as_size, {}, (6,)),
        # eps, of any name
        (lambda dim, eps: Kept(eps), {}, (1e-5,)),  # a required eps has torch's default
        (lambda dim, eps=1e-6: Kept(eps), EPS, (0.25,)),
        (lambda dim, variance_epsilon=1e-12: Kept(variance_epsilon), EPS, (0.25,)),
        (lambda dim, **options: Kept(options["eps"]), EPS, (0.25,)),
        (flagged, {"weight": True, "bias": False}, (False, True, 1.0)),
        # arguments of the user
        (lambda dim, depth: Kept(dim, depth), DEPTH, (6, 3)),
        (lambda dim, eps=1e-5: Kept(dim), {"init": {"dim": 8}}, (8,)),
    ],
)
def test_a_constructor_receives_size_eps_flags_and_the_arguments_of_the_user(
    build: Callable[..., nn.Module], how: dict[str, Any], given: tuple[object, ...]
) -> None:
    named = {name: value for name, value in how.items() if name != "init"}
    made: Any = ModuleFunction(build, CallOptions(init=how.get("init", {}))).new((6,), **named)
    assert made.given == given


def test_an_eps_that_a_constructor_does_not_take_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"takes no eps: <lambda>\(dim\)"):
        ModuleFunction(lambda dim: Kept(dim)).new((6,), 0.25)


# --- the parameters of a module ------------------------------------------------------------------


class Named(nn.Module):
    """Has parameters of these names and values; the right ones are in ``roles``."""

    def __init__(self, roles: tuple[str | None, str | None], **values: float) -> None:
        super().__init__()
        self.roles = roles
        for name, value in values.items():
            setattr(self, name, nn.Parameter(torch.full((WIDTH,), value)))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(
            x, *(None if role is None else getattr(self, role) for role in self.roles)
        )


@pytest.mark.parametrize(
    "module",
    [
        Named(("gamma", "beta"), beta=0.0, gamma=1.0),
        Named(("a_2", "b_2"), b_2=0.0, a_2=1.0),
        Named(("first", "second"), second=0.0, first=1.0),  # by their initial values
        Named(("gain", None), gain=1.0),
        Named((None, "beta"), beta=0.0),
    ],
)
def test_weight_and_bias_are_recognised_by_name_or_initial_value(module: Named) -> None:
    weight, bias = (
        None if role is None else torch.linspace(1, 2 + place, WIDTH)
        for place, role in enumerate(module.roles)
    )
    x = normal(3, WIDTH)
    y = adopt(module, "target").function(x, (WIDTH,), weight, bias)  # type: ignore[call-arg]
    torch.testing.assert_close(y, layer_norm(x, weight, bias))


def test_parameters_without_values_are_recognised_by_name_alone() -> None:
    unknown = Named(("gain", None), gain=1.0, other=1.0).to("meta")
    assert parameter_names(unknown, (WIDTH,)).bias is None
