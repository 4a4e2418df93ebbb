"""Inputs: equal cases draw equal inputs, and each distribution and layout is what it says."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.inputs import (
    DISTRIBUTIONS,
    GRAD_OUTPUTS,
    LAYOUTS,
    PARAMETERS,
    Inputs,
    UnrepresentableError,
    describe,
    distributions,
    layouts,
    make_inputs,
    parameters,
    reported,
)
from harness.inputs import grad_outputs as grad_output
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


def drawn(distribution: str, **changes: object) -> Tensor:
    """x in float64 of a case with that distribution."""
    shape = changes.pop("shape", (50, 1024))
    case = Case(
        implementation="native",
        shape=shape,
        dtype=changes.pop("dtype", "float64"),
        distribution=distribution,
    )
    return make_inputs(case).x.double()


def conditions(x: Tensor) -> Tensor:
    return (1 + x.mean(-1).square() / x.var(-1, correction=0)).sqrt()


# --- which inputs a case draws -------------------------------------------------------------------


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
def test_what_says_how_to_run_does_not_change_x(change: dict[str, object]) -> None:
    assert torch.equal(make_inputs(replace(CASE, **change)).x.cpu(), make_inputs(CASE).x)


def test_dy_and_parameters_do_not_depend_on_the_distribution_of_x() -> None:
    one, other = make_inputs(CASE), make_inputs(replace(CASE, distribution="constant"))
    for name in ("weight", "bias", "dy"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_another_seed_draws_other_inputs() -> None:
    one, other = make_inputs(CASE), make_inputs(replace(CASE, seed=1))
    for a, b in zip(one.tensors, other.tensors, strict=True):
        assert not torch.equal(a, b)


def test_no_two_tensors_of_a_case_are_the_same() -> None:
    inputs = make_inputs(replace(CASE, shape=(1, 33)))
    flat = [each.flatten() for each in inputs.tensors]
    assert len(flat) == 4
    for index, one in enumerate(flat):
        assert all(not torch.equal(one, other) for other in flat[:index])


def test_a_narrow_dtype_holds_the_same_values_rounded_once() -> None:
    wide = make_inputs(replace(CASE, dtype="float64")).x
    for dtype in ("float32", "bfloat16", "float16"):
        narrow = make_inputs(replace(CASE, dtype=dtype)).x
        assert torch.equal(narrow, wide.to(narrow.dtype))


def test_drawing_leaves_torchs_own_generator_alone() -> None:
    before = torch.get_rng_state()
    make_inputs(CASE)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_forward_case_has_no_dy() -> None:
    assert make_inputs(replace(CASE, direction=Direction.FORWARD)).dy is None


def test_dy_does_not_sum_to_nothing_over_many_rows() -> None:
    dy = make_inputs(replace(CASE, shape=(4096, 3))).dy
    assert dy is not None
    # a mean of 0.1 is six standard errors of 4096 draws away from 0
    assert bool((dy.sum(0) > 200).all())


def test_weight_is_not_one_and_bias_is_not_zero() -> None:
    inputs = make_inputs(CASE)
    assert inputs.weight is not None
    assert inputs.bias is not None
    assert inputs.weight.std() > 0.5
    assert inputs.bias.std() > 0.5


def test_parameters_have_the_shape_of_all_normalised_axes() -> None:
    case = replace(CASE, shape=(2, 3, 5, 7), normalized_dims=3)
    inputs = make_inputs(case)
    assert inputs.weight is not None
    assert inputs.weight.shape == (3, 5, 7)
    assert inputs.weight.flatten().unique().numel() == 3 * 5 * 7


# --- distributions -------------------------------------------------------------------------------


POISONED = {"nan_row", "positive_infinity_row", "negative_infinity_row"}
BEYOND_FLOAT16 = {
    "offset_1e5",
    "offset_1e6",
    "offset_1e7",
    "constant_1e30",
    "pytorch_81090",
    "pytorch_162489",
    "pytorch_188372",
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_is_finite_or_refused(distribution: str, dtype: str) -> None:
    for shape in ((4, 1000), (4, 1), (4, 2), (0, 5), (5, 0)):
        try:
            x = drawn(distribution, dtype=dtype, shape=shape)
        except UnrepresentableError:
            assert dtype == "float16"
            assert distribution in BEYOND_FLOAT16
        else:
            poisoned = distribution in POISONED and x.numel() > 0
            assert int((~torch.isfinite(x)).sum()) == poisoned


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_says_what_it_breaks(distribution: str) -> None:
    said = describe(DISTRIBUTIONS[distribution])
    assert len(said) > 20
    assert said[-1] in ".;"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_says_what_it_is(layout: str) -> None:
    assert len(describe(LAYOUTS[layout])) > 20


def test_a_function_without_docstring_says_nothing() -> None:
    assert describe(lambda x: x) == ""


def defined_in(module: object, parameters: tuple[str, ...]) -> set[str]:
    """Names of a module's own public functions that take these parameters."""
    return {
        name
        for name, each in inspect.getmembers(module, inspect.isfunction)
        if each.__module__ == module.__name__  # type: ignore[attr-defined]
        and tuple(inspect.signature(each).parameters) == parameters
        and not name.startswith("_")
    }


def test_no_distribution_is_forgotten_in_the_list() -> None:
    defined = defined_in(distributions, ("rows", "hidden", "limits", "generator"))
    assert len(defined) > 20
    made = {f"offset_1e{exponent}" for exponent in range(1, 8)} | POISONED
    made |= {"constant", "constant_zero", "constant_1234", "constant_6e4", "constant_1e30"}
    made |= set(reported.__all__)
    assert defined | made == set(DISTRIBUTIONS)


def test_no_layout_is_forgotten_in_the_list() -> None:
    assert defined_in(layouts, ("x",)) == set(LAYOUTS)


def test_no_upstream_is_forgotten_in_the_list() -> None:
    assert defined_in(grad_output, ("x", "weight", "generator")) == set(GRAD_OUTPUTS)


def test_no_parameters_are_forgotten_in_the_list() -> None:
    assert defined_in(parameters, ("weight", "bias")) == set(PARAMETERS)


def test_no_reported_row_is_forgotten_in_the_list() -> None:
    defined = defined_in(reported, ("rows", "hidden", "limits", "generator"))
    assert defined == set(reported.__all__)
    assert defined < set(DISTRIBUTIONS)


def of_parameters(name: str, *, affine: Affine = Affine.BOTH, hidden: int = 8) -> Inputs:
    return make_inputs(Case(implementation="", shape=(3, hidden), parameters=name, affine=affine))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_say_what_they_break_and_only_nan_ones_are_not_finite(name: str) -> None:
    assert len(describe(PARAMETERS[name])) > 20
    for hidden in (8, 1, 0):
        inputs = of_parameters(name, hidden=hidden)
        assert inputs.weight is not None
        assert inputs.bias is not None
        missing = {each: int(getattr(inputs, each).isnan().sum()) for each in ("weight", "bias")}
        expected = {each: int(name == f"nan_{each}" and hidden > 0) for each in missing}
        assert missing == expected


def test_weights_are_what_their_names_say() -> None:
    found = {name: of_parameters(name).weight for name in PARAMETERS}
    assert all(each is not None for each in found.values())
    weights = {name: each for name, each in found.items() if each is not None}
    assert bool((weights["zero_weight"] == 0).all())
    assert bool((weights["negative_weight"] < 0).all())
    mantissas, _ = torch.frexp(weights["power_of_two_weight"])
    assert bool((mantissas.abs() == 0.5).all())
    assert weights["power_of_two_weight"].abs().unique().numel() == 8


def test_another_choice_of_weight_changes_no_bias() -> None:
    usual, zeroed = of_parameters("normal"), of_parameters("zero_weight")
    assert usual.bias is not None
    assert zeroed.bias is not None
    assert torch.equal(usual.bias, zeroed.bias)


def upstream_case(name: str, **axes: object) -> Case:
    return Case(
        implementation="",
        shape=(4, 33),
        direction=Direction.BACKWARD,
        grad_output=name,
        **axes,  # type: ignore[arg-type]
    )


def test_inverse_weight_times_weight_is_one() -> None:
    inputs = make_inputs(upstream_case("inverse_weight", dtype="float64", param_dtype="float64"))
    assert inputs.dy is not None
    assert inputs.weight is not None
    torch.testing.assert_close(inputs.dy * inputs.weight, torch.ones(4, 33, dtype=torch.float64))


def test_inverse_weight_of_zero_is_finite() -> None:
    dy = make_inputs(upstream_case("inverse_weight", parameters="zero_weight")).dy
    assert dy is not None
    assert bool(torch.isfinite(dy).all())


def test_normalised_times_weight_is_xhat_of_the_stored_x() -> None:
    inputs = make_inputs(upstream_case("normalised", dtype="float64", param_dtype="float64"))
    assert inputs.dy is not None
    assert inputs.weight is not None
    xhat = torch.nn.functional.layer_norm(inputs.x, (33,), eps=0.0)
    torch.testing.assert_close(inputs.dy * inputs.weight, xhat)


def test_reported_rows_hold_the_reported_numbers() -> None:
    assert drawn("onnxruntime_28463", shape=(1, 4)).tolist() == [[40000, 40001, 40002, 40003]]
    assert drawn("pytorch_108072", shape=(4, 2)).tolist() == [[2, 2], [14, 14], [2, 2], [14, 14]]
    mlx = drawn("mlx_2238", shape=(2, 16))
    assert abs(float(mlx.mean()) - 1449.568) < 0.001
    assert torch.equal(mlx[0], mlx[1])
    counted = drawn("pytorch_81090", shape=(100, 32))
    assert bool((counted.flatten().diff() == 1).all())
    assert float(counted.max()) == 6_399_999


def test_sparse_is_mostly_zero() -> None:
    share = float((drawn("sparse") == 0).double().mean())
    assert 0.94 < share < 0.96


def test_near_max_has_either_sign_and_nearly_reaches_the_end_of_the_range() -> None:
    x = drawn("near_max", dtype="float16")
    assert float(x.max()) > 0.98 * 65504
    assert float(x.min()) < -0.98 * 65504


@pytest.mark.parametrize("name", GRAD_OUTPUTS)
def test_every_upstream_says_what_it_breaks_and_only_poison_is_not_finite(name: str) -> None:
    assert len(describe(GRAD_OUTPUTS[name])) > 20
    for shape in ((4, 7), (1, 1), (0, 5), (5, 0)):
        case = Case(implementation="", shape=shape, direction=Direction.BACKWARD, grad_output=name)
        dy = make_inputs(case).dy
        assert dy is not None
        assert dy.shape == shape
        poisoned = name in {"nan_row", "infinity_row"} and dy.numel() > 0
        assert int((~torch.isfinite(dy)).sum()) == poisoned


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_an_infinite_gradient_stays_so(dtype: str) -> None:
    dy = make_inputs(upstream_case("infinity_row", dtype=dtype)).dy
    assert dy is not None
    assert int(dy.isinf().sum()) == 1


def test_a_gradient_that_only_the_dtype_cannot_hold_is_the_largest_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GRAD_OUTPUTS, "ones", lambda x, *_: torch.full_like(x, 1e6))
    dy = make_inputs(upstream_case("ones", dtype="float16")).dy
    assert dy is not None
    assert bool((dy == 65504).all())


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("rows", "at_once"), [(65_600, 16_384), (4100, 1024), (4100, 256)])
def test_few_rows_are_lost_where_portions_of_them_are_added_in_bfloat16(
    rows: int, at_once: int, backwards: bool
) -> None:
    case = replace(upstream_case("few_rows", dtype="bfloat16"), shape=(rows, 2))
    dy = make_inputs(case).dy
    assert dy is not None
    portions = [each for each in dy.split(at_once) if bool(each.any())]
    assert [int(each.any(-1).sum()) for each in portions] == [1] * 5
    total = torch.zeros(2, dtype=torch.bfloat16)
    for portion in reversed(portions) if backwards else portions:
        total = total + portion.sum(0)
    assert float(total.min()) == 1
    assert float(dy.double().sum(0).min()) > 1.013


def test_normal_is_standard() -> None:
    x = drawn("normal")
    assert abs(float(x.mean())) < 0.03  # 6 standard errors of 51200 draws
    assert abs(float(x.std()) - 1) < 0.02


def test_uniform_is_between_zero_and_one_with_a_condition_of_two() -> None:
    x = drawn("uniform")
    assert 0 <= float(x.min()) < 0.01
    assert 0.99 < float(x.max()) < 1
    # mean 1/2 over deviation 1/sqrt(12) is 1.73: with the root of 1 + 3, the condition is 2
    assert float((conditions(x) - 2).abs().max()) < 0.2


@pytest.mark.parametrize("exponent", range(1, 7))
def test_an_offset_has_the_condition_number_in_its_name(exponent: int) -> None:
    found = conditions(drawn(f"offset_1e{exponent}"))
    assert float((found / 10.0**exponent - 1).abs().max()) < 0.15
    assert f"1e{exponent}" in describe(DISTRIBUTIONS[f"offset_1e{exponent}"])


def test_tiny_variance_is_far_below_eps() -> None:
    assert float(drawn("tiny_variance").var(-1, correction=0).max()) < 1e-5 / 500


def test_constant_is_constant_and_not_dyadic() -> None:
    x = drawn("constant")
    assert bool((x == 0.1).all())


@pytest.mark.parametrize("distribution", ["outlier", "outlier_first"])
def test_one_outlier_makes_all_of_the_variance(distribution: str) -> None:
    x = drawn(distribution)
    column = 512 if distribution == "outlier" else 0
    assert bool((x[:, column] == 1e4).all())
    assert int((x.abs() > 100).sum()) == len(x)


def test_ramp_offset_rises_from_one_thousand_and_differs_by_row() -> None:
    x = drawn("ramp_offset")
    assert bool((x.diff(dim=-1) > 0).all())
    assert float(x.min()) >= 1000
    assert float(x.max()) <= 1002
    torch.testing.assert_close(x[:, -1] - x[:, 0], torch.ones(len(x), dtype=torch.float64))
    assert x[:, 0].unique().numel() == len(x)


def test_transformer_outlier_has_two_large_channels() -> None:
    x = drawn("transformer_outlier")
    assert bool((x[:, 7] == 60).all())
    assert bool((x[:, 515] == -35).all())
    assert int((x.abs() > 10).sum()) == 2 * len(x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_ulp_comb_is_held_exactly_and_its_teeth_are_neighbours(dtype: str) -> None:
    x = drawn("ulp_comb", dtype=dtype, shape=(2, 9))
    c = 1 / torch.finfo(getattr(torch, dtype)).eps
    assert (x[0] - c).tolist() == [2, 3, 1, 3, 1, 3, 1, 3, 1]
    stored = x.to(getattr(torch, dtype))
    above = torch.nextafter(stored, torch.full_like(stored, float("inf")))
    assert bool((above.double() - x == 1).all())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_last_digit_has_neighbours_alone_and_no_constant_row(dtype: str) -> None:
    for shape in ((50, 3), (50, 1024)):
        x = drawn("last_digit", dtype=dtype, shape=shape)
        stored = x.amin(-1).to(getattr(torch, dtype))
        above = torch.nextafter(stored, torch.full_like(stored, float("inf"))).double()
        assert torch.equal(x.amax(-1), above)
        assert bool((above - stored.double() == 1).all())


def test_last_digit_has_a_condition_of_1e8_in_float32() -> None:
    found = conditions(drawn("last_digit", dtype="float32"))
    assert 1e8 < float(found.median()) < 3e8


@pytest.mark.parametrize("distribution", ["offset_1e5", "offset_1e6"])
def test_what_float16_cannot_hold_is_refused_in_words(distribution: str) -> None:
    case = Case(implementation="native", shape=(2, 8), dtype="float16", distribution=distribution)
    with pytest.raises(UnrepresentableError, match=f"{distribution} reaches 1e.*float16, 65504"):
        make_inputs(case)


def test_float16_takes_what_it_can_hold() -> None:
    assert bool(torch.isfinite(drawn("offset_1e4", dtype="float16")).all())


# --- layouts -------------------------------------------------------------------------------------

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


def test_contiguous_is_contiguous() -> None:
    assert LAYOUTS["contiguous"](torch.zeros(5, 4).t()).is_contiguous()


def test_storage_offset_begins_one_element_into_its_storage() -> None:
    placed = LAYOUTS["storage_offset"](torch.zeros(4, 5))
    assert placed.storage_offset() == 1
    assert placed.stride() == (5, 1)


def test_padded_rows_have_three_nan_after_each_row() -> None:
    placed = LAYOUTS["padded_rows"](torch.zeros(4, 5))
    assert placed.stride() == (8, 1)
    around = placed.as_strided((4, 8), (8, 1))
    assert bool(around[:, 5:].isnan().all())


def test_transposed_has_its_largest_stride_last() -> None:
    assert LAYOUTS["transposed"](torch.zeros(4, 5)).stride() == (1, 4)
    assert max(LAYOUTS["transposed"](torch.zeros(2, 3, 5)).stride()) == 6


def test_channels_last_has_its_second_axis_innermost() -> None:
    assert LAYOUTS["channels_last"](torch.zeros(2, 3, 5, 7)).stride() == (105, 1, 21, 3)
    assert LAYOUTS["channels_last"](torch.zeros(4, 5)).stride() == (5, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_laid_out_on_the_device_of_the_case(layout: str) -> None:
    """On the device without memory: a copy to a device would close the gaps between elements."""
    case = replace(CASE, device="meta", layout=layout)
    found = make_inputs(case)
    assert {each.device.type for each in found.tensors} == {"meta"}
    assert found.x.stride() == make_inputs(replace(CASE, layout=layout)).x.stride()


def test_sequence_first_has_its_first_two_axes_swapped_in_memory() -> None:
    assert LAYOUTS["sequence_first"](torch.zeros(4, 6, 64)).stride() == (64, 256, 1)
    assert LAYOUTS["sequence_first"](torch.zeros(4, 5)).stride() == (5, 1)


def test_sliced_middle_has_nan_where_the_second_axis_goes_on() -> None:
    placed = LAYOUTS["sliced_middle"](torch.zeros(4, 6, 5))
    assert placed.stride() == (45, 5, 1)
    assert bool(placed.as_strided((4, 9, 5), (45, 5, 1))[:, 6:].isnan().all())
    assert LAYOUTS["sliced_middle"](torch.zeros(4, 5)).stride() == (5, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_batches_lies_as_x_does_and_any_other_is_contiguous(layout: str) -> None:
    inputs = make_inputs(replace(CASE, shape=(4, 6, 5), layout=layout))
    plain = make_inputs(replace(CASE, shape=(4, 6, 5)))
    assert inputs.dy is not None
    assert plain.dy is not None
    lies_as_x_does = layout in {"sequence_first", "sliced_middle"}
    assert inputs.dy.stride() == (inputs.x.stride() if lies_as_x_does else (30, 5, 1))
    assert torch.equal(inputs.dy, plain.dy)


def test_transposed_parameters_of_two_axes_are_the_usual_ones_laid_out_otherwise() -> None:
    case = replace(CASE, shape=(2, 3, 5, 7), normalized_dims=2)
    usual, placed = make_inputs(case), make_inputs(replace(case, parameters="transposed"))
    for name in ("weight", "bias"):
        parameter = getattr(placed, name)
        assert parameter.stride() == (1, 5)
        assert torch.equal(parameter, getattr(usual, name))


def test_expanded_rows_are_one_row() -> None:
    assert LAYOUTS["expanded"](torch.zeros(4, 5)).stride() == (0, 1)


def test_every_second_has_nan_between_its_elements() -> None:
    placed = LAYOUTS["every_second"](torch.zeros(4, 5))
    assert placed.stride() == (10, 2)
    assert bool(placed.as_strided((4, 5), (10, 2), 1).isnan().all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_case_gets_the_layout_it_names(layout: str) -> None:
    found = make_inputs(replace(CASE, layout=layout)).x
    assert found.stride() == LAYOUTS[layout](torch.zeros(CASE.shape)).stride()
