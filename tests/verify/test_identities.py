"""Identities hold of what is right, in every dtype, and each is broken by something wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.records import Case
from harness.verify.identities import IDENTITIES, Identity, identities_of
from harness.verify.mutants import RIGHT, WRONG
from harness.verify.mutants.analytic import Gradients, Terms, analytic
from harness.verify.mutants.arguments import Rows, layer_norm_of
from harness.verify.trial import first_case
from implementations import (
    Implementation,
    LayerNorm,
    UnsupportedError,
    adopt,
    native,
    one_pass,
    one_pass_input_dtype,
    two_pass,
    two_pass_input_dtype,
    welford,
    welford_chunked,
)

NAMES = [each.__name__ for each in IDENTITIES]
OF_Y = [each for each in NAMES if each.startswith(("y_", "xhat_"))]
HALVES, WIDE = ("float16", "bfloat16"), ("float32", "float64")
CASE = first_case("implementation", "float32", "cpu")
right = layer_norm_of(lambda of: of.y)


def first(dtype: str) -> Case:
    return first_case("implementation", dtype, "cpu")


def implementation(function: LayerNorm | Callable[..., Any], **claims: Any) -> Implementation:
    return replace(native, name="implementation", function=function, **claims)


def broken(implementation: Implementation, case: Case = CASE) -> list[str]:
    return [name for name, holds in identities_of(implementation, case).items() if holds is False]


# --- of what is right ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*HALVES, *WIDE])
@pytest.mark.parametrize(
    "implementation",
    [one_pass, two_pass, welford, welford_chunked, *RIGHT],
    ids=lambda each: each.name,
)
def test_all_hold_of_what_is_right(implementation: Implementation, dtype: str) -> None:
    assert identities_of(implementation, first(dtype)) == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("dtype", WIDE)
def test_all_hold_of_the_kernel_where_its_gradients_are_right(dtype: str) -> None:
    assert identities_of(native, first(dtype)) == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_kernel_breaks_only_identities_of_gradients_in_halves(dtype: str) -> None:
    found = broken(native, first(dtype))
    assert "dweight_and_dbias_add_over_rows" in found
    assert not set(found) & set(OF_Y)


@pytest.mark.parametrize("dtype", [*HALVES, *WIDE])
@pytest.mark.parametrize("implementation", [one_pass_input_dtype, two_pass_input_dtype])
def test_none_is_broken_by_what_declares_that_it_is_narrow(
    implementation: Implementation, dtype: str
) -> None:
    assert broken(implementation, first(dtype)) == []


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("dtype", [*HALVES, *WIDE])
def test_all_hold_whatever_the_seed(dtype: str, seed: int) -> None:
    assert broken(two_pass, replace(first(dtype), seed=seed)) == []


def test_wide_parameters_of_narrow_rows_change_nothing() -> None:
    case = Case(
        implementation="implementation", shape=(6, 32), dtype="bfloat16", param_dtype="float32"
    )
    assert identities_of(two_pass, case) == dict.fromkeys(NAMES, True)


# --- of what is wrong ----------------------------------------------------------------------------

_MUTANTS = {
    "y_is_shift_invariant": ("root_mean_square", "one_pass_in_disguise", "mean_in_float16"),
    "y_follows_a_permutation": ("weight_off_by_one", "vector_tail_dropped", "lane_lost"),
    "y_is_idempotent": ("no_root", "newton_step_missing", "uncentred_denominator"),
    "xhat_is_standardised": (
        "unbiased_variance",
        "eps_outside_the_root",
        "eps_always_1e_6",
        "root_mean_square",
        "sum_of_squares",
    ),
    "gradients_follow_a_permutation": ("first_weight_for_all", "row_off_by_one"),
    "dx_sums_to_zero": (
        "dx_without_mean_of_dy",
        "dx_with_mean_of_dy_twice",
        "dx_times_weight_at_last",
        "dx_of_constant_statistics",
    ),
    "dx_projects_onto_xhat": (
        "dx_without_projection",
        "dx_with_unbiased_projection",
        "dx_with_unbiased_rstd",
        "dx_without_eps",
        "dx_without_weight",
        "dx_of_rstd_in_bfloat16",
    ),
    "dx_is_zero_for_constant_dy_weight": (
        "dx_without_mean_of_dy",
        "dx_without_weight",
        "weight_twice",
        "statistics_kept_in_bfloat16",
    ),
    "gradients_scale_with_dy": ("dx_adds_up",),
    "gradients_add_over_dy": ("dbias_summed_in_bfloat16", "dweight_summed_in_bfloat16"),
    "dx_scales_with_one_over_x": ("eps_always_1e_5", "eps_squared", "eps_of_the_first_call"),
    "dweight_and_dbias_add_over_rows": (
        "dweight_averaged",
        "dbias_averaged",
        "last_row_left_out",
        "rows_beyond_32_left_out",
        "pairs_share_statistics",
    ),
}


def test_each_has_something_wrong_that_breaks_it() -> None:
    assert list(_MUTANTS) == NAMES


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    ("name", "mutant"), [(name, each) for name, known in _MUTANTS.items() for each in known]
)
def test_what_is_wrong_breaks_it(name: str, mutant: str, dtype: str) -> None:
    wrong = next(each for each in WRONG if each.name == mutant)
    assert identities_of(adopt(wrong.fresh(), mutant), first(dtype))[name] is False


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("y_is_shift_invariant", "mean_in_float16"),
        ("y_follows_a_permutation", "sums_in_bfloat16"),
        ("xhat_is_standardised", "eps_squared"),
        ("dx_projects_onto_xhat", "dx_without_eps"),
        ("dx_is_zero_for_constant_dy_weight", "statistics_kept_in_float16"),
        ("dweight_and_dbias_add_over_rows", "portions_added_in_parameter_dtype"),
    ],
)
def test_what_is_wrong_breaks_it_in_halves_too(name: str, mutant: str, dtype: str) -> None:
    wrong = next(each for each in WRONG if each.name == mutant)
    assert identities_of(adopt(wrong.fresh(), mutant), first(dtype))[name] is False


def test_a_wrong_gradient_breaks_no_identity_of_y() -> None:
    wrong = next(each for each in WRONG if each.name == "dx_without_projection")
    assert not set(broken(adopt(wrong.fresh(), wrong.name))) & set(OF_Y)


@analytic
def dx_clipped(of: Terms) -> Gradients:
    """Clips dx to a size that it rarely reaches."""
    return replace(of.right, dx=of.right.dx.clamp(-3, 3))


@pytest.mark.parametrize("dtype", [*HALVES, *WIDE])
@pytest.mark.parametrize("name", ["gradients_scale_with_dy", "gradients_add_over_dy"])
def test_a_gradient_that_is_clipped_is_not_linear(name: str, dtype: str) -> None:
    assert identities_of(implementation(dx_clipped), first(dtype))[name] is False


@analytic
def dx_slightly_bent(of: Terms) -> Gradients:
    """Adds to dx what is far below its rounding, wherever dy is large."""
    return replace(of.right, dx=torch.nextafter(of.right.dx, of.right.dx + (of.dy.abs() > 3)))


def test_one_bit_breaks_what_holds_bit_by_bit() -> None:
    assert broken(implementation(dx_slightly_bent)) == ["gradients_scale_with_dy"]


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_satisfies_none(identity: Identity, value: float) -> None:
    def holed(of: Rows) -> Tensor:
        y = of.y.clone()
        y[0, 0] = y[0, 0] * value
        return y

    assert identity(implementation(layer_norm_of(holed)), CASE) is False


# --- of what cannot be told ----------------------------------------------------------------------


def test_a_sum_in_another_order_each_time_is_no_broken_identity() -> None:
    generator = torch.Generator().manual_seed(0)

    def rounded_anew(of: Terms) -> Gradients:
        order = torch.randperm(len(of.dy), generator=generator)
        total = of.dy.new_zeros(of.hidden)
        for row in of.dy[order]:
            total = total + row
        return replace(of.right, dbias=total)

    assert broken(implementation(analytic(rounded_anew))) == []


def test_nothing_is_told_where_nothing_is_promised() -> None:
    found = identities_of(one_pass_input_dtype, first("bfloat16"))
    assert found["y_is_shift_invariant"] is None
    assert found["xhat_is_standardised"] is True


def test_nan_where_nothing_is_promised_is_not_wrong() -> None:
    narrow = replace(one_pass_input_dtype, function=lambda x, *others: x * float("nan"))
    assert identities_of(narrow, first("bfloat16"))["y_is_shift_invariant"] is None


def test_nothing_is_told_of_gradients_that_are_not_claimed() -> None:
    detached = implementation(lambda *arguments: right(*arguments).detach(), forward_only=True)
    found = identities_of(detached, CASE)
    assert {name for name, holds in found.items() if holds} == set(OF_Y)
    assert {found[name] for name in NAMES if name not in OF_Y} == {None}


@pytest.mark.parametrize("error", [UnsupportedError, RuntimeError])
def test_nothing_is_told_of_what_raises(error: type[Exception]) -> None:
    def raising(*arguments: Any) -> Tensor:
        raise error("not here")

    assert identities_of(implementation(raising), CASE) == dict.fromkeys(NAMES)


def test_nothing_is_told_of_what_is_no_result() -> None:
    pairs = implementation(lambda *arguments: (right(*arguments), None))
    assert identities_of(pairs, CASE) == dict.fromkeys(NAMES)


def test_what_is_declined_once_is_open_there_only() -> None:
    def with_parameters_only(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        if weight is None:
            raise UnsupportedError("needs a weight")
        return right(x, shape, weight, bias, eps)

    found = identities_of(implementation(with_parameters_only), CASE)
    assert [name for name, holds in found.items() if holds is not True] == [
        "xhat_is_standardised",
        "dx_projects_onto_xhat",
    ]


# --- how they are asked --------------------------------------------------------------------------


def test_the_shifted_rows_are_exact() -> None:
    seen: list[Tensor] = []

    def watching(x: Tensor, *others: Any) -> Tensor:
        seen.append(x.clone())
        return right(x, *others)

    for dtype in (*HALVES, *WIDE):
        seen.clear()
        IDENTITIES[0](implementation(watching), first(dtype))
        here, there = seen
        assert torch.equal(there.double(), here.double() + 16)
        assert len(here.unique()) > 16


def test_they_are_asked_without_a_case_being_changed_or_tensors_being_shared() -> None:
    counter = itertools.count()

    def counting(*arguments: Any) -> Tensor:
        next(counter)
        return right(*arguments)

    before = replace(CASE)
    first_time, second_time = (identities_of(implementation(counting), CASE) for _ in range(2))
    assert before == CASE
    assert first_time == second_time
    assert next(counter) < 80  # a second's worth of a slow implementation


def test_gradients_are_recorded_where_recording_is_off() -> None:
    with torch.no_grad():
        assert identities_of(two_pass, CASE) == dict.fromkeys(NAMES, True)
