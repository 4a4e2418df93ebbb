"""Inputs and their layouts: equal cases draw equal inputs, and a layout says where they lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.cases import LAYOUTS, make_inputs
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


# === Layouts: where values are in memory


SHAPES = [(6, 33), (4, 3, 5), (2, 3, 4, 5), (7,), (1, 1), (0, 5), (5, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_keeps_shape_and_values(layout: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    placed = LAYOUTS[layout](x)
    assert placed.shape == x.shape
    assert placed.dtype == x.dtype
    if layout == "expanded":  # one row's memory holds one row's values
        x = x[:1].expand(x.shape)
    assert torch.equal(placed, x)


@pytest.mark.parametrize(
    ("layout", "shape", "offset", "stride"),
    [
        ("contiguous", (4, 5), 0, (5, 1)),
        ("storage_offset", (4, 5), 1, (5, 1)),
        ("padded_rows", (4, 5), 0, (8, 1)),
        ("transposed", (4, 5), 0, (1, 4)),
        ("transposed", (2, 3, 5), 0, (1, 2, 6)),
        ("every_second", (4, 5), 0, (10, 2)),
        ("channels_last", (2, 3, 5, 7), 0, (105, 1, 21, 3)),
        ("channels_last", (4, 5), 0, (5, 1)),
        ("sequence_first", (4, 6, 64), 0, (64, 256, 1)),
        ("sequence_first", (4, 5), 0, (5, 1)),
        ("sliced_middle", (4, 6, 5), 0, (45, 5, 1)),
        ("sliced_middle", (4, 5), 0, (5, 1)),
        ("expanded", (4, 5), 0, (0, 1)),
        ("negated", (4, 5), 0, (5, 1)),
    ],
)
def test_a_layout_has_its_offset_and_strides(
    layout: str, shape: tuple[int, ...], offset: int, stride: tuple[int, ...]
) -> None:
    placed = LAYOUTS[layout](torch.zeros(shape))
    assert (placed.storage_offset(), placed.stride()) == (offset, stride)
    assert placed.is_neg() == (layout == "negated")


@pytest.mark.parametrize(
    ("layout", "shape", "around", "unused"),
    [
        ("padded_rows", (4, 5), (4, 8), (..., slice(5, None))),
        ("every_second", (4, 5), (4, 10), (..., slice(1, None, 2))),
        ("sliced_middle", (4, 6, 5), (4, 9, 5), (slice(None), slice(6, None))),
    ],
)
def test_unused_memory_is_nan(
    layout: str, shape: tuple[int, ...], around: tuple[int, ...], unused: tuple[object, ...]
) -> None:
    placed = LAYOUTS[layout](torch.zeros(shape))
    memory = placed.as_strided(around, torch.empty(around).stride())
    assert bool(memory[unused].isnan().all())
    assert int(memory.isnan().sum()) == memory.numel() - placed.numel()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_case_gets_the_layout_it_names_on_its_device(layout: str) -> None:
    found = make_inputs(replace(CASE, layout=layout))
    assert found.x.stride() == LAYOUTS[layout](torch.zeros(CASE.shape)).stride()
    # on the device without memory: a copy to a device would close the gaps between elements
    elsewhere = make_inputs(replace(CASE, device="meta", layout=layout))
    assert {tensor.device.type for tensor in elsewhere.tensors} == {"meta"}
    assert elsewhere.x.stride() == found.x.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_batches_lies_as_x_does_and_any_other_is_contiguous(layout: str) -> None:
    inputs = make_inputs(replace(CASE, shape=(4, 6, 5), layout=layout))
    plain = make_inputs(replace(CASE, shape=(4, 6, 5)))
    assert inputs.dy is not None
    assert plain.dy is not None
    lies_as_x_does = layout in {"sequence_first", "sliced_middle"}
    assert inputs.dy.stride() == (inputs.x.stride() if lies_as_x_does else (30, 5, 1))
    assert torch.equal(inputs.dy, plain.dy)
