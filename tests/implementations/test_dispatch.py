"""A dispatch table chooses by the properties of the call, and never by trying."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from implementations import (
    Dispatch,
    Implementation,
    LayerNorm,
    TargetError,
    UnsupportedError,
    native,
)

TABLE = Dispatch(
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
    assert chosen(TABLE, x, *axes) == name


def test_at_equal_rows_the_entry_that_names_the_direction_is_used() -> None:
    assert chosen(TABLE, torch.empty(100, 64), gradient=False) == "welford_chunked"


def test_without_a_default_a_call_that_matches_no_entry_is_refused() -> None:
    table = Dispatch({(64, "float32", "cpu", 10): "native"})
    with pytest.raises(UnsupportedError, match="64 elements in float32 on cpu, 9 rows, forward"):
        chosen(table, torch.empty(9, 64), gradient=False)


def test_tables_are_equal_exactly_if_they_choose_the_same() -> None:
    turned = Dispatch(dict(reversed(TABLE.entries)), default="native")
    assert turned == TABLE == eval(repr(TABLE))
    assert hash(turned) == hash(TABLE)
    assert Dispatch(dict(TABLE.entries)) != TABLE


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
