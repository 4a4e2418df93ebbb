"""The module is a drop-in for torch.nn.LayerNorm, also traced, under autocast and with a table."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.operands import ON_CPU, every_implementation, normal
from torch import Tensor, nn

from implementations import (
    Dispatch,
    Implementation,
    LayerNorm,
    TargetError,
    UnsupportedError,
    module,
    native,
)

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


def trained(made: nn.LayerNorm) -> nn.LayerNorm:
    """Give the parameters values that are neither one nor zero."""
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters(), 1):
            parameter.copy_(normal(*parameter.shape, seed=seed))
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
    # benign float64: rounding only
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


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


# --- dispatch: chosen by the properties of the call, and never by trying --------------------------

BY_ROWS = Dispatch(
    {
        (64, "float32", "cpu"): "two_pass",
        (64, "float32", "cpu", 10): "welford",
        (64, "float32", "cpu", 100): "one_pass",
        (64, "float32", "cpu", 100, "forward"): "welford_chunked",
        (64, "bfloat16", "cpu", 1): "two_pass_input_dtype",
        (64, "bfloat16", "cuda", 1): "one_pass_input_dtype",
    },
    default="native",
)


def chosen(table: Dispatch, x: Tensor, *axes: int, gradient: bool = True) -> str:
    return table.choose(x, axes or x.shape[-1:], gradient=gradient).name


@pytest.mark.parametrize(
    ("x", "axes", "name"),
    [
        # of the matching entries, the one with the most rows
        (torch.empty(9, 64), (), "two_pass"),
        (torch.empty(10, 64), (), "welford"),
        (torch.empty(100, 64), (), "one_pass"),
        # what makes the key
        (torch.empty(5, 64, dtype=torch.bfloat16), (), "two_pass_input_dtype"),
        (torch.empty(5, 64, device="meta", dtype=torch.bfloat16), (), "native"),
        (torch.empty(5, 20, 64), (), "one_pass"),
        (torch.empty(10, 4, 16), (4, 16), "welford"),
        (torch.empty(5, 65), (), "native"),
    ],
)
def test_rows_dtype_device_and_normalized_axes_choose_the_entry(
    x: Tensor, axes: tuple[int, ...], name: str
) -> None:
    assert chosen(BY_ROWS, x, *axes) == name


def test_at_equal_rows_the_entry_that_names_the_direction_is_used() -> None:
    assert chosen(BY_ROWS, torch.empty(100, 64), gradient=False) == "welford_chunked"


def test_without_a_default_a_call_that_matches_no_entry_is_refused() -> None:
    table = Dispatch({(64, "float32", "cpu", 10): "native"})
    with pytest.raises(UnsupportedError, match="64 elements in float32 on cpu, 9 rows, forward"):
        chosen(table, torch.empty(9, 64), gradient=False)


def test_tables_are_equal_exactly_if_they_choose_the_same() -> None:
    turned = Dispatch(dict(reversed(BY_ROWS.entries)), default="native")
    assert turned == BY_ROWS == eval(repr(BY_ROWS))
    assert hash(turned) == hash(BY_ROWS)
    assert Dispatch(dict(BY_ROWS.entries)) != BY_ROWS


def test_a_name_that_is_not_found_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(TargetError, match="did you mean 'welford'"):
        Dispatch({(64, "float32", "cpu"): "welfrod"})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ((64, "float32"), "expected a tuple of hidden, dtype, device, rows, direction"),
        ((64, "float32", "cpu", -1), "whole numbers"),
        ((64, "float31", "cpu"), "no dtype 'float31'"),
        ((64, "float32", "cuda:0"), "'cuda:0' is not a device kind; write it as 'cuda'"),
        ((64, "float32", "cpu", 1, "backward"), r"no direction 'backward'; known: forward, "),
    ],
    ids=str,
)
def test_a_malformed_key_is_refused(key: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Dispatch({key: "native"})


# --- in a module ---------------------------------------------------------------------------------


def constant(name: str, value: float) -> Implementation:
    """Return an implementation that is recognised by its result."""

    def layer_norm(x: Tensor, *others: object) -> Tensor:
        return x * 0 + value

    return Implementation(name=name, function=layer_norm, source="this test")


def test_a_module_looks_up_the_table_at_every_call_also_compiled_for_static_shapes() -> None:
    table = {(8, "float32", "cpu"): constant("few", 1.0), (8, "float32", "cpu", 3): native}
    made = LayerNorm(8, implementation=table)
    torch.compiler.reset()
    for run in (made, torch.compile(made, fullgraph=True, dynamic=False, backend="eager")):
        found = [run(torch.zeros(rows, 8)).unique().tolist() for rows in (2, 3, 2)]
        assert found == [[1.0], [0.0], [1.0]]


@pytest.mark.parametrize(
    ("x_records", "parameters_record", "enabled", "value"),
    [
        (False, True, True, 2.0),
        (True, False, True, 2.0),
        (True, True, False, 1.0),
    ],
)
def test_the_direction_is_forward_unless_the_call_is_recorded_for_a_backward(
    x_records: bool, parameters_record: bool, enabled: bool, value: float
) -> None:
    table = {
        (8, "float32", "cpu", 0, "forward"): constant("inference", 1.0),
        (8, "float32", "cpu", 0, "forward+backward"): constant("training", 2.0),
    }
    made = LayerNorm(8, implementation=table).requires_grad_(parameters_record)
    with torch.set_grad_enabled(enabled):
        y = made(torch.zeros(2, 8, requires_grad=x_records))
    assert y.unique().tolist() == [value]
