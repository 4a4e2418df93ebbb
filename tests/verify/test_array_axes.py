"""The axes of the covering array: every row is a case within the target's scope."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.records import Affine, Autograd, Direction
from harness.verify import Scope
from harness.verify.cases import array_within, axes_within, case_from

ROWS = array_within(Scope(), 2, forward_only=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_row_becomes_the_case_that_it_says(dtype: str) -> None:
    for row in ROWS:
        case = case_from(row, "target", dtype, "cpu")
        assert (case.rows, case.hidden) == (row["rows"], row["hidden"])
        assert len(case.shape) == row["leading_axes"] + row["normalized_axes"]
        assert case.normalized_dims == row["normalized_axes"]
        assert (case.param_dtype != dtype) == (row["param_dtype"] != "same" and dtype != "float32")
        for axis in ("distribution", "layout", "parameters", "eps", "grad_output", "threads"):
            assert getattr(case, axis) == row[axis]


def test_every_way_to_call_is_tried() -> None:
    cases = [case_from(row, "target", "float32", "cpu") for row in ROWS]
    found = Counter((case.direction, case.autograd) for case in cases)
    forward = {Autograd.DEFAULT, Autograd.INFERENCE_MODE, Autograd.RECORDED}
    backward = {*Autograd} - forward | {Autograd.DEFAULT}
    expected = {(Direction.FORWARD, each) for each in forward}
    expected |= {(Direction.BACKWARD, each) for each in backward}
    assert set(found) == expected


# --- within a scope ------------------------------------------------------------------------------


def test_only_values_within_the_scope_are_tried() -> None:
    scope = Scope(
        declined={
            "affine": (Affine.BOTH, Affine.NONE, Affine.BIAS),
            "eps": (1e-7,),
            "normalized_axes": (2, 3, 4, 5),
            "param_dtype": ("float32",),
            "layout": ("negated",),
            "grad_output": ("expanded_ones",),
            "parameters": ("transposed",),
        },
    )
    axes = axes_within(scope, forward_only=True)
    assert axes["affine"] == ("weight",)
    assert min(axes["eps"]) >= 1e-6
    assert axes["normalized_axes"] == (1,)
    assert axes["param_dtype"] == ("same",)
    assert "negated" not in axes["layout"]
    assert "expanded_ones" not in axes["grad_output"]
    assert "transposed" not in axes["parameters"]
    assert set(axes["call"]) == {"no_grad", "inference_mode", "recorded"}
    rows = array_within(scope, 2, forward_only=True)
    cases = [case_from(row, "target", "float32", "cpu") for row in rows]
    assert all(scope.fit(case) == case for case in cases)


def test_a_fixed_shape_and_eps_leave_one_value_each() -> None:
    scope = Scope(normalized_shape=(3, 8), declined={"normalized_axes": (1, 3, 4, 5)}, eps=1e-6)
    axes = axes_within(scope, forward_only=False)
    assert [len(axes[name]) for name in ("hidden", "normalized_axes", "eps")] == [1, 1, 1]
    rows = array_within(scope, 2, forward_only=False)
    fitted = [scope.fit(case_from(row, "target", "float32", "cpu")) for row in rows]
    assert {None if case is None else (case.normalized_shape, case.eps) for case in fitted} == {
        ((3, 8), 1e-6)
    }


def test_no_axis_loses_all_its_values() -> None:
    axes = axes_within(
        Scope(declined={"normalized_axes": (1, 2, 3, 5), "eps": (9.0,)}), forward_only=False
    )
    assert all(axes.values())
