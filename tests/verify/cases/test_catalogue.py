"""The catalogue: every name exists, no case occurs twice, every shape reveals a wrong axis."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from harness.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS, reported
from harness.records import Affine, Case, Direction
from harness.verify.cases.catalogue import FULL, QUICK, Group, cases_of
from harness.verify.verify import DTYPES

every_tier = pytest.mark.parametrize("tier", [QUICK, FULL], ids=["quick", "full"])
BOTH = {Direction.FORWARD, Direction.BACKWARD}


def cases(tier: tuple[Group, ...], *, forward_only: bool = False) -> list[Case]:
    return [
        case
        for dtype in DTYPES
        for group in tier
        for case in cases_of(group, "target", dtype, "cpu", forward_only)
    ]


# --- what no case may be; the full catalogue contains the quick one -------------------------------


def test_every_name_exists() -> None:
    for group in FULL:
        assert set(group.distributions) <= set(DISTRIBUTIONS)
        assert set(group.layouts) <= set(LAYOUTS)
        assert set(group.grad_outputs) <= set(GRAD_OUTPUTS)
        assert set(group.parameters) <= set(PARAMETERS)
        assert set(group.dtypes) <= set(DTYPES)
        assert set(group.param_dtypes) <= {None, *DTYPES}
        assert set(group.affines) <= set(Affine)


def test_every_group_says_what_it_catches() -> None:
    catches = [group.catches for group in FULL]
    assert all(text.strip() for text in catches)
    assert len(set(catches)) == len(catches)


def test_no_case_is_tried_twice() -> None:
    assert [case.id for case, count in Counter(cases(FULL)).items() if count > 1] == []


def test_no_input_is_square_except_for_public_bugs() -> None:
    square = {
        each.id
        for group in FULL
        if not set(group.distributions) <= set(reported.__all__)
        and group.catches != "an axis identified by its size alone"
        for dtype in DTYPES
        for each in cases_of(group, "target", dtype, "cpu", False)
        if each.rows == each.hidden > 1
    }
    assert sorted(square) == []


def test_forward_only_selects_only_forward_cases() -> None:
    assert {each.direction for each in cases(FULL, forward_only=True)} == {Direction.FORWARD}


# --- what the catalogue must contain --------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_every_layout_and_affine(dtype: str) -> None:
    own = [each for each in cases(QUICK) if each.dtype == dtype]
    assert {each.layout for each in own} == set(LAYOUTS)
    assert {each.affine for each in own} == set(Affine)
    assert {each.normalized_dims for each in own} >= {1, 2, 3, 4}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "unusual",
    [
        {"affine": Affine.BIAS},
        {"affine": Affine.NONE},
        {"parameters": "nan_weight"},
        {"eps": 1e-8},
        {"distribution": "nan_row"},
    ],
    ids=str,
)
def test_special_settings_are_tried_in_vectors_and_in_inference(
    dtype: str, unusual: dict[str, object]
) -> None:
    """If N is a multiple of a vector's length, kernels take a separate path."""
    found = {
        each.direction
        for each in cases(QUICK)
        if each.dtype == dtype
        and each.hidden % 8 == 0
        and all(getattr(each, axis) == value for axis, value in unusual.items())
    }
    assert found == BOTH


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("in_vectors", [False, True])
def test_wide_parameters_are_tried_with_and_without_vectors(dtype: str, in_vectors: bool) -> None:
    found = {
        each.direction
        for each in cases(QUICK)
        if each.dtype == dtype
        and each.param_dtype == "float32"
        and (each.hidden % 8 == 0) == in_vectors
    }
    assert found == BOTH


@every_tier
def test_inference_is_tried_with_every_setting_of_a_backward(tier: tuple[Group, ...]) -> None:
    tried = cases(tier)
    for axis in ("layout", "affine", "parameters", "eps", "normalized_dims", "param_dtype"):
        forward, backward = (
            {(each.dtype, getattr(each, axis)) for each in tried if each.direction is direction}
            for direction in (Direction.FORWARD, Direction.BACKWARD)
        )
        assert forward == backward, axis


def test_the_full_catalogue_has_every_distribution_grad_output_and_value_of_parameters() -> None:
    assert {each.distribution for each in cases(FULL)} == set(DISTRIBUTIONS)
    assert {each.grad_output for each in cases(FULL)} == set(GRAD_OUTPUTS)
    assert {each.parameters for each in cases(FULL)} == set(PARAMETERS)


# --- a group --------------------------------------------------------------------------------------


def test_parameters_have_the_dtype_of_x_by_default() -> None:
    group = Group(catches="x", shapes=((2, 3),), param_dtypes=(None, "float32"))
    found = [each.param_dtype for each in cases_of(group, "target", "float16", "cpu", True)]
    assert found == ["float16", "float32"]


def test_a_group_has_no_case_in_a_dtype_not_its_own() -> None:
    group = Group(catches="x", shapes=((2, 3),), dtypes=("float16",))
    assert list(cases_of(group, "target", "float32", "cpu", False)) == []
    assert len(list(cases_of(group, "target", "float16", "cpu", True))) == 1


def test_a_group_is_tried_backward_and_as_inference_unless_it_says_otherwise() -> None:
    group = Group(catches="x", shapes=((2, 3),))
    found = [each.direction for each in cases_of(group, "target", "float32", "cpu", False)]
    assert found == [Direction.BACKWARD, Direction.FORWARD]
    alone = replace(group, directions=(Direction.BACKWARD,))
    found = [each.direction for each in cases_of(alone, "target", "float32", "cpu", False)]
    assert found == [Direction.BACKWARD]


def test_inference_is_tried_once_for_all_grad_outputs() -> None:
    group = Group(catches="x", shapes=((2, 3),), grad_outputs=("ones", "one_row"))
    found = list(cases_of(group, "target", "float32", "cpu", False))
    assert [(each.direction, each.grad_output) for each in found] == [
        (Direction.BACKWARD, "ones"),
        (Direction.FORWARD, "shifted_normal"),
        (Direction.BACKWARD, "one_row"),
    ]


def test_a_case_carries_all_axes_of_its_group() -> None:
    group = Group(
        catches="x",
        shapes=((2, 3, 5),),
        normalized_dims=(2,),
        distributions=("constant",),
        layouts=("transposed",),
        grad_outputs=("ones",),
        affines=(Affine.BIAS,),
        parameters=("nan_bias",),
        eps=(0.5,),
        directions=(Direction.BACKWARD,),
    )
    (case,) = cases_of(group, "target", "float64", "cuda", False)
    assert case == Case(
        implementation="target",
        shape=(2, 3, 5),
        normalized_dims=2,
        dtype="float64",
        param_dtype="float64",
        device="cuda",
        distribution="constant",
        layout="transposed",
        grad_output="ones",
        affine=Affine.BIAS,
        parameters="nan_bias",
        eps=0.5,
        direction=Direction.BACKWARD,
    )
