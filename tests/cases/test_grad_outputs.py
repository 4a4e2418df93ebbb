"""Output gradients and values of the parameters: each is what its description says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.cases import GRAD_OUTPUTS, PARAMETERS, make_inputs
from harness.records import Case, Direction


def drawn(grad_output: str, **axes: object) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and dy of a case with that output gradient."""
    case = Case(
        implementation="", shape=(4, 33), direction=Direction.BACKWARD, grad_output=grad_output
    )
    inputs = make_inputs(replace(case, **axes))
    assert inputs.weight is not None
    assert inputs.dy is not None
    return inputs.x, inputs.weight, inputs.dy


@pytest.mark.parametrize("name", GRAD_OUTPUTS)
@pytest.mark.parametrize("shape", [(4, 7), (1, 1), (0, 5), (5, 0)], ids=str)
def test_only_poison_is_not_finite(name: str, shape: tuple[int, ...]) -> None:
    _, _, dy = drawn(name, shape=shape)
    assert dy.shape == shape
    poisoned = name in {"nan_row", "infinity_row"} and dy.numel() > 0
    assert int((~torch.isfinite(dy)).sum()) == poisoned


def test_dy_does_not_sum_to_nothing_over_many_rows() -> None:
    _, _, dy = drawn("shifted_normal", shape=(4096, 3))
    # a mean of 0.1 is six standard errors of 4096 draws away from 0
    assert bool((dy.sum(0) > 200).all())


WIDE = {"dtype": "float64", "param_dtype": "float64"}


def test_inverse_weight_times_weight_is_one() -> None:
    _, weight, dy = drawn("inverse_weight", **WIDE)
    torch.testing.assert_close(dy * weight, torch.ones_like(dy))


@pytest.mark.parametrize(
    ("name", "strides"),
    [("expanded_ones", (0, 0)), ("expanded_number", (0, 0)), ("expanded_row", (0, 1))],
)
def test_an_expanded_gradient_has_strides_of_zero(name: str, strides: tuple[int, int]) -> None:
    _, _, dy = drawn(name)
    assert dy.stride() == strides
    assert bool((dy == 1).all()) == (name == "expanded_ones")
    assert len(dy[0].unique()) == (33 if name == "expanded_row" else 1)


def test_normalised_times_weight_is_xhat_of_the_stored_x() -> None:
    x, weight, dy = drawn("normalised", **WIDE)
    torch.testing.assert_close(dy * weight, torch.nn.functional.layer_norm(x, (33,), eps=0.0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_an_infinite_gradient_stays_infinite(dtype: str) -> None:
    assert int(drawn("infinity_row", dtype=dtype)[2].isinf().sum()) == 1


def test_a_gradient_that_only_the_dtype_cannot_hold_is_clamped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GRAD_OUTPUTS, "ones", lambda x, *_: torch.full_like(x, 1e6))
    assert bool((drawn("ones", dtype="float16")[2] == 65504).all())


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("rows", "at_once"), [(65_600, 16_384), (4100, 1024), (4100, 256)])
def test_few_rows_are_lost_where_portions_of_them_are_added_in_bfloat16(
    rows: int, at_once: int, backwards: bool
) -> None:
    _, _, dy = drawn("few_rows", dtype="bfloat16", shape=(rows, 2))
    portions = [part for part in dy.split(at_once) if bool(part.any())]
    assert [int(part.any(-1).sum()) for part in portions] == [1] * 5
    total = torch.zeros(2, dtype=torch.bfloat16)
    for portion in reversed(portions) if backwards else portions:
        total = total + portion.sum(0)
    assert float(total.min()) == 1
    assert float(dy.double().sum(0).min()) > 1.013


# --- parameters ----------------------------------------------------------------------------------


def weight_and_bias(name: str, hidden: int = 8) -> tuple[Tensor, Tensor]:
    inputs = make_inputs(Case(implementation="", shape=(3, hidden), parameters=name))
    assert inputs.weight is not None
    assert inputs.bias is not None
    return inputs.weight, inputs.bias


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("hidden", [8, 1, 0])
def test_only_nan_parameters_are_not_finite(name: str, hidden: int) -> None:
    missing = [int(parameter.isnan().sum()) for parameter in weight_and_bias(name, hidden)]
    assert missing == [
        int(name == f"nan_{parameter}" and hidden > 0) for parameter in ("weight", "bias")
    ]


def test_weights_are_as_their_names_say_and_biases_as_usual() -> None:
    weights = {name: weight_and_bias(name)[0] for name in PARAMETERS}
    assert bool((weights["zero_weight"] == 0).all())
    assert bool((weights["ones_weight"] == 1).all())
    assert bool((weights["negative_weight"] < 0).all())
    mantissas, _ = torch.frexp(weights["power_of_two_weight"])
    assert bool((mantissas.abs() == 0.5).all())
    assert weights["power_of_two_weight"].abs().unique().numel() == 8
    assert torch.equal(weight_and_bias("normal")[1], weight_and_bias("zero_weight")[1])


def test_transposed_parameters_of_two_axes_have_the_usual_values() -> None:
    case = Case(implementation="", shape=(2, 3, 5, 7), normalized_dims=2)
    usual, placed = make_inputs(case), make_inputs(replace(case, parameters="transposed"))
    for name in ("weight", "bias"):
        parameter = getattr(placed, name)
        assert parameter.stride() == (1, 5)
        assert torch.equal(parameter, getattr(usual, name))
