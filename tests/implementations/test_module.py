"""The module is a drop-in for torch.nn.LayerNorm, also traced and under autocast."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from implementations import (
    ALL,
    Dispatch,
    Implementation,
    LayerNorm,
    TargetError,
    UnsupportedError,
    module,
    native,
)

# tests/implementations/triton has those for a GPU
ON_CPU = [norm for norm in ALL if "cpu" in norm.devices]

every_implementation = pytest.mark.parametrize("norm", ON_CPU, ids=lambda norm: norm.name)

# of the constructor; values are compared in float64, of all but the last three
ARGUMENTS: list[dict[str, Any]] = [
    {"normalized_shape": 8},
    {"normalized_shape": [3, 8]},
    {"normalized_shape": 8, "eps": 1e-3},
    {"normalized_shape": 8, "bias": False},
    {"normalized_shape": (3, 8), "elementwise_affine": False},
    {"normalized_shape": 8, "dtype": torch.float64},
    {"normalized_shape": 8, "device": "cpu", "dtype": torch.bfloat16},
    {"normalized_shape": 0},
]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(6)).to(dtype)


def trained(made: nn.LayerNorm) -> nn.LayerNorm:
    """Give the parameters values that are neither one nor zero."""
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters()):
            drawn = torch.Generator().manual_seed(seed)
            parameter.copy_(torch.randn(parameter.shape, generator=drawn))
    return made


def pair(norm: Implementation, **arguments: Any) -> tuple[LayerNorm, nn.LayerNorm]:
    """Return the drop-in and torch's module, with the same parameters."""
    ours, theirs = LayerNorm(**arguments, implementation=norm), nn.LayerNorm(**arguments)
    trained(theirs)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def only(**declared: Any) -> Implementation:
    """Return an implementation with these declarations."""
    return replace(native, name="declared", **declared)


# a few roundings of values up to 8
close = {"rtol": 1e-5, "atol": 1e-5}


# --- like torch.nn.LayerNorm ---------------------------------------------------------------------


def test_the_constructor_takes_what_torch_takes_in_the_same_order() -> None:
    ours = inspect.signature(LayerNorm.__init__).parameters
    theirs = inspect.signature(nn.LayerNorm.__init__).parameters
    assert list(ours) == [*theirs, "implementation"]
    assert [ours[name].default for name in theirs] == [
        parameter.default for parameter in theirs.values()
    ]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_repr_initial_state_and_loaded_states_are_those_of_torch(arguments: dict[str, Any]) -> None:
    ours, theirs = LayerNorm(**arguments), nn.LayerNorm(**arguments)
    assert repr(ours) == repr(theirs)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    ours.load_state_dict(trained(theirs).state_dict())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    theirs.load_state_dict(ours.state_dict())
    ours.reset_parameters()
    initial = nn.LayerNorm(**arguments).state_dict()
    torch.testing.assert_close(ours.state_dict(), initial, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("normalized", "x"),
    [
        (4, torch.zeros(2, 3)),
        ((2, 4), torch.zeros(4)),
        ((), torch.zeros(2, 4)),
        (4, [1.0, 2.0, 3.0, 4.0]),
        (4, torch.zeros(2, 4, dtype=torch.int64)),
    ],
    ids=str,
)
@every_implementation
def test_a_wrong_input_raises_as_in_torch_with_the_same_message_for_shapes(
    norm: Implementation, normalized: Any, x: Any
) -> None:
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        nn.LayerNorm(normalized, elementwise_affine=False)(x)
    with pytest.raises(theirs.type) as ours:
        LayerNorm(normalized, elementwise_affine=False, implementation=norm)(x)
    if "normalized_shape=" in str(theirs.value):
        assert str(ours.value) == str(theirs.value)


@every_implementation
@pytest.mark.parametrize("arguments", ARGUMENTS[:-3], ids=str)
def test_y_and_gradients_are_those_of_torch(
    norm: Implementation, arguments: dict[str, Any]
) -> None:
    ours, theirs = pair(norm, **arguments | {"dtype": torch.float64})
    results = []
    for made in (ours, theirs):
        x = normal(5, *theirs.normalized_shape, dtype=torch.float64).requires_grad_()
        y = made(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *made.parameters()])])
    for found, expected in zip(*results, strict=True):  # benign float64: rounding only
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@every_implementation
def test_on_the_meta_device_y_has_a_shape_and_a_dtype(norm: Implementation) -> None:
    made = LayerNorm(8, device="meta", dtype=torch.bfloat16, implementation=norm)
    assert made.weight.is_meta
    y = made(torch.empty(5, 8, device="meta", dtype=torch.bfloat16))
    assert (y.shape, y.dtype, y.is_meta) == ((5, 8), torch.bfloat16, True)


# --- which implementation ------------------------------------------------------------------------


def test_the_implementation_is_given_by_name_or_itself_or_as_a_target() -> None:
    for chosen in (native, "native"):
        assert LayerNorm(8, implementation=chosen).implementation is native
    made = LayerNorm(8, implementation="torch.nn.functional:layer_norm")
    assert torch.equal(made(normal(5, 8)), nn.LayerNorm(8)(normal(5, 8)))
    assert repr(made).endswith(", implementation=torch.nn.functional:layer_norm)")


def test_an_invalid_implementation_is_refused_when_the_module_is_made() -> None:
    with pytest.raises(TargetError, match="did you mean 'two_pass'"):
        LayerNorm(8, implementation="two_pas")
    with pytest.raises(TypeError, match="adopt"):
        LayerNorm(8, implementation=torch.nn.functional.layer_norm)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"devices": frozenset({"cuda"})}, "cpu.*cuda"),
        ({"dtypes": frozenset({"float16"})}, "float32.*float16"),
        ({"forward_only": True}, "gradient"),
    ],
)
def test_a_call_outside_the_declarations_is_refused(declared: dict[str, Any], words: str) -> None:
    made = LayerNorm(8, implementation=only(**declared))
    with pytest.raises(UnsupportedError, match=f"^declared .*{words}"):
        made(normal(5, 8))
    if words == "gradient":
        with torch.no_grad():
            assert torch.equal(made(normal(5, 8)), nn.LayerNorm(8)(normal(5, 8)))


# --- copies --------------------------------------------------------------------------------------


TABLE = Dispatch({(8, "float32", "cpu"): "two_pass"})
every_choice = pytest.mark.parametrize(
    "choice", [*ON_CPU, TABLE], ids=lambda choice: getattr(choice, "name", "table")
)


@every_choice
def test_a_copy_runs_the_same_implementation(choice: Any) -> None:
    made = trained(LayerNorm(8, implementation=choice))
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other.implementation == choice
        assert torch.equal(other(normal(5, 8)), made(normal(5, 8)))


# --- compiled and exported -----------------------------------------------------------------------


@every_choice
def test_it_is_traced_whole_by_torch_compile_and_export(choice: Any) -> None:
    made = trained(LayerNorm(8, implementation=choice))
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(made, (normal(5, 8),)).module()
    for traced in (compiled, exported):
        torch.testing.assert_close(traced(normal(5, 8)), made(normal(5, 8)), **close)


# --- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16], ids=str)
@every_implementation
def test_under_autocast_it_does_what_torch_does(
    norm: Implementation, autocast_dtype: torch.dtype, x_dtype: torch.dtype
) -> None:
    ours, theirs = pair(norm, normalized_shape=8)
    with torch.no_grad(), torch.autocast("cpu", dtype=autocast_dtype):
        found, expected = ours(normal(5, 8, dtype=x_dtype)), theirs(normal(5, 8, dtype=x_dtype))
    assert found.dtype == expected.dtype
    # a few roundings of values up to 8, some of them in x's dtype where the algorithm says so
    allowed = 64 * torch.finfo(x_dtype).eps
    assert float((found - expected).abs().max()) <= allowed


def test_an_implementation_is_not_cast_operator_by_operator_under_autocast() -> None:
    def with_matmul(x: Tensor, *others: Any) -> Tensor:
        return x @ torch.eye(8)

    made = LayerNorm(8, implementation=only(function=with_matmul))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made(normal(5, 8)), normal(5, 8))


@every_choice
def test_under_autocast_to_float32_all_arguments_are_converted(
    choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLOAT32_UNDER_AUTOCAST", {"cpu"})  # as if on such a device
    ours, theirs = pair(choice, normalized_shape=8, dtype=torch.bfloat16)
    x = normal(5, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ours(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, theirs.float()(x.float()), **close)
