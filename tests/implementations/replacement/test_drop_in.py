"""The module is a drop-in for torch.nn.LayerNorm with every implementation."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from factories.drop_ins import (
    ARGUMENTS,
    ON_CPU,
    all_arguments,
    every_implementation,
    normal,
    only,
    pair,
    trained,
)
from torch import nn

from implementations import (
    Dispatch,
    Implementation,
    LayerNorm,
    TargetError,
    UnsupportedError,
)

# --- like torch.nn.LayerNorm ---------------------------------------------------------------------


def test_the_constructor_takes_what_torch_takes_in_the_same_order() -> None:
    ours = inspect.signature(LayerNorm.__init__).parameters
    theirs = inspect.signature(nn.LayerNorm.__init__).parameters
    assert list(ours) == [*theirs, "implementation"]
    assert [ours[name].default for name in theirs] == [
        parameter.default for parameter in theirs.values()
    ]


def same_state(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return list(states[0]) == list(states[1]) and all(
        states[0][name].dtype == states[1][name].dtype
        and torch.equal(states[0][name], states[1][name])
        for name in states[0]
    )


@all_arguments
def test_repr_initial_state_and_loaded_states_are_those_of_torch(arguments: dict[str, Any]) -> None:
    ours, theirs = LayerNorm(**arguments), nn.LayerNorm(**arguments)
    assert repr(ours) == repr(theirs)
    assert same_state(ours, theirs)
    ours.load_state_dict(trained(theirs).state_dict())
    back = nn.LayerNorm(**arguments)
    back.load_state_dict(ours.state_dict())
    assert same_state(back, theirs)
    ours.reset_parameters()
    assert same_state(ours, nn.LayerNorm(**arguments))


@pytest.mark.parametrize(
    ("normalized", "x"),
    [
        (4, torch.zeros(2, 3)),
        (4, torch.zeros(())),
        (4, torch.zeros(4, 1)),
        ((2, 4), torch.zeros(4)),
        ((2, 4), torch.zeros(2, 4, 3)),
        ((), torch.zeros(2, 4)),
        (4, [1.0, 2.0, 3.0, 4.0]),
        (4, None),
        (4, torch.zeros(2, 4, dtype=torch.int64)),
        (4, torch.zeros(2, 4, dtype=torch.bool)),
        (4, torch.zeros(2, 4, dtype=torch.complex64)),
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


@every_implementation
def test_the_implementation_is_given_by_name_or_itself(norm: Implementation) -> None:
    assert LayerNorm(8, implementation=norm).implementation is norm
    assert LayerNorm(8, implementation=norm.name).implementation is norm


def test_the_implementation_is_given_as_a_target_and_shown() -> None:
    made = LayerNorm(8, implementation="torch.nn.functional:layer_norm")
    assert torch.equal(made(normal(5, 8)), nn.LayerNorm(8)(normal(5, 8)))
    assert repr(made).endswith(", implementation=torch.nn.functional:layer_norm)")


@pytest.mark.parametrize(
    ("implementation", "kind", "words"),
    [
        ("two_pas", TargetError, "did you mean 'two_pass'"),
        (torch.nn.functional.layer_norm, TypeError, "adopt"),
    ],
    ids=["unknown name", "bare function"],
)
def test_an_invalid_implementation_is_refused_when_the_module_is_made(
    implementation: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        LayerNorm(8, implementation=implementation)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (only(devices=frozenset({"cuda"})), "cpu.*cuda"),
        (only(dtypes=frozenset({"float16"})), "float32.*float16"),
        (only(forward_only=True), "gradient"),
    ],
    ids=["device", "dtype", "gradient"],
)
def test_a_call_outside_the_declarations_is_refused(norm: Implementation, words: str) -> None:
    made = LayerNorm(8, implementation=norm)
    with pytest.raises(UnsupportedError, match=f"^declared .*{words}"):
        made(normal(5, 8))
    if norm.forward_only:
        with torch.no_grad():
            assert torch.equal(made(normal(5, 8)), nn.LayerNorm(8)(normal(5, 8)))


# --- copies --------------------------------------------------------------------------------------


def through_save(made: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = (copy.deepcopy, copy.copy, lambda made: pickle.loads(pickle.dumps(made)), through_save)


@pytest.mark.parametrize(
    "implementation",
    [*ON_CPU, Dispatch({(8, "float32", "cpu"): "two_pass"}, default="native")],
    ids=lambda choice: getattr(choice, "name", "table"),
)
def test_a_copy_runs_the_same_implementation(implementation: Any) -> None:
    made = trained(LayerNorm(8, implementation=implementation))
    for copied in COPIES:
        other = copied(made)
        assert other.implementation == implementation
        assert torch.equal(other(normal(5, 8)), made(normal(5, 8)))


def test_an_implementation_that_no_name_finds_is_copied_too() -> None:
    norm = only(function=lambda x, *others: x + 1)
    assert copy.deepcopy(LayerNorm(8, implementation=norm)).implementation == norm
