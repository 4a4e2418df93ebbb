"""Inputs: equal cases draw equal ones, and distributions and layouts are what their names say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.verify_targets import every_dtype
from torch import Tensor

from harness.cases import (
    DISTRIBUTIONS,
    DTYPES,
    GRAD_OUTPUTS,
    LAYOUTS,
    PARAMETERS,
    Inputs,
    UnrepresentableError,
    make_inputs,
)
from harness.records import Affine, Case, Direction, Mode

CASE = Case(implementation="native", shape=(6, 33), direction=Direction.BACKWARD)


def drawn(**axes: Any) -> Inputs:
    return make_inputs(replace(CASE, **axes))


@pytest.mark.parametrize("distribution", ["normal", "mixed_outliers", "ramp_offset"])
def test_equal_cases_draw_equal_inputs(distribution: str) -> None:
    one, other = (drawn(distribution=distribution, seed=2**31).tensors for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_inputs_have_the_shapes_and_dtypes_of_the_case() -> None:
    inputs = drawn(shape=(4, 3, 5), normalized_dims=2, dtype="float16", affine=Affine.WEIGHT)
    of_x, of_weight = ((4, 3, 5), torch.float16), ((3, 5), torch.float32)
    found = [(tensor.shape, tensor.dtype) for tensor in inputs.tensors]
    assert found == [of_x, of_weight, of_x]
    assert inputs.bias is None
    assert drawn(direction=Direction.FORWARD).dy is None


@pytest.mark.parametrize(
    "change",
    [
        *({"implementation": "two_pass"}, {"mode": Mode.COMPILED}, {"eps": 0.0}, {"threads": 2}),
        *({"direction": Direction.FORWARD}, {"affine": Affine.NONE}, {"layout": "transposed"}),
    ],
    ids=str,
)
def test_an_axis_that_says_how_to_run_does_not_change_x(change: dict[str, object]) -> None:
    assert torch.equal(drawn(**change).x, drawn().x)


def test_all_tensors_are_random_and_no_two_are_the_same() -> None:
    flat = [tensor.flatten() for tensor in drawn(shape=(1, 33)).tensors]
    assert len({tuple(tensor.tolist()) for tensor in flat}) == 4
    assert all(tensor.std() > 0.5 for tensor in flat)


def test_a_narrow_dtype_holds_the_same_values_rounded_once() -> None:
    for dtype in DTYPES:
        narrow = drawn(dtype=dtype).x
        assert torch.equal(narrow, drawn(dtype="float64").x.to(narrow.dtype))


def test_drawing_does_not_change_torchs_generator() -> None:
    before = torch.get_rng_state()
    drawn()
    assert torch.equal(torch.get_rng_state(), before)


# --- distributions of x --------------------------------------------------------------------------

POISONED = {
    "mixed_nonfinite",
    "nan_row",
    "positive_infinity_row",
    "negative_infinity_row",
    "nan_after_row",
}
BEYOND_FLOAT16 = {
    *("offset_1e5", "offset_1e6", "offset_1e7", "constant_1e30"),
    *("deep_pixels", "pytorch_81090", "pytorch_162489", "pytorch_188372"),
}


@every_dtype
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_is_finite_or_refused(distribution: str, dtype: str) -> None:
    for shape in ((4, 1000), (4, 1), (4, 2), (0, 5), (5, 0)):
        try:
            x = drawn(distribution=distribution, dtype=dtype, shape=shape).x
        except UnrepresentableError:
            assert dtype == "float16"
            assert distribution in BEYOND_FLOAT16
        else:
            poisoned = distribution in POISONED and x.numel() > 0
            bad_rows = 2 if distribution == "nan_after_row" else 1
            assert int((~torch.isfinite(x)).sum()) == poisoned * bad_rows


@pytest.mark.parametrize(
    ("distribution", "holds"),
    [
        ("uniform", lambda x: 0 <= x.min() < 0.01 and 0.99 < x.max() < 1),
        ("tiny_variance", lambda x: x.var(-1).max() < 1e-5 / 500),
        ("outlier", lambda x: (x[:, 512] == 1e4).all() and (x.abs() > 100).sum() == 50),
        ("transformer_outlier", lambda x: (x[:, 7] == 60).all() and (x[:, 515] == -35).all()),
        ("near_max", lambda x: x.max() > 0.98 * torch.finfo(torch.float64).max > -0.98 * x.min()),
        ("pytorch_81090", lambda x: bool((x.flatten().diff() == 1).all())),
    ],
)
def test_a_distribution_is_what_its_name_says(
    distribution: str, holds: Callable[[Tensor], bool]
) -> None:
    assert holds(drawn(distribution=distribution, dtype="float64", shape=(50, 1024)).x)


@pytest.mark.parametrize("exponent", range(1, 7))
def test_an_offset_has_the_condition_number_in_its_name(exponent: int) -> None:
    x = drawn(distribution=f"offset_1e{exponent}", dtype="float64", shape=(50, 1024)).x
    conditions = (1 + x.mean(-1).square() / x.var(-1, correction=0)).sqrt()
    assert float((conditions / 10.0**exponent - 1).abs().max()) < 0.15


@every_dtype
def test_ulp_comb_is_held_exactly_and_its_teeth_are_neighbours(dtype: str) -> None:
    x = drawn(distribution="ulp_comb", dtype=dtype, shape=(2, 9)).x
    c = 1 / torch.finfo(x.dtype).eps
    assert (x[0].double() - c).tolist() == [2, 3, 1, 3, 1, 3, 1, 3, 1]
    above = torch.nextafter(x, torch.full_like(x, float("inf")))
    assert bool((above.double() - x.double() == 1).all())


# --- output gradients and parameters -------------------------------------------------------------


@pytest.mark.parametrize("name", GRAD_OUTPUTS)
@pytest.mark.parametrize("shape", [(4, 7), (1, 1), (0, 5), (5, 0)], ids=str)
def test_only_poison_is_not_finite(name: str, shape: tuple[int, ...]) -> None:
    dy = drawn(grad_output=name, shape=shape).tensors[-1]
    assert dy.shape == shape
    poisoned = name in {"nan_row", "infinity_row"} and dy.numel() > 0
    assert int((~torch.isfinite(dy)).sum()) == poisoned


def test_a_gradient_that_undoes_the_weight_gives_the_normalised_x() -> None:
    axes = {"dtype": "float64", "param_dtype": "float64"}
    x, weight, _, dy = drawn(grad_output="normalised", **axes).tensors
    torch.testing.assert_close(dy * weight, torch.nn.functional.layer_norm(x, (33,), eps=0.0))


def test_an_expanded_gradient_has_strides_of_zero() -> None:
    names = ("ones", "number", "row")
    drawn_ones, number, row = (drawn(grad_output=f"expanded_{name}").tensors[-1] for name in names)
    assert [dy.stride() for dy in (drawn_ones, number, row)] == [(0, 0), (0, 0), (0, 1)]
    assert len(row[0].unique()) == 33


def test_few_rows_are_lost_where_portions_of_them_are_added_in_bfloat16() -> None:
    dy = drawn(grad_output="few_rows", dtype="bfloat16", shape=(4100, 2)).tensors[-1]
    total = torch.zeros(2, dtype=torch.bfloat16)
    for portion in dy.split(1024):
        total = total + portion.sum(0)
    assert (float(total.min()), float(dy.double().sum(0).min()) > 1.013) == (1, True)


@pytest.mark.parametrize(
    ("parameters", "holds"),
    [
        ("zero_weight", lambda weight: weight == 0),
        ("negative_weight", lambda weight: weight < 0),
        ("power_of_two_weight", lambda weight: torch.frexp(weight)[0].abs() == 0.5),
    ],
)
def test_a_weight_is_as_its_name_says_and_the_bias_as_usual(
    parameters: str, holds: Callable[[Tensor], Tensor]
) -> None:
    _, weight, bias, _ = drawn(parameters=parameters).tensors
    assert bool(holds(weight).all())
    assert torch.equal(bias, drawn().tensors[2])


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("hidden", [8, 1, 0])
def test_only_nan_parameters_are_not_finite(name: str, hidden: int) -> None:
    _, weight, bias, _ = drawn(parameters=name, shape=(3, hidden)).tensors
    expected = [name == f"nan_{of}" and hidden > 0 for of in ("weight", "bias")]
    assert [int(weight.isnan().sum()), int(bias.isnan().sum())] == expected


def test_transposed_parameters_of_two_axes_have_the_usual_values() -> None:
    case = Case(implementation="", shape=(2, 3, 5, 7), normalized_dims=2)
    _, *usual = make_inputs(case).tensors
    _, *placed = make_inputs(replace(case, parameters="transposed")).tensors
    assert [parameter.stride() for parameter in placed] == [(1, 5)] * 2
    assert all(map(torch.equal, placed, usual))


# --- layouts: where values are in memory ---------------------------------------------------------

SHAPES = [(6, 33), (4, 3, 5), (2, 3, 4, 5), (7,), (1, 1), (0, 5), (5, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_keeps_shape_and_values(layout: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    placed = LAYOUTS[layout](x)
    if layout == "expanded":  # one row's memory holds one row's values
        x = x[:1].expand(x.shape)
    if layout == "expanded_second" and x.dim() > 2:
        x = x[:, :1].expand(x.shape)
    if layout == "expanded_windows" and x.dim() == 2 and x.numel():
        x = torch.stack([x.flatten()[at : at + x.shape[1]] for at in range(x.shape[0])])
    assert torch.equal(placed, x)
    assert (placed.shape, placed.dtype) == (x.shape, x.dtype)


@pytest.mark.parametrize(
    ("layout", "shape", "offset", "stride"),
    [
        ("contiguous", (4, 5), 0, (5, 1)),
        ("storage_offset", (4, 5), 1, (5, 1)),
        ("padded_rows", (4, 5), 0, (8, 1)),
        ("transposed", (4, 5), 0, (1, 4)),
        ("every_second", (4, 5), 1, (10, 2)),
        ("channels_last", (2, 3, 5, 7), 0, (105, 1, 21, 3)),
        ("channels_first", (2, 3, 5, 7), 0, (105, 5, 1, 15)),
        ("sequence_first", (4, 6, 64), 0, (64, 256, 1)),
        ("sliced_middle", (4, 6, 5), 0, (45, 5, 1)),
        ("expanded", (4, 5), 0, (0, 1)),
        ("expanded_second", (4, 6, 5), 0, (5, 0, 1)),
        ("expanded_windows", (4, 5), 0, (1, 1)),
        ("chunk", (4, 5), 2, (5, 1)),
        ("offset_99", (4, 5), 99, (5, 1)),
        ("negated", (4, 5), 0, (5, 1)),
    ],
)
def test_a_case_has_the_offset_and_strides_of_its_layout_on_its_device(
    layout: str, shape: tuple[int, ...], offset: int, stride: tuple[int, ...]
) -> None:
    # on the device without memory: a copy to a device would close the gaps between elements
    for device in ("cpu", "meta"):
        inputs = drawn(layout=layout, shape=shape, device=device)
        assert (inputs.x.storage_offset(), inputs.x.stride()) == (offset, stride)
        assert {tensor.device.type for tensor in inputs.tensors} == {device}
    assert LAYOUTS[layout](torch.zeros(shape)).is_neg() == (layout == "negated")


def test_unused_memory_is_nan() -> None:
    memory = LAYOUTS["padded_rows"](torch.zeros(4, 5)).as_strided((4, 8), (8, 1))
    assert memory.isnan().sum(1).tolist() == [3] * 4
