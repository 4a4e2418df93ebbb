"""Inputs: equal cases draw equal inputs; every function is listed and described."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.cases.inputs import (
    LAYOUTS,
    make_inputs,
)
from harness.records import Affine, Case, Direction, Mode

CASE = Case(implementation="native", shape=(6, 33), direction=Direction.BACKWARD)

cases = st.builds(
    Case,
    implementation=st.sampled_from(["native", "two_pass"]),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "float16"]),
    param_dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    distribution=st.sampled_from(["normal", "uniform", "outlier", "ulp_comb", "ramp_offset"]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    direction=st.sampled_from(Direction),
    affine=st.sampled_from(Affine),
    seed=st.integers(0, 2**31),
)


@given(cases)
def test_equal_cases_draw_equal_inputs(case: Case) -> None:
    for one, other in zip(make_inputs(case).tensors, make_inputs(case).tensors, strict=True):
        assert torch.equal(one, other)


@given(cases)
def test_inputs_have_the_shapes_and_dtypes_of_the_case(case: Case) -> None:
    inputs = make_inputs(case)
    assert inputs.x.shape == case.shape
    assert inputs.x.dtype == getattr(torch, case.dtype)
    assert (inputs.weight is not None) == (case.affine in {Affine.BOTH, Affine.WEIGHT})
    assert (inputs.bias is not None) == (case.affine in {Affine.BOTH, Affine.BIAS})
    for parameter in (inputs.weight, inputs.bias):
        if parameter is not None:
            assert parameter.shape == case.normalized_shape
            assert parameter.dtype == getattr(torch, case.param_dtype)
    assert (inputs.dy is None) == (case.direction is Direction.FORWARD)
    if inputs.dy is not None:
        assert inputs.dy.shape == case.shape
        assert inputs.dy.dtype == inputs.x.dtype


@pytest.mark.parametrize(
    "change",
    [
        {"implementation": "two_pass"},
        {"mode": Mode.COMPILED},
        {"direction": Direction.FORWARD},
        pytest.param(
            {"device": "cuda"},
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ),
        {"layout": "transposed"},
        {"layout": "padded_rows"},
        {"affine": Affine.NONE},
        {"eps": 0.0},
        {"threads": 2},
        {"normalized_dims": 2},
    ],
    ids=str,
)
def test_an_axis_that_says_how_to_run_does_not_change_x(change: dict[str, object]) -> None:
    assert torch.equal(make_inputs(replace(CASE, **change)).x.cpu(), make_inputs(CASE).x)


def test_dy_and_parameters_do_not_depend_on_the_distribution_of_x() -> None:
    one, other = make_inputs(CASE), make_inputs(replace(CASE, distribution="constant"))
    for name in ("weight", "bias", "dy"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_all_tensors_are_random_and_no_two_are_the_same() -> None:
    flat = [tensor.flatten() for tensor in make_inputs(replace(CASE, shape=(1, 33))).tensors]
    assert len(flat) == 4
    assert all(tensor.std() > 0.5 for tensor in flat)
    for index, one in enumerate(flat):
        assert all(not torch.equal(one, other) for other in flat[:index])


def test_a_narrow_dtype_holds_the_same_values_rounded_once() -> None:
    wide = make_inputs(replace(CASE, dtype="float64")).x
    for dtype in ("float32", "bfloat16", "float16"):
        narrow = make_inputs(replace(CASE, dtype=dtype)).x
        assert torch.equal(narrow, wide.to(narrow.dtype))


def test_drawing_does_not_change_torchs_generator() -> None:
    before = torch.get_rng_state()
    make_inputs(CASE)
    assert torch.equal(torch.get_rng_state(), before)


# --- the lists -----------------------------------------------------------------------------------
